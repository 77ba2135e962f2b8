"""Small runs with checkpoints, and files of them changed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import bayesmp as bmp
from bayesmp.basics import persistence
from tests.helpers import linear_data, mlp

X, Y = linear_data(30)


def network(seed: int = 0, **options) -> bmp.Network:
    return mlp([3, 4, 1], bmp.Regression("learn"), seed=seed, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def saved(*epochs: int) -> list[str]:
    return [f"epoch-{epoch:08d}.safetensors" for epoch in epochs]


def rewritten(path: Path, change) -> None:
    """The file with another header, whose checksum is right, and other tensors."""
    with persistence.opened(path, kinds=("run",)) as file:
        header = json.loads(json.dumps(file.header))
        tensors = {name: file.tensor(name).clone() for name in file.names()}
    change(header, tensors)
    kind = header.pop("kind")
    persistence.write(path, kind=kind, header=header, tensors=tensors)
