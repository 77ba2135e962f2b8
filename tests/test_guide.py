"""The guide's code runs and prints what its pages show; its pictures are there, and small."""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("pandas")
matplotlib.use("Agg")

DOCS = Path(__file__).parent.parent / "docs"
SPEC = importlib.util.spec_from_file_location("pages", DOCS / "pages.py")
assert SPEC is not None and SPEC.loader is not None
pages = importlib.util.module_from_spec(SPEC)
sys.modules["pages"] = pages
SPEC.loader.exec_module(pages)

NAV = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
PAGES = re.findall(r": ([\w-]+\.md)$", NAV, flags=re.MULTILINE)
GUIDE = [page for page in PAGES if page not in ("architecture.md", "lab-notes.md", "reference.md")]


@pytest.fixture(autouse=True)
def quiet():
    """Pictures are closed, threads are few, and PyTorch's own draws are as in other tests afterwards."""
    import matplotlib.pyplot as plt

    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    plt.close("all")


def test_the_navigation_names_every_page():
    own = {path.name for path in DOCS.glob("*.md") if not path.name.startswith("notes-")}
    assert set(PAGES) == own


@pytest.mark.parametrize("page", GUIDE)
def test_the_code_of_a_page_runs_and_prints_what_is_shown(page, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pages.run(page, tmp_path)
    saved = {path.name for path in tmp_path.glob("*.svg")}
    shown = set(re.findall(r"\]\(images/([\w-]+\.svg)\)", (DOCS / page).read_text(encoding="utf-8")))
    assert saved <= shown, "a page shows the pictures that its code saves"


def test_every_block_is_of_a_kind_that_is_run_or_checked():
    for page in GUIDE:
        found = pages.blocks(page)
        assert {block.language for block in found} <= {"python", "text", "output", "sh"}, page
        for block, before in zip(found, [None, *found], strict=False):
            if block.language in ("text", "output"):
                assert before is not None and before.language in ("python", "sh"), f"{page}, line {block.line}"


def test_pictures_are_there_and_small():
    for page in PAGES:
        for picture in re.findall(r"\]\((images/[^)]+)\)", (DOCS / page).read_text(encoding="utf-8")):
            path = DOCS / picture
            assert path.exists(), f"{page} shows {picture}: run python docs/figures.py"
            assert path.stat().st_size < 200_000, picture


def test_the_check_of_what_is_printed_can_fail():
    pages.check("NLL 0.52, 90 %", "NLL 0.54,  90 %\n", "here")
    for printed in ("NLL 0.92, 90 %", "RMSE 0.52, 90 %", ""):
        with pytest.raises(AssertionError, match="here shows"):
            pages.check("NLL 0.52, 90 %", printed, "here")


def test_links_between_pages_lead_somewhere():
    for page in GUIDE:
        text = (DOCS / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
            assert "://" in target or (DOCS / target).exists(), f"{page} links to {target}"


def test_reasons_that_the_code_cites_are_in_the_notes():
    """A constant that cites the lab notes names a section, by words of its heading."""
    notes = (DOCS / "lab-notes.md").read_text(encoding="utf-8")
    headings = " | ".join(re.findall(r"^#+ (.+)$", notes, flags=re.MULTILINE)).lower()
    cited = set()
    for path in (DOCS.parent / "bayesmp").rglob("*.py"):
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
        cited |= set(re.findall(r"lab[- ]notes(?:\.md)?, \"([^\"]+)\"", text))
    assert len(cited) > 5
    assert [words for words in cited if words.lower() not in headings] == []


def test_diagnosing_names_every_kind_of_finding():
    """The table of kinds is that of the code."""
    from bayesmp.diagnosis.advice import SENTENCES

    kinds = {name.split()[0] for name in SENTENCES}
    text = (DOCS / "diagnosing.md").read_text(encoding="utf-8")
    table = next(part for part in text.split("\n\n") if "| `not_converged`" in part)
    named = set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE))
    assert named == kinds and len(kinds) > 10


def test_the_reference_has_every_public_name():
    import bayesmp

    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: bayesmp\.(?:estimators\.)?(\w+)$", text, flags=re.MULTILINE))
    assert shown == set(bayesmp.__all__)
