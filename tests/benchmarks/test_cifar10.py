"""The CIFAR-10 benchmark from its command line to its table, on tiny images and with a tiny network."""

import json

import pytest

from benchmarks import cifar10
from benchmarks.datasets import Source

EAGER = "adamw,adamw-temperature,adamw-early,adamw-ensemble,mc-dropout"  # compilation takes long


@pytest.fixture
def results(monkeypatch, tmp_path, patterns, pattern_layers):
    """Run the benchmark with these options; the rows of its table."""
    monkeypatch.setattr(Source, "cifar10", lambda self, device, **limits: patterns)
    monkeypatch.setattr(Source, "svhn_test", lambda self, scaling: patterns.x_test.flip(3))
    monkeypatch.setattr(cifar10, "cifar10_cnn", pattern_layers)

    def run(*options):
        path = tmp_path / "cifar10.json"
        cifar10.main(["--device", "cpu", "--out", str(path), "--epochs", "2", "--batch-size", "32", *options])
        return json.loads(path.read_text())["results"]

    return run


@pytest.mark.slow
def test_all_rows_have_all_scores(results, capsys):
    rows = results("--baselines", EAGER, "--seeds", "3", "4")
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("AdamW", "3"),
        ("AdamW, temperature from 24 held out", "3"),
        ("AdamW, best epoch by 24 held out", "3"),
        ("AdamW, ensemble of 4", "3–6"),
        ("dropout 0.3, plain", "3"),
        ("MC dropout 0.3, 30 samples", "3"),
        ("ours", "3"),
        ("ours", "4"),
        ("ours, ensemble of 2", "3, 4"),
        ("ours", "mean"),
    ]
    for row in rows:
        assert {"accuracy", "NLL", "Brier", "ECE", "OOD-AUROC", "time ratio", "predict ratio"} <= set(row)
    left_out = [row for row in rows if row.get("leave-one-out NLL") is not None]
    assert {row["method"] for row in left_out} == {"ours"}
    assert all(0.0 < row["leave-one-out NLL"] < 10.0 and 0.0 <= row["leave-one-out error"] <= 1.0 for row in left_out)
    tells = {row["method"] for row in rows if row.get("OOD-AUROC epistemic") is not None}
    assert tells - {"ours"} == {"AdamW, ensemble of 4", "MC dropout 0.3, 30 samples", "ours, ensemble of 2"}
    assert "OOD-AUROC epistemic" in capsys.readouterr().out


@pytest.mark.slow
def test_baselines_can_be_chosen_and_one_seed_is_no_ensemble(results):
    rows = results("--baselines", "adamw-early", "--seeds", "0", "--skip-svhn")
    assert [row["method"] for row in rows] == ["AdamW", "AdamW, best epoch by 24 held out", "ours"]
    assert not any("OOD-AUROC" in row for row in rows)


@pytest.mark.slow
def test_held_out_images_are_scored_in_place_of_the_test_sets(results, monkeypatch, patterns):
    def fail(self, scaling):
        raise AssertionError("read SVHN")

    seen = []
    monkeypatch.setattr(Source, "svhn_test", fail)
    monkeypatch.setattr(
        cifar10,
        "Comparison",
        lambda images, *rest, known=cifar10.Comparison: seen.append(images) or known(images, *rest),
    )
    rows = results("--baselines", "adamw", "--seeds", "0", "--hold-out", "40", "--limit", "60")
    assert [row["method"] for row in rows] == ["AdamW", "ours"]
    assert not any("OOD-AUROC" in row for row in rows)
    assert len(seen[0].x_train) == 60
    assert seen[0].y_test.tolist() == patterns.y_train[80:].tolist()


def test_unknown_baseline_is_named(capsys):
    with pytest.raises(SystemExit):
        cifar10.main(["--baselines", "adamw,sgd"])
    assert "unknown baselines ['sgd']" in capsys.readouterr().err
