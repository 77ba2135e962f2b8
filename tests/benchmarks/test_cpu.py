"""The CPU benchmark on a tiny network: its table, its file, and that both sides take turns."""

import json

import pytest

from bayesmp import kernels
from benchmarks import cpu, networks


def test_costs_of_a_tiny_network(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cpu, "NETWORKS", {"4-5-10": (lambda: networks.mlp(4, 5, 10), (4,), 6)})
    monkeypatch.setattr(kernels, "_choice", "auto")
    path = tmp_path / "cpu.json"
    cpu.main(["--clock", "cpu", "--repeats", "2", "--backend", "torch", "--networks", "4-5-10", "--out", str(path)])
    printed = capsys.readouterr().out
    assert "1 thread, backend 'torch'" in printed and "visit / step" in printed
    saved = json.loads(path.read_text())
    (row,) = saved["costs"]
    assert saved["threads"] == 1 and saved["backend"] == "torch"
    assert row["visit / step"] == pytest.approx(row["visit, ms"] / row["AdamW step, ms"])
    assert all(row[f"{kind} / pass"] > 0 for kind in ("means and variances", "classes", "joint belief"))


def test_calls_take_turns():
    order = []
    medians = cpu.alternating_medians([lambda: order.append("a"), lambda: order.append("b")], repeats=2)
    assert order == ["a", "b"] * 3 and len(medians) == 2


def test_it_is_about_cpus(capsys):
    with pytest.raises(SystemExit):
        cpu.main(["--device", "cuda"])
    assert "about CPUs" in capsys.readouterr().err
