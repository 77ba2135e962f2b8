"""The benchmark of stores on a tiny network: every store does the same, and one without room is left out."""

import json

import pytest
import torch

import bayesmp as bmp
from bayesmp.sites import row_file
from benchmarks import sites

TINY = ["--small", "--device", "cpu", "--rows", "60", "--batch-size", "20", "--epochs", "2"]


def test_all_stores_are_measured_and_end_at_the_same_means(tmp_path, capsys):
    path = tmp_path / "sites.json"
    sites.main([*TINY, "--dtypes", "float32", "bfloat16", "--out", str(path)])
    assert "over device" in capsys.readouterr().out
    saved = json.loads(path.read_text())
    assert saved["size"] == {"widths": [20, 30, 10], "rows": 60, "batch_size": 20}
    rows = {(row["store"], row["dtype"]): row for row in saved["costs"]}
    assert len(rows) == 6
    n_weights = 21 * 30 + 31 * 10
    for (_, dtype), row in rows.items():
        assert row["sites, GB"] == pytest.approx(2 * 3 * n_weights * (4 if dtype == "float32" else 2) / 1e9)
        assert row["over device"] == pytest.approx(row["epoch, s"] / rows["device", "float32"]["epoch, s"])
        assert (row["off, std"] < 1e-3) == (dtype == "float32") and row["off, std"] < 1.0
        assert row["posterior - prior x sites"] < 1e-3


def test_a_store_without_room_is_left_out(tmp_path, capsys, monkeypatch):
    def no_room(*args, store, **options):
        if store != "host":
            raise ValueError("sites: 10 GB in float32 on disk do not fit")
        return measured(*args, store=store, **options)

    measured = sites.measure
    monkeypatch.setattr(sites, "measure", no_room)
    path = tmp_path / "sites.json"
    sites.main([*TINY, "--out", str(path)])
    printed = capsys.readouterr().out
    assert "device, float32: not measured: sites: 10 GB" in printed and "disk, float32: not measured" in printed
    (row,) = json.loads(path.read_text())["costs"]
    assert row["store"] == "host" and row["over host"] == 1.0
    with pytest.raises(SystemExit) as stopped:
        sites.main([*TINY, "--stores", "disk", "--out", str(path)])
    assert stopped.value.code == 1


def test_numbers_of_threads_are_tried_for_sites_on_disk(tmp_path):
    path = tmp_path / "sites.json"
    sites.main([*TINY, "--stores", "host", "disk", "--file-threads", "1", "3", "--out", str(path)])
    saved = json.loads(path.read_text())
    assert [(row["store"], row.get("file threads")) for row in saved["costs"]] == [
        ("host", None),
        ("disk", 1),
        ("disk", 3),
    ]
    assert [row["file threads"] for row in saved["the file alone"]] == [1, 3]
    for row in saved["the file alone"]:  # two ways to say the same
        assert row["each way, GB/s"] == pytest.approx(row["rows a second"] * 2 * 4 * (21 * 30 + 31 * 10) / 1e9)
    assert row_file.THREADS is None


def test_an_epoch_is_a_visit_to_every_batch():
    x, y = sites.random_data((4, 5, 3), 30, torch.device("cpu"))
    assert x.shape == (30, 4) and int(y.max()) < 3
    trainer = bmp.Trainer(bmp.Network([bmp.Linear(4, 3)], bmp.Argmax()), x, y, batch_size=10)
    assert len(sites.epoch_seconds(trainer, 3)) == 3
    assert trainer.n_epochs == 3 and trainer.schedule.n_visits == 9


@pytest.mark.parametrize(
    "wrong", [["--epochs", "1"], ["--device", "cpu"], ["--small", "--rows", "0"], [*TINY, "--file-threads", "0"]]
)
def test_what_cannot_be_measured_is_refused(wrong, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        sites.main([*wrong, "--out", str(tmp_path / "sites.json")])
    assert stopped.value.code == 2
