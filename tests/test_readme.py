"""The README's examples run, its files exist, and it stays short."""

import re
from pathlib import Path

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE))
EXAMPLES = {
    name: "\n".join(blocks)  # those of a section go on where the one before ended
    for name, text in SECTIONS.items()
    if (blocks := re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
}


def test_it_stays_short():
    assert len(TEXT.split()) <= 900


def test_every_python_block_is_tested():
    assert set(EXAMPLES) == {"Ten lines"}
    assert TEXT.count("```python") == sum(text.count("```python") for text in SECTIONS.values())


def test_ten_lines(tmp_path, monkeypatch):
    """The noise has a standard deviation of .1; where there are points, no less is promised, and more in the gap."""
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(EXAMPLES["Ten lines"], "README.md", "exec"), names)
    grid, mean, std = names["grid"][:, 0], names["mean"], names["std"]
    is_seen = (np.abs(grid) > 0.45) & (np.abs(grid) < 0.95)
    assert np.abs(mean - np.sin(3 * grid))[is_seen].max() < 0.15
    assert std[is_seen].min() > 0.08 and std[is_seen].max() < 0.15
    assert std[np.abs(grid) < 0.1].min() > 2 * std[is_seen].max()
    assert (tmp_path / "gap.png").exists()


def test_local_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert missing == []


def test_the_picture_is_small_enough_for_a_repository():
    assert (ROOT / "docs/images/gap.png").stat().st_size < 200_000


def test_it_says_how_to_begin():
    assert "make demo" in TEXT and "make test" in TEXT and "pip install" in TEXT
