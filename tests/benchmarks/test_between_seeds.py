"""The comparison of epistemic variance with the variance between seeds."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from benchmarks import between_seeds
from benchmarks.datasets import Source


def answer(mean, var, **more):
    """A prediction with these outputs and variances."""
    mean, var = torch.as_tensor(mean), torch.as_tensor(var)
    return SimpleNamespace(probs=mean.softmax(1), mean=mean, epistemic_var=var, **more)


def test_variances_are_those_of_many_seeds_with_known_spread():
    """Outputs drawn around common means with variance 0.25, which half of the predictions report and half double."""
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(400, 5, generator=generator)
    y = centre.argmax(1)

    def seeds(var):
        draws = [centre + var**0.5 * torch.randn(400, 5, generator=generator) for _ in range(6)]
        return [answer(mean, torch.full_like(mean, var * (1 + k % 2))) for k, mean in enumerate(draws)]

    familiar, turned = between_seeds.compare({"familiar": seeds(0.25), "turned": seeds(1.0)}, y)
    assert familiar["between seeds"] == pytest.approx(0.25, rel=0.05)
    assert turned["between seeds"] == pytest.approx(1.0, rel=0.05)
    assert familiar["epistemic_var"] == pytest.approx(0.375)
    assert familiar["ratio"] == pytest.approx(1.5, rel=0.05)
    assert 0.5 < familiar["accuracy"] < 1.0 and familiar["NLL"] > 0.0
    assert turned["AUROC epistemic_var"] == 1.0
    assert "AUROC epistemic_var" not in familiar and "accuracy" not in turned


def test_epistemic_is_scored_where_predictions_have_it():
    mean, var = torch.randn(30, 5, generator=torch.Generator().manual_seed(0)), torch.ones(30, 5)
    y = mean.argmax(1)
    without = [answer(mean, var), answer(mean + 1, var)]
    low, high = ([answer(mean + k, var, epistemic=torch.full((30,), value)) for k in (0, 1)] for value in (0.1, 0.2))
    assert "AUROC epistemic" not in between_seeds.compare({"familiar": without, "turned": without}, y)[1]
    row = between_seeds.compare({"familiar": low, "turned": high}, y)[1]
    assert row["AUROC epistemic"] == 1.0
    assert row["AUROC epistemic_var"] == row["AUROC entropy"] == 0.5


def test_turned_and_inverted_images_are_pixels_in_their_range(patterns):
    sets = between_seeds.image_sets(patterns)
    assert list(sets) == ["familiar", "turned", "inverted"]
    torch.testing.assert_close(sets["turned"][:, :, 0, 0], patterns.x_test[:, :, 0, -1])
    low, high = float(patterns.x_train.min()), float(patterns.x_train.max())
    torch.testing.assert_close(sets["inverted"] - low, high - patterns.x_test)


def test_table_from_the_command_line(monkeypatch, tmp_path, patterns, pattern_layers):
    task = replace(between_seeds.TASKS["cifar10"], layers=pattern_layers, load=lambda source, device: patterns)
    monkeypatch.setitem(between_seeds.TASKS, "cifar10", task)
    monkeypatch.setattr(Source, "svhn_test", lambda self, scaling: patterns.x_test)
    path = tmp_path / "o.json"
    options = ["--task", "cifar10", "--epochs", "2", "--batch-size", "32", "--seeds", "2", "--hold-out", "40"]
    between_seeds.main([*options, "--svhn", "--device", "cpu", "--out", str(path)])
    found = json.loads(path.read_text())
    assert found["settings"]["limit"] is None and found["settings"]["hold_out"] == 40
    assert [row["images"] for row in found["results"]] == ["familiar", "turned", "inverted", "SVHN"]
    assert [run["seed"] for run in found["runs"]] == [0, 1]
    for row in found["results"]:
        assert row["epistemic_var"] > 0.0 and row["between seeds"] > 0.0
        assert ("accuracy" in row) == (row["images"] == "familiar") == ("AUROC entropy" not in row)


@pytest.mark.parametrize(
    "options, message", [(["--seeds", "1"], "at least 2"), (["--svhn"], "goes with --task cifar10")]
)
def test_options_that_make_no_sense_are_refused(capsys, options, message):
    with pytest.raises(SystemExit):
        between_seeds.main(options)
    assert message in capsys.readouterr().err
