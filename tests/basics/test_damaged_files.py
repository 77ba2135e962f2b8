"""Damaged and old files: a clear error each, and nothing changes."""

from __future__ import annotations

import itertools
import random
import warnings

import pytest
import safetensors.torch
import torch

import bayesmp as bmp
from bayesmp.basics import persistence
from tests.basics.test_persistence import assert_same_run
from tests.checkpointed_runs import X, Y, network, rewritten, saved
from tests.helpers import assert_unchanged, snapshot


def damages():
    """(what, how) for more than 200 files; how changes a whole one."""
    rng = random.Random(0)

    def cut(path, share):
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    def flip(path, share, bit, *, within):
        content = bytearray(path.read_bytes())
        head = 8 + int.from_bytes(content[:8], "little")
        start, stop = {"length": (0, 8), "header": (8, head), "tensors": (head, len(content))}[within]
        content[start + int(share * (stop - start))] ^= 1 << bit
        path.write_bytes(content)

    def write(path, content):
        path.write_bytes(content)

    def to_folder(path):
        path.unlink()
        path.mkdir()

    def drop(name, part=None):
        def change(header, tensors):
            (tensors if part == "tensors" else header if part is None else header[part]).pop(name)

        return lambda path: rewritten(path, change)

    def cast(name, dtype):
        return lambda path: rewritten(path, lambda header, tensors: tensors.update({name: tensors[name].to(dtype)}))

    def shorten(name):
        return lambda path: rewritten(path, lambda header, tensors: tensors.update({name: tensors[name][:-1]}))

    def say(**entries):
        return lambda path: rewritten(path, lambda header, tensors: header.update(entries))

    def belief(path):
        rewritten(path, lambda header, tensors: header["network"]["belief"].update(n_layers=9))

    def option(path):
        rewritten(path, lambda header, tensors: header["run"]["config"].update(speed=3))

    def layer(path):
        rewritten(path, lambda header, tensors: header["network"]["layers"][0]["args"].update(speed=3))

    for share in [0.0, 1e-4, *(k / 40 for k in range(1, 40)), 0.9999]:
        yield f"cut at {share}", lambda path, share=share: cut(path, share)
    for where, count in (("length", 16), ("header", 60), ("tensors", 70)):
        for k in range(count):
            share, bit = (k + rng.random()) / count, rng.randrange(8)
            yield f"{where} {k}", lambda path, s=share, b=bit, w=where: flip(path, s, b, within=w)
    tensors = ("members", "marginal.tau", "sites.slope", "schedule.mean", "last_mean", "head.grid", "prior.rho")
    for name in tensors:
        yield f"no {name}", drop(name, "tensors")
        yield f"{name} in float16", cast(name, torch.float16)
        yield f"{name} too short", shorten(name)
    for part, entries in (
        (None, ("network", "run", "kind")),
        ("run", ("config", "history", "counters", "refreshed_at", "stopped", "device", "data", "batch_sizes")),
        ("network", ("layers", "head", "seed", "input_shape", "prior", "regime", "belief", "dtype")),
    ):
        for name in entries:
            if name != "kind":
                yield f"no {part} {name}", drop(name, part)
    yield "a later format", say(format=99)
    yield "a format in words", say(format="two")
    yield "an option of another version", option
    yield "a layer of another version", layer
    yield "a belief of more layers", belief
    yield "a model", lambda path: network().save(path)
    yield "empty", lambda path: write(path, b"")
    yield "text", lambda path: write(path, b"epoch,nll\n1,0.3\n" * 200)
    yield "noise", lambda path: write(path, rng.randbytes(5000))
    yield "zeros", lambda path: write(path, bytes(5000))
    yield "another program's", lambda path: safetensors.torch.save_file({"a": torch.ones(3)}, path)
    yield "another program's, our name", lambda path: safetensors.torch.save_file({}, path, {"bayesmp": "[]"})
    yield "a folder", to_folder


def test_200_damaged_files_are_refused_and_nothing_changes(tmp_path):
    """A ValueError each that names the file; nothing foreign, and neither the run in memory nor the network of a `fit`
    is touched. Of flipped bytes in the header some do not matter, such as spaces: then the file loads as it was."""
    run = bmp.Trainer(network(), X, Y, batch_size=8, seed=0)
    run.run(3)
    run.save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    twin = bmp.Trainer.load(tmp_path / "whole", X, Y)
    errors, harmless = {}, []
    for k, (name, damage) in enumerate(damages()):
        folder = tmp_path / str(k)
        folder.mkdir()
        path = folder / saved(3)[0]
        path.write_bytes(whole)
        damage(path)
        before = snapshot(run.network)
        try:
            loaded = bmp.Trainer.load(path, X, Y)
        except ValueError as error:
            errors[name] = error
        else:
            assert name.startswith("header"), name
            assert_same_run(loaded, twin)
            harmless.append(name)
        assert_unchanged(run.network, before)
    assert len(errors) >= 200 and harmless == []
    for name, error in errors.items():
        assert type(error) in (ValueError, persistence.DamagedFileError, persistence.UnfitFileError), name
        assert saved(3)[0] in str(error) or "the file does not fit" in str(error), (name, error)
        assert len(str(error)) < 700, name
    assert_same_run(run, twin)
    run.run(2)
    twin.run(2)
    assert_same_run(run, twin)


def test_fit_and_resume_meet_damaged_files_as_load_does(tmp_path):
    """Files that are whole but do not fit are errors, others are skipped; the network of `fit` is as it was."""
    run = bmp.Trainer(network(), X, Y, batch_size=8)
    run.run(2)
    run.save(tmp_path / "whole")
    net = network()
    bmp.fit(net, X, Y, epochs=1, batch_size=8)
    before = snapshot(net)
    for k, (name, damage) in enumerate(itertools.islice(damages(), 0, None, 9)):
        if name == "no run device":  # only `load` needs it
            continue
        path = tmp_path / str(k) / saved(2)[0]
        path.parent.mkdir()
        path.write_bytes((tmp_path / "whole").read_bytes())
        damage(path)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                bmp.Trainer.resume(path.parent, X, Y)
            except ValueError:
                is_skipped = any("skipped" in str(warning.message) for warning in told)
                if not is_skipped:
                    with pytest.raises(ValueError):  # noqa: PT011 - the words are load's, tested above
                        bmp.fit(net, X, Y, epochs=2, batch_size=8, checkpoint=path.parent)
                    assert_unchanged(net, before)
            else:
                assert name.startswith("header"), name
