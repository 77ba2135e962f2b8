"""Files that were made to harm: their checksums fit, and what they say does not. None is more than a clear error."""

from __future__ import annotations

import json
import math
import os
import resource

import pytest
import torch

import bayesmp as bmp
from bayesmp.basics import persistence
from benchmarks import files as damage

ROOM = 1_000_000_000  # bytes beyond what is in use: loading must not ask for more
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One file of each kind, as bytes."""
    folder, found = tmp_path_factory.mktemp("whole"), {}
    for name, kind in damage.KINDS.items():
        if name != "checkpoint":
            kind.make(folder / name)
            found[name] = (folder / name).read_bytes()
    return found


@pytest.fixture
def little_memory():
    """No more than ROOM can be asked for."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def forge(content: bytes, path, change) -> None:
    """Write the file with another header or other tensors; all its checksums are right."""
    path.write_bytes(content)
    with persistence.opened(path, kinds=("model", "run", "estimator")) as file:
        header, tensors = file.header, {name: file.tensor(name, is_finite=False) for name in file.names()}
    change(header, tensors)
    kind = header.pop("kind")
    persistence.write(path, kind=kind, header=header, tensors=tensors)


def put(*road, value):
    """Another value at this place of the header."""

    def change(header, tensors):
        at = header
        for name in road[:-1]:
            at = at[name]
        at[road[-1]] = value

    return change


def drop(*road):
    def change(header, tensors):
        at = header
        for name in road[:-1]:
            at = at[name]
        del at[road[-1]]

    return change


def entry(name, value, k=0):
    """Another number in a tensor."""

    def change(header, tensors):
        tensors[name].view(-1)[k] = value

    return change


def tensor(name, found):
    return lambda header, tensors: tensors.update({name: found})


def lose(name):
    return lambda header, tensors: tensors.pop(name)


def both(*changes):
    def change(header, tensors):
        for each in changes:
            each(header, tensors)

    return change


LAYER = ("network", "layers", 0, "args")
FORGED = {
    "model": {
        "a layer of a million million weights": put(*LAYER, "n_out", value=10**12),
        "one that takes gigabytes": both(
            put(*LAYER, "n_out", value=30_000), put("network", "layers", 2, "args", "n_in", value=30_000)
        ),
        "a width beyond all numbers": put(*LAYER, "n_in", value=10**30),
        "a width that is no whole number": put(*LAYER, "n_in", value=3.0),
        "a width in words": put(*LAYER, "n_in", value="3"),
        "a width below 0": put(*LAYER, "n_in", value=-3),
        "a bias that is a text": put(*LAYER, "bias", value="no"),
        "a prior in the header": put(*LAYER, "weight_prior", value=[0.0, 1.0]),
        "a layer that is a function": put("network", "layers", 0, "type", value="os.system"),
        "a layer of another module": put("network", "layers", 0, "type", value="subprocess.Popen"),
        "a layer that is a head": put("network", "layers", 0, "type", value="Softmax"),
        "no layers": put("network", "layers", value=[]),
        "layers that are no list": put("network", "layers", value={"0": 1}),
        "a prior of a weight that is not there": put("network", "layers", 1, "given_priors", value=["weight"]),
        "a noise that is not a number": put("network", "head", "args", "noise_var", value=math.nan),
        "an infinite noise": put("network", "head", "args", "noise_var", value=math.inf),
        "a seed that is a list": put("network", "seed", value=[1]),
        "a dtype that is a function": put("network", "dtype", value="load"),
        "another dtype": put("network", "dtype", value="float64"),
        "an input of no size": put("network", "input_shape", value=[]),
        "an input of any size": put("network", "input_shape", value=[10**15]),
        "a factor of 0": put("network", "belief_scale", value=0.0),
        "an infinite factor": put("network", "belief_scale", value=math.inf),
        "a prior without end": put("network", "prior_width", value=1e308),
        "a prior width below 0": put("network", "prior_width", value=-1.0),
        "a regime that is not known": put("network", "regime", "sees", value="all"),
        "a regime with more to it": put("network", "regime", "eval", value="1"),
        "an entry that is not known": put("network", "code", value="print(1)"),
        "another entry beside the network": put("pickle", value="gASV"),
        "nothing about the belief": drop("network", "belief"),
        "a past without a belief": put("network", "past", "belief", value=None),
        "a belief of more layers": put("network", "past", "belief", "n_layers", value=10**9),
        "a belief in another form": put("network", "past", "belief", "form", value="anchored"),
        "fewer rows than none": put("network", "past", "belief", "n_rows", value=-1),
        "a tensor that is not there": lose("start"),
        "a tensor that nobody knows": tensor("more", torch.zeros(3)),
        "a mean that is not a number": entry("marginal.tau", math.nan),
        "an infinite mean": entry("past.marginal.tau", math.inf),
        "a precision of 0": entry("marginal.rho", 0.0),
        "a precision below 0": entry("prior.rho", -1.0),
        "a precision that is hardly any": entry("prior.rho", 5e-324),
        "a share above 1": entry("sum_share", 2.0),
        "a noise in the grid that is below 0": entry("head.grid", -1.0),
        "another grid": entry("head.grid", 2.0, 5),
        "log weights that are not numbers": entry("head.log_weights", math.nan),
        "log weights that rule out all": lambda header, tensors: tensors["head.log_weights"].fill_(-math.inf),
        "a weight too few": lambda header, tensors: tensors.update({"start": tensors["start"][:-1]}),
        "another precision": lambda header, tensors: tensors.update({"start": tensors["start"].float()}),
        "whole numbers": lambda header, tensors: tensors.update({"start": tensors["start"].long()}),
        "a matrix": lambda header, tensors: tensors.update({"start": tensors["start"][None]}),
        "a belief that is not a number": entry("past.belief.whitener", math.nan),
        "a belief of no variance": entry("past.belief.std.0", 0.0),
        "inputs of another size": tensor("past.belief.points.x", torch.zeros(30, 4)),
    },
    "run": {
        "an epoch that is missing": drop("run", "history", 0),
        "an epoch that is a text": put("run", "history", 0, "epoch", value="1"),
        "metrics of none": put("run", "history", 1, "metrics", value={}),
        "counters of another schedule": put("run", "counters", value={"n_visits": 1}),
        "a counter in words": put("run", "counters", "n_steps", value="3"),
        "a damping of 0": put("run", "counters", "damping", value=0.0),
        "a setting that is not known": put("run", "config", "speed", value=3),
        "a batch size of 0": put("run", "config", "batch_size", value=0),
        "batches of one": put("run", "config", "batch_size", value=1),
        "batches without rows": put("run", "batch_sizes", value=[0, 30]),
        "batches of other rows": put("run", "batch_sizes", value=[10**9]),
        "batches with one name": put("run", "batch_ids", value=[0, 0, 0, 0]),
        "rows that are there twice": entry("members", 1, 0),
        "rows beyond the end": entry("members", 10**6, 0),
        "ids that fall": entry("ids", 20, 0),
        "a device that is not known": put("run", "device", value="meta"),
        "a site that is not a number": entry("sites.slope", math.nan),
        "an epoch beyond the last": put("run", "refreshed_at", value=10**6),
        "a change that nobody makes": put("run", "changes", value=[{"epoch": 0, "what": "x", "n_changed": 1}]),
    },
    "estimator": {
        "another type": put("estimator", "type", value="MPRegressor"),
        "a type that is a list": put("estimator", "type", value=["MPClassifier"]),
        "labels of another type": put("estimator", "arrays", "classes_", value=[["no", "yes"], "|V9999999"]),
        "labels of gigabytes": put("estimator", "arrays", "classes_", value=[["no", "yes"], "<U9999999"]),
        "labels that are objects": put("estimator", "arrays", "classes_", value=[[{"a": 1}, "yes"], "|O"]),
        "labels out of order": put("estimator", "arrays", "classes_", value=[["yes", "no"], "<U3"]),
        "one label too many": put("estimator", "arrays", "classes_", value=[["a", "b", "c"], "<U1"]),
        "another attribute": put("estimator", "arrays", "predict", value=[["a"], "<U1"]),
        "another number of columns": put("estimator", "numbers", "n_features_in_", value=4),
        "a parameter that is not known": put("estimator", "params", "n_threads", value=4),
        "a width of a million million": put("estimator", "params", "hidden", value="x" * 100),
        "a scale of 0": entry("scaling.x_scaling_.std", 0.0),
        "a scale that is not a number": entry("scaling.x_scaling_.centre", math.nan),
        "half a scale": lose("scaling.x_scaling_.std"),
        "a class beyond the last": entry("rows.seen_y_", 7),
        "rows of other columns": tensor("rows.seen_x_", torch.zeros(30, 2, dtype=torch.float64)),
        "seeds of more networks": put("estimator", "numbers", "_seeds", value=[1, 2, 3]),
    },
    "compact": {
        "more points than rows may be": both(
            tensor("belief.points.x", torch.zeros(3_000, 3)), tensor("belief.points.mixes", torch.ones(3_000, 1))
        ),
        "a belief of more layers": put("network", "belief", "n_layers", value=9),
        "a belief in another form": put("network", "belief", "form", value="full"),
        "nothing left out": put("network", "is_compact", value=False),
        "a grid": tensor("head.grid", torch.ones(1440, dtype=torch.float64)),
        "half of a triangle": lambda header, tensors: tensors.update(
            {"fitted.spread.0": tensors["fitted.spread.0"][:, :-1]}
        ),
    },
    "table": {
        "a slope that is a whole number": put("network", "layers", 1, "args", "leak", value=1),
        "a column of another kind": put("table", "encoder", "columns", 0, "kind", value="code"),
        "a date without a calendar": put("table", "encoder", "columns", 0, "kind", value="date"),
        "a column too many": lambda header, tensors: header["table"]["encoder"]["columns"].append(
            dict(header["table"]["encoder"]["columns"][0])
        ),
        "a median that is not a number": put("table", "encoder", "columns", 0, "median", value=math.nan),
        "a task that is not known": put("table", "target", "task", value="ranking"),
        "another task": put("table", "target", "task", value="classification"),
        "a guess too few": put("table", "facts", "guess", value=[0.0]),
        "rows below 0": put("table", "facts", "n_rows", value=-5),
        "a table that is a list": put("table", value=[]),
        "a network that is missing": put("further_networks", value=[]),
    },
}
CASES = [(kind, name) for kind, cases in FORGED.items() for name in cases]


@pytest.mark.parametrize("kind, name", CASES, ids=lambda part: part.replace(" ", "_"))
def test_a_forged_file_is_refused(kind, name, whole, tmp_path, little_memory):
    path = tmp_path / damage.NAME
    forge(whole[kind], path, FORGED[kind][name])
    with pytest.raises(ValueError, match=damage.NAME) as caught:
        damage.KINDS[kind].read(path)
    said = str(caught.value)
    assert isinstance(caught.value, persistence.UnfitFileError) or " holds an " in said or " needs " in said, said
    assert not isinstance(caught.value.__cause__, (RuntimeError, MemoryError, AttributeError, KeyError)), said
    assert len(said) < 1_000


def raw(described: dict | str, data: bytes = b"") -> bytes:
    text = (described if isinstance(described, str) else json.dumps(described)).encode()
    return len(text).to_bytes(8, "little") + text + data


def described(**entry):
    return {"__metadata__": {"bayesmp": "{}"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}


RAW = {
    "a header of 2^63 bytes": (2**63).to_bytes(8, "little") + b"{}",
    "a header longer than the file": (100).to_bytes(8, "little") + b"{}",
    "a header of a gigabyte": (2**30).to_bytes(8, "little") + b"{}",
    "a header too deep": raw(DEEP),
    "a number too long": raw('{"a": ' + "9" * 100_000 + "}"),
    "no object": raw("[1, 2]"),
    "no text": raw('{"a": "\\ud800"}') + b"\xff\xfe",
    "a name twice": raw('{"__metadata__": {}, "a": 1, "a": 2}'),
    "metadata that are numbers": raw({"__metadata__": {"bayesmp": 1}}),
    "a tensor of 2^80 entries": raw(described(shape=[2**40, 2**40])),
    "a tensor of fewer than no entries": raw(described(shape=[-2])),
    "a shape in words": raw(described(shape="2")),
    "a type that is not known": raw(described(dtype="PY")),
    "offsets that overlap": raw(described(data_offsets=[0, 4]), bytes(8)),
    "offsets beyond the file": raw(described(data_offsets=[2**40, 2**40 + 8]), bytes(8)),
    "another header": raw({"__metadata__": {"bayesmp": "[]", "checksum": "0", "checksums": "{}"}}),
}


@pytest.mark.parametrize("name", RAW, ids=lambda part: part.replace(" ", "_"))
def test_a_forged_head_is_refused(name, tmp_path, little_memory):
    path = tmp_path / damage.NAME
    path.write_bytes(RAW[name])
    with pytest.raises(persistence.DamagedFileError, match=damage.NAME) as caught:
        bmp.load(path)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("name", ["pipe", "folder", "device"])
def test_what_is_no_file_is_not_read(name, tmp_path):
    """A pipe would have been waited for, for ever."""
    path = tmp_path / "model"
    {"pipe": lambda: os.mkfifo(path), "folder": path.mkdir, "device": lambda: path.symlink_to("/dev/zero")}[name]()
    with pytest.raises(persistence.DamagedFileError, match=f"model' is a {name}, expected a file"):
        bmp.load(path)


@pytest.mark.parametrize("kind", damage.KINDS)
def test_a_damaged_file_is_refused(kind, tmp_path):
    """Some hundred damages of each kind of file; `python -m benchmarks files` tries as many as one likes. One in a
    thousand used to load as something else, or ended in an error that said nothing of a file."""
    wrong = []
    counts = damage.try_damages(kind, 100, tmp_path, tell=wrong.append, step=61)
    assert wrong == [] and counts[damage.REFUSED] > 200 and counts[damage.SAME] == 0


@pytest.mark.parametrize("kind", damage.KINDS)
def test_forgeries_made_at_random(kind, tmp_path):
    """Any change of the header or of tensors: refused, or what the library may have written."""
    wrong = []
    counts = damage.try_forgeries(kind, 40, tmp_path, tell=wrong.append)
    assert wrong == [] and counts[damage.REFUSED] > 25
