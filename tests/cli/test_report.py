"""The report: a verdict first, also on the command line; and as one page that stands alone and fits a phone."""

import html
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from bayesmp.basics import atomic  # noqa: E402
from bayesmp.cli.page import page_of  # noqa: E402
from bayesmp.tables import Target  # noqa: E402
from bayesmp.tables.model import TableModel  # noqa: E402
from bayesmp.tables.report import Report  # noqa: E402
from tests.cli.conftest import QUICK, patients  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
NASTY = ["<script>alert('x')</script>", '"><img src=x onerror=alert(1)>', r"$\frac{$", "a" * 90]
WIDTHS = (1280, 390)


def noise(n, seed=0):
    """A target that no column tells anything about."""
    rng = np.random.default_rng(seed)
    return pandas.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n), "y": rng.normal(size=n)})


def report_of(frame, target, y, **options):
    """Of a small model, on the second half of the rows."""
    half = len(frame) // 2
    model = TableModel.fit(frame[:half], y[:half], target, hidden=(3,), epochs=3, random_state=0, source="<b>.csv")
    return Report(model, frame[half:].reset_index(drop=True), y[half:], np.arange(half, len(y)) + 1, "rows", **options)


@pytest.fixture(scope="module")
def nasty():
    """The page of a table whose every text wants to be HTML, a formula, or too long for a phone."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({name: rng.normal(size=80) for name in NASTY[:3]})
    frame[NASTY[3]] = rng.choice(["</td><b>", "usual & more", "x" * 70], 80)
    frame["day"] = pandas.date_range("2024-01-01", periods=80).strftime("%Y-%m-%d")
    y = np.where(frame[NASTY[0]] + 0.3 * rng.normal(size=80) > 0, "<i>yes</i>", "no")
    report = report_of(frame, Target("</title><script>", "classification"), y)
    return report, page_of(report, [f"said of {NASTY[0]}"], is_refitted=True)


@pytest.fixture(scope="module")
def plain():
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=list("abc"))
    frame.loc[79, "a"] = 1e3
    y = 1e5 * frame["a"].clip(-3, 3).to_numpy() + 1e4 * frame["b"].to_numpy()
    return page_of(report_of(frame, Target("price", "regression"), y))


def test_a_target_of_noise_is_told_not_to_be_used(call, tmp_path):
    noise(60).to_csv(tmp_path / "t.csv", index=False)
    noise(60, 1).assign(y=lambda table: 50.0 + table["y"]).to_csv(tmp_path / "far.csv", index=False)
    model = tmp_path / "m.safetensors"
    call("fit", tmp_path / "t.csv", "--target", "y", "--out", model, "--no-refit", *QUICK)
    said = call("evaluate", model, tmp_path / "far.csv")  # R2 of -2,500
    assert said.startswith("no better than the mean: do not use it (") and "well calibrated" not in said
    few = tmp_path / "few.csv"
    noise(20).to_csv(few, index=False)  # none are held out
    said = call("fit", few, "--target", "y", "--out", model, "--hidden", "", "--epochs", "3")
    assert re.search(r"\n(no )?better than the mean.*\(leave-one-out: R2 \S+\)\n", said)


def test_thresholds_and_costs_are_for_two_classes(made, call, tmp_path):
    folder, _ = made
    sick = ("evaluate", folder / "sick.safetensors", folder / "sick-new.csv")
    said = call(*sick, "--threshold", "0.2")
    assert "from a probability of 0.2 on" in said and re.search(r"recall (True|False) +\S+", said)
    said = call(*sick, "--cost", "4:1")
    assert "from a probability of 0.2 on" in said and "errors cost" in said
    assert "give one of the two" in call(*sick, "--cost", "4:1", "--threshold", "0.2", code=2)
    for cost in ("4", "4:0", "a:b", "-1:2"):
        assert "two positive numbers such as 5:1" in call(*sick, "--cost", cost, code=2)
    price = ("fit", folder / "price.csv", "--target", "price", "--out", tmp_path / "m.safetensors")
    assert "are for two classes, and 'price' is a quantity" in call(*price, "--threshold", "0.5", code=1)
    kind = ("evaluate", folder / "kind.safetensors", folder / "kind-new.csv")
    assert "are for two classes, and 'kind' is 12 classes" in call(*kind, "--cost", "2:1", code=1)


def test_the_latest_rows_are_held_out_and_a_report_is_written(call, tmp_path):
    table = patients(60, 0)
    table["seen"] = pandas.date_range("2024-01-01", periods=60).strftime("%Y-%m-%d")
    table["sick"] = table["sick"].astype(object).where(table.index != 59)
    table.sample(frac=1.0, random_state=0).to_csv(tmp_path / "t.csv", index=False)
    arguments = ("fit", tmp_path / "t.csv", "--target", "sick", "--out", tmp_path / "m.safetensors", *QUICK)
    said = call(*arguments, "--time-column", "seen", "--drop", "seen", "--report", tmp_path / "r.html")
    assert "training on 47 rows, 12 held out" in said
    assert "the latest 12 rows by 'seen', 2024-02-17 to 2024-02-28; training ends at 2024-02-16" in said
    assert "up to 12 days ahead, and says nothing of later ones" in said and f"report: {tmp_path / 'r.html'}" in said
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "up to 12 days ahead" in page and "was then trained on all rows" in page
    shown = [int(number) for number in re.findall(r"data-name='row'>(\d+)<", page)]
    late = set(np.flatnonzero(pandas.read_csv(tmp_path / "t.csv")["seen"] >= "2024-02-17") + 1)
    assert shown and set(shown) <= late  # numbers are those of the file
    assert "no column 'sean'; did you mean 'seen'" in call(*arguments, "--time-column", "sean", code=1)
    assert "'sick' is the target" in call(*arguments, "--time-column", "sick", code=2)


def test_classes_that_come_later_are_left_out_of_the_report(call, tmp_path):
    table = pandas.concat([patients(60, 0), patients(4, 1).assign(sick="maybe")])
    table["when"] = range(64)
    table.to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "m.safetensors"
    said = call("fit", tmp_path / "t.csv", "--target", "sick", "--out", out, "--time-column", "when", *QUICK)
    assert "note: 4 rows with classes unknown to the model left out: 'maybe'" in said and "9 held out" in said


def test_a_page_is_refused_before_the_training(made, call, tmp_path):
    folder, _ = made
    arguments = ("fit", folder / "sick.csv", "--target", "sick", "--out", tmp_path / "m.safetensors", *QUICK)
    assert "must end in .html" in call(*arguments, "--report", tmp_path / "r.txt", code=2)
    assert "rows that are held out" in call(*arguments, "--hold-out", "0", "--report", tmp_path / "r.html", code=2)
    (tmp_path / "file").touch()
    said = call(*arguments, "--report", tmp_path / "file" / "r.html", code=1)
    assert "cannot write" in said and "training on" not in said


def test_a_page_is_written_as_a_whole_or_not_at_all(made, call, tmp_path, monkeypatch):
    folder, _ = made
    page = tmp_path / "r.html"
    page.write_text("the earlier one")
    arguments = ("evaluate", folder / "sick.safetensors", folder / "sick-new.csv", "--report", page)

    def fails(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", fails)
        assert "No space left" in call(*arguments, code=1)
    assert page.read_text() == "the earlier one" and list(tmp_path.iterdir()) == [page]
    assert f"report: {page}" in call(*arguments) and "</html>" in page.read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Elements and texts of a page; fails where they are not closed in order."""

    VOID = ("meta", "img")

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.links, self.texts = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        self.open += [] if tag in self.VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_texts_of_the_table_are_escaped_and_nothing_comes_from_elsewhere(nasty, plain):
    report, page = nasty
    found = Reader(page)
    assert not {"script", "i", "link", "iframe", "object"} & set(found.tags) and found.tags.count("b") == page.count(
        "<b>"
    )
    for name in (*NASTY, "</title><script>", "<i>yes</i>", "<b>.csv", "</td><b>"):
        assert name in "".join(found.texts), name
    for text in (page, plain):
        links = Reader(text).links
        assert links and all(link.startswith("data:image/png;base64,") for link in links)
        assert not re.search(r"url\(|@import|https?://", text)
    assert page.count("<img") == 2 + len(report.curves) and len(report.curves) >= 4


def test_a_page_has_all_parts_in_plain_words(nasty, plain):
    for page in (nasty[1], plain):
        text = " ".join("".join(Reader(page).texts).split())
        places = [text.index(title) for title in (
            "How well", "Scores, beside a guess", "Calibration, and predictions", "What the predictions depend on",
            "How predictions follow", "The most surprising rows", "Rows unlike the training data", "Columns and",
        )]  # fmt: skip
        assert places == sorted(places)
        assert "random_state=0" in text and "torch" in text
    assert re.search(r">\d+ of 40 rows\.", plain) and "class='verdict" in plain  # the row with 1e3 in column a
    assert "said of &lt;script&gt;" in nasty[1]


def test_without_matplotlib_a_page_has_words_and_numbers(nasty, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    page = page_of(nasty[0])
    assert "<img" not in page and "What the predictions depend on" in Reader(page).texts


LOOK = """
<script>
addEventListener('load', () => setTimeout(() => {
  const frame = document.querySelector('iframe'), page = frame.contentDocument, width = frame.contentWindow.innerWidth;
  const beyond = [...page.body.querySelectorAll('*')].filter(each => {
    const box = each.getBoundingClientRect();
    return box.width > 0 && (box.right > width + 0.5 || box.left < -0.5 || each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0);
  }).map(each => each.tagName + '.' + each.className + ' ' + each.textContent.slice(0, 40));
  const pictures = [...page.images].map(each => each.naturalWidth);
  document.title = JSON.stringify({width, scroll: page.documentElement.scrollWidth, beyond, pictures});
}, 0));
</script>
"""  # noqa: E501


def look(page, width, folder):
    """What Chromium says of the page in a window this wide, and a picture of it. A frame stands for the window, which
    Chromium would not make as narrow as a phone.
    """
    outer, shot = folder / "frame.html", folder / "shot.png"
    frame = f"<iframe style='border:0;width:{width}px;height:2000px' srcdoc=\"{html.escape(page)}\"></iframe>"
    outer.write_text(f"<!doctype html><title>-</title><body style='margin:0'>{frame}{LOOK}", encoding="utf-8")
    base = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    base += [
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={max(width, 500)},2000",
        "--virtual-time-budget=5000",
    ]
    env = {**os.environ, "HOME": str(folder)}
    run = {"capture_output": True, "text": True, "env": env, "timeout": 120, "check": False}
    dumped = subprocess.run([*base, "--dump-dom", outer.as_uri()], **run)
    subprocess.run([*base, f"--screenshot={shot}", outer.as_uri()], **run)
    title = re.search(r"<title>(\{.*?\})</title>", dumped.stdout)
    assert title, dumped.stderr[-2000:]
    return json.loads(html.unescape(title[1])), shot


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium, or any Chrome on the PATH")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["plain", "nasty"])
def test_nothing_overflows_on_a_desktop_or_a_phone(nasty, plain, kind, width, tmp_path):
    seen, shot = look(plain if kind == "plain" else nasty[1], width, tmp_path)
    assert seen["width"] == width and seen["scroll"] <= width
    assert seen["beyond"] == []
    assert len(seen["pictures"]) >= 4 and min(seen["pictures"]) > 100
    image = pytest.importorskip("matplotlib.image").imread(shot)
    assert image.shape[1] >= width and image[..., :3].std() > 0.05  # it is not blank


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium, or any Chrome on the PATH")
def test_an_element_beyond_the_window_is_seen(tmp_path):
    """The test above can fail."""
    seen, _ = look("<!doctype html><div style='width:600px'>wide</div>", 390, tmp_path)
    assert seen["scroll"] > 390 and len(seen["beyond"]) == 1
