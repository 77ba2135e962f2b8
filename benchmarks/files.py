"""What becomes of damaged files: bytes flipped, cut off, added, moved, in files of every kind. `python -m benchmarks
files --flips N`

A damaged file must be refused by an error of the library that names it. One that loads must be the same to the last
bit: what was loaded is saved again and compared.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bayesmp as bmp

REFUSED, SAME = "refused", "loads the same"
NAMELESS, RAW, OTHER = "refused, not named", "raw error", "loads another"
OUTCOMES = (REFUSED, SAME, NAMELESS, RAW, OTHER)  # the first two are right
NAME = "epoch-00000002.safetensors"  # of every file, so that a run's can be found as a checkpoint


@dataclass(frozen=True)
class Kind:
    """A kind of file: how one is made, and how it is read and written again."""

    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    write: Callable[[Any, Path], None]


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


KINDS = {
    "model": Kind(_make_model, bmp.load, _save),
    "run": Kind(lambda path: _run().save(path), lambda path: bmp.Trainer.load(path, *rows()), _save),
    "checkpoint": Kind(lambda path: _run().save(path), lambda path: bmp.Trainer.resume(path.parent, *rows()), _save),
    "estimator": Kind(_make_estimator, bmp.MPClassifier.load, _save),
    "table": Kind(_make_table, _read_table, _save),
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


def outcome(kind: Kind, path: Path, whole: bytes, content: bytes) -> tuple[str, str]:
    """What reading a file of this content comes to, and what was said; `whole` is what an undamaged one is saved as."""
    path.write_bytes(content)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = kind.read(path)
    except Exception as error:
        said = " ".join([str(error), *(str(warning.message) for warning in told)])
        if not isinstance(error, (ValueError, FileNotFoundError)):
            return RAW, f"{type(error).__name__}: {said}"
        return (REFUSED if path.name in said else NAMELESS), f"{type(error).__name__}: {said}"
    return (SAME if saved_again(kind, found, path) == whole else OTHER), ""


def saved_again(kind: Kind, found: Any, path: Path) -> bytes:
    """What was read, as it is written."""
    again = path.with_name("again")
    kind.write(found, again)
    content = again.read_bytes()
    again.unlink()
    return content


def try_damages(
    name: str, n: int, folder: Path, seed: int = 0, tell: Callable[[str], None] = lambda line: None
) -> Counter[str]:
    """Damage a file of this kind n times, and count the outcomes; those that are wrong are told."""
    kind, path = KINDS[name], folder / NAME
    kind.make(path)
    content = path.read_bytes()
    whole, counts = saved_again(kind, kind.read(path), path), Counter[str]()
    for how, damaged in damages(content, n, seed):
        found, said = outcome(kind, path, whole, damaged)
        counts[found] += 1
        if found not in (REFUSED, SAME):
            tell(f"{name}, {how}: {found}. {said[:300]}")
    return counts


def main(argv: Sequence[str] = ()) -> None:
    """Print a table of outcomes; exit status 1 if one was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks files", description=__doc__)
    parser.add_argument("--flips", type=int, default=2_000, metavar="N", help="damages in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tell", action="store_true", help="show each that came out wrong")
    options = parser.parse_args(argv)
    print(f"{'file':<12}" + "".join(f"{outcome:>20}" for outcome in OUTCOMES))
    n_wrong, each = 0, -(-options.flips // len(KINDS))
    for name in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            tell = print if options.tell else lambda line: None
            counts = try_damages(name, each, Path(folder), options.seed, tell)
        print(f"{name:<12}" + "".join(f"{counts[outcome]:>20,}" for outcome in OUTCOMES), flush=True)
        n_wrong += sum(counts[outcome] for outcome in OUTCOMES[2:])
    print(f"\n{n_wrong:,} came out wrong" if n_wrong else "\nnone came out wrong")


if __name__ == "__main__":
    main()
