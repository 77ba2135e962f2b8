"""What becomes of damaged and of forged files, of every kind. `python -m benchmarks files --damages N --forgeries N`

Damaged: bytes flipped, cut off, added, moved at random places, and one after the other in the header. Such a file must
be refused by an error of the library that names it. One that loads must be the same to the last bit: what was loaded is
saved again and compared.

Forged: another header or other tensors, with checksums that fit. Such a file must be refused, too, or be one that the
library may have written: what it says is then what is loaded, and predictions are finite numbers. Neither may take much
memory.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import random
import resource
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bayesmp as bmp
import bayesmp.tables
from bayesmp.basics import persistence

REFUSED, SAME = "refused", "loads what it says"
NAMELESS, RAW, OTHER, UNSOUND = "refused, not named", "raw error", "loads another", "no predictions"
OUTCOMES = (REFUSED, SAME, NAMELESS, RAW, OTHER, UNSOUND)  # the first two are right
ROOM = 1_000_000_000  # bytes beyond what is in use, for a file of some kilobytes
NAME = "epoch-00000002.safetensors"  # of every file, so that a run's can be found as a checkpoint


@dataclass(frozen=True)
class Kind:
    """A kind of file: how one is made, how it is read and written again, and what it predicts."""

    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    write: Callable[[Any, Path], None]
    predict: Callable[[Any], torch.Tensor]
    is_compact: bool = False  # then it is read as a file of another form


def rows(n: int = 30) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Inputs (n, 3) and targets (n, 1)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    return x, x[:, :1] - 2.0 * x[:, 1:2] + 0.3 * rng.normal(size=(n, 1))


def network(head: Any = None) -> bmp.Network:
    """A small one."""
    return bmp.Network([bmp.Linear(3, 4), bmp.ReLU(), bmp.Linear(4, 1)], head or bmp.Regression("learn"))


def _run() -> bmp.Trainer:
    run = bmp.Trainer(network(), *rows(), batch_size=8)
    run.run(2)
    return run


def _make_model(path: Path) -> None:
    _run().network.as_prior().save(path)


def _make_estimator(path: Path) -> None:
    x, y = rows()
    bmp.MPClassifier((4,), epochs=2, random_state=0).fit(x, np.where(y[:, 0] > 0.0, "yes", "no")).save(path)


def _make_compact(path: Path) -> None:
    x, y = rows()
    bmp.MPRegressor((8,), epochs=2, random_state=0).fit(x, y[:, 0]).save(path, compact=True)


def _make_table(path: Path) -> None:
    import pandas

    from bayesmp.tables import Target
    from bayesmp.tables.model import TableModel

    x, y = rows()
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": np.where(x[:, 2] > 0.0, "up", "down")})
    target = Target("y", "regression")
    TableModel.fit(frame, y[:, 0], target, hidden=(4,), n_networks=2, epochs=2, random_state=0).save(path)


def _read_table(path: Path) -> Any:
    from bayesmp.tables.model import TableModel

    return TableModel.load(path)


def _save(found: Any, path: Path) -> None:
    found.save(path)


def _predict_table(model: Any) -> torch.Tensor:
    import pandas

    known = model.predict(pandas.DataFrame({"a": [0.3, 1.0], "b": [-2.0, 0.0], "c": ["up", "other"]})).known
    return torch.cat([known.mean, known.std])


def _predict_regression(model: Any) -> torch.Tensor:
    return torch.as_tensor(np.concatenate(model.predict(rows()[0], return_std=True)))


def _predict_network(network: Any) -> torch.Tensor:
    known = network.predict(rows()[0])
    return torch.cat([known.mean, known.std])


def _predict_run(run: Any) -> torch.Tensor:
    return _predict_network(run.network)


KINDS = {
    "model": Kind(_make_model, bmp.load, _save, _predict_network),
    "run": Kind(lambda path: _run().save(path), lambda path: bmp.Trainer.load(path, *rows()), _save, _predict_run),
    "checkpoint": Kind(
        lambda path: _run().save(path), lambda path: bmp.Trainer.resume(path.parent, *rows()), _save, _predict_run
    ),
    "estimator": Kind(
        _make_estimator, bmp.MPClassifier.load, _save, lambda model: torch.as_tensor(model.predict_proba(rows()[0]))
    ),
    "compact": Kind(_make_compact, bmp.MPRegressor.load, _save, _predict_regression, is_compact=True),
    "table": Kind(_make_table, _read_table, _save, _predict_table),
}


# --- damages ---------------------------------------------------------------------------------------------------------


def damages(content: bytes, n: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """What was done, and the content after it; half of it within the header, and most of it one byte."""
    rng = random.Random(seed)
    head = 8 + int.from_bytes(content[:8], "little")
    for _ in range(n):
        changed, stop = bytearray(content), head if rng.random() < 0.5 else len(content)
        at = rng.randrange(8) if rng.random() < 0.05 else rng.randrange(stop)
        size = rng.choice((1, 1, 2, 4, 8, 64))
        how = rng.choice(("bit", "bit", "bit", "byte", "digit", "cut", "add", "drop", "insert", "zero", "swap"))
        if how == "bit":
            changed[at] ^= 1 << rng.randrange(8)
        elif how == "byte":
            changed[at] = rng.randrange(256)
        elif how == "digit":  # another name, or another number
            changed[at] = rng.choice(b'0123456789abcxyz_."-+e')
        elif how == "cut":
            del changed[at:]
        elif how == "add":
            changed += rng.choice((bytes(size), rng.randbytes(size), content))
        elif how == "drop":
            del changed[at : at + size]
        elif how == "insert":
            changed[at:at] = rng.randbytes(size)
        elif how == "zero":
            changed[at : at + size] = bytes(len(changed[at : at + size]))
        else:
            other = rng.randrange(stop)
            first, second = changed[at : at + size], changed[other : other + size]
            changed[at : at + size], changed[other : other + size] = second, first
        if changed != content:
            yield f"{how} of {size} at {at}", bytes(changed)


def every_byte(content: bytes, step: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """One bit of every byte of the header flipped, every 20th of the rest; of every step-th; and cut off or with a byte
    more every ten steps."""
    rng = random.Random(seed)
    head = 8 + int.from_bytes(content[:8], "little")
    for at in [*range(0, head, step), *range(head, len(content), 20 * step)]:
        changed = bytearray(content)
        changed[at] ^= 1 << rng.randrange(8)
        yield f"bit at {at}", bytes(changed)
        if at % (10 * step) == 0:
            yield f"cut at {at}", content[:at]
            yield f"a byte more at {at}", content[:at] + rng.randbytes(1) + content[at:]


# --- forgeries -------------------------------------------------------------------------------------------------------

DEEP: list[Any] = []
for _ in range(50):
    DEEP = [DEEP]
JUNK = (None, True, False, -1, 0, 1, 2, 7, 0.5, -2.5, 10**6, 10**9, 2**63 - 1, 10**30, 5e-324, 1e30, 1e308, math.nan)
JUNK += (
    math.inf,
    -math.inf,
    "",
    "x",
    "os.system",
    "Linear",
    "float64",
    "x" * 10_000,
    [],
    {},
    [0],
    ["x"],
    {"x": 1},
    DEEP,
)
NUMBERS = (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-320, 1e300, 7.0)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool)


def places(found: Any, road: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The roads to all entries of a header."""
    entries = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for name, part in entries:
        yield (*road, name)
        yield from places(part, (*road, name))


def forge_header(header: dict[str, Any], rng: random.Random) -> str:
    """Change one entry, and say what was done."""
    road = rng.choice([road for road in places(header) if road not in (("library",), ("torch",))])
    at = header
    for name in road[:-1]:
        at = at[name]
    old, how = at[road[-1]], rng.choice(("junk", "junk", "number", "number", "drop", "add", "other"))
    if how == "number" and isinstance(old, (int, float)) and not isinstance(old, bool):
        at[road[-1]] = rng.choice((old + 1, old - 1, -old, 2 * old, 10**6 * old, float(old), 0.5 * old))
    elif how == "drop":
        del at[road[-1]]
    elif how == "add" and isinstance(old, (dict, list)):
        old.append(rng.choice(JUNK)) if isinstance(old, list) else old.update({"more": rng.choice(JUNK)})
    elif how == "other":
        other = rng.choice(list(places(header)))
        value = header
        for name in other:
            value = value[name]
        at[road[-1]] = copy.deepcopy(value)
    else:
        at[road[-1]] = copy.deepcopy(rng.choice(JUNK))
    return f"{how} at {'.'.join(map(str, road))}"


def forge_tensor(tensors: dict[str, torch.Tensor], rng: random.Random) -> str:
    """Change one tensor, and say what was done."""
    name = rng.choice(sorted(tensors))
    old = tensors[name]
    how = rng.choice(("number", "number", "number", "drop", "rename", "add", "dtype", "shape", "swap", "long"))
    if how == "number" and old.is_floating_point() and old.numel() > 0:
        changed = old.clone()
        at = rng.choice((slice(None), rng.randrange(old.numel())))
        changed.view(-1)[at] = torch.tensor(rng.choice(NUMBERS), dtype=torch.float64).to(old.dtype)
        tensors[name] = changed
    elif how == "drop":
        del tensors[name]
    elif how == "rename":
        tensors[name + "x"] = tensors.pop(name)
    elif how == "dtype":
        tensors[name] = old.to(rng.choice(DTYPES))
    elif how == "shape":
        tensors[name] = rng.choice((old.reshape(-1), old[None], old[:-1] if old.ndim else old[None]))
    elif how == "swap":
        other = rng.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], old
    elif how == "long":
        tensors[name] = torch.zeros((100_000, *old.shape[1:]), dtype=old.dtype)
    else:
        tensors["more"] = old
    return f"{how} of {name}"


def forged(path: Path, rng: random.Random, header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str:
    """Write a file whose checksums fit, with one to three changes; what was done."""
    header, tensors = copy.deepcopy(header), dict(tensors)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        done.append(forge_header(header, rng) if rng.random() < 0.6 else forge_tensor(tensors, rng))
    kind = header.pop("kind", "model")
    persistence.write(path, kind=kind, header=header, tensors=tensors)
    return ", ".join(done)


@contextmanager
def little_memory() -> Iterator[None]:
    """No more than ROOM can be asked for."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def try_forgeries(
    name: str, n: int, folder: Path, seed: int = 0, tell: Callable[[str], None] = lambda line: None
) -> Counter[str]:
    """Forge a file of this kind n times, and count the outcomes; those that are wrong are told."""
    kind, path, rng, counts = KINDS[name], folder / NAME, random.Random(seed), Counter[str]()
    kind.make(path)
    with persistence.opened(path, kinds=("model", "run", "estimator")) as file:
        header = json.loads(json.dumps(file.header))
        tensors = {part: file.tensor(part, is_finite=False) for part in file.names()}
    with little_memory():
        for _ in range(n):
            how = forged(path, rng, header, tensors)
            found, said = outcome(kind, path, None if kind.is_compact else path.read_bytes())
            counts[found] += 1
            if found not in (REFUSED, SAME):
                tell(f"{name}, {how}: {found}. {said[:300]}")
    return counts


# --- outcomes --------------------------------------------------------------------------------------------------------


def outcome(kind: Kind, path: Path, whole: bytes | None) -> tuple[str, str]:
    """What reading a file comes to, and what was said; `whole` is what must be written if it is read and saved."""
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = kind.read(path)
    except Exception as error:
        said = " ".join([str(error), *(str(warning.message) for warning in told)])
        if not isinstance(error, (ValueError, FileNotFoundError)):
            return RAW, f"{type(error).__name__}: {said}"
        return (REFUSED if path.name in said else NAMELESS), f"{type(error).__name__}: {said}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                predicted = kind.predict(found)
            except bmp.tables.TableError:  # the columns have other names now
                predicted = torch.zeros(1)
            if not bool(predicted.isfinite().all()):
                return UNSOUND, "no finite numbers"
        return (SAME if whole is None or saved_again(kind, found, path) == whole else OTHER), ""
    except Exception as error:
        return UNSOUND, f"{type(error).__name__}: {error}"


def saved_again(kind: Kind, found: Any, path: Path) -> bytes:
    """What was read, as it is written."""
    again = path.with_name("again")
    kind.write(found, again)
    content = again.read_bytes()
    again.unlink()
    return content


def try_damages(
    name: str, n: int, folder: Path, seed: int = 0, tell: Callable[[str], None] = lambda line: None, step: int = 0
) -> Counter[str]:
    """Damage a file of this kind n times at random, and, if a step is given, byte by byte; count the outcomes, and tell
    those that are wrong."""
    kind, path = KINDS[name], folder / NAME
    kind.make(path)
    content = path.read_bytes()
    whole, counts = saved_again(kind, kind.read(path), path), Counter[str]()
    all_bytes = every_byte(content, step, seed) if step > 0 else ()
    for how, damaged in itertools.chain(damages(content, n, seed), all_bytes):
        path.write_bytes(damaged)
        found, said = outcome(kind, path, whole)
        counts[found] += 1
        if found not in (REFUSED, SAME):
            tell(f"{name}, {how}: {found}. {said[:300]}")
    return counts


def main(argv: Sequence[str] = ()) -> None:
    """Print a table of outcomes; exit status 1 if one was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks files", description=__doc__)
    parser.add_argument("--damages", type=int, default=2_000, metavar="N", help="at random places, in all")
    parser.add_argument("--step", type=int, default=0, metavar="N", help="also every N-th byte of each header; 0: none")
    parser.add_argument("--forgeries", type=int, default=400, metavar="N", help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tell", action="store_true", help="show each that came out wrong")
    options = parser.parse_args(argv)
    print(f"{'file':<20}" + "".join(f"{outcome:>20}" for outcome in OUTCOMES))
    n_wrong, tell = 0, print if options.tell else lambda line: None
    n_damages, n_forgeries = (-(-n // len(KINDS)) for n in (options.damages, options.forgeries))
    for name in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            found = {
                "damaged": try_damages(name, n_damages, Path(folder), options.seed, tell, options.step),
                "forged": try_forgeries(name, n_forgeries, Path(folder), options.seed, tell),
            }
        for how, counts in found.items():
            row = f"{name + ', ' + how:<20}" + "".join(f"{counts[outcome]:>20,}" for outcome in OUTCOMES)
            print(row, flush=True)
            n_wrong += sum(counts[outcome] for outcome in OUTCOMES[2:])
    print(f"\n{n_wrong:,} came out wrong" if n_wrong else "\nnone came out wrong")


if __name__ == "__main__":
    main()
