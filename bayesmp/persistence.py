"""The file format: a safetensors file, whose metadata hold one JSON header that says what the tensors are. No pickle.

    metadata["bayesmp"]    {"format": 2, "library": "0.1.0", "torch": "2.6.0", "kind": "model", ...}
    metadata["checksum"]   CRC-32 of that text
    metadata["checksums"]  {tensor name: CRC-32 of its bytes}

The kind is "model", "run" or "estimator". A run contains its model, so both can be read as a model. What the rest of
the header says is up to the classes that save themselves: `Network.save`, `Trainer.save`, `SavedEstimator.save`.

The writer is our own: it streams each tensor from where it lives, so a store of sites that does not fit in memory can
be saved, too. Any safetensors reader can read the result.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bayesmp import atomic

FORMAT = 2  # of the header and the tensors' names; a file with a higher one is refused
BLOCK = 2**22  # entries moved at a time, so that a store of any size passes through little memory
CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}

PathLike = atomic.PathLike
TABLE = "table"  # entry of the header of what `bayesmp fit` wrote: an estimator, and what a table's columns mean
EXPECTED = {"model": "a network", "run": "a training run", "estimator": "an estimator"}


class DamagedFileError(ValueError):
    """A file that is not, or no longer, what bayesmp wrote."""


# --- writing ---------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def write(path: PathLike, *, kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file in one piece: it appears under its name when it is complete and on disk, and an earlier one stays
    until then, whenever the process ends. A full disk or a folder that is read-only is an OSError with the path.
    """
    from bayesmp import __version__  # known only after all modules are imported

    header = {"format": FORMAT, "library": __version__, "torch": torch.__version__, "kind": kind, **header}
    text = json.dumps(header, default=_plain)
    metadata = {"bayesmp": text, "checksum": _checksum([text.encode()])}
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # widest first: all are aligned
    checksums = dict.fromkeys(ordered, "0" * 8)
    with atomic.writing(path) as file:
        file.write(_preamble(metadata, checksums, ordered))
        for name, tensor in ordered.items():
            checksums[name] = _checksum(_written(_blocks(tensor), file))
        file.seek(0)
        file.write(_preamble(metadata, checksums, ordered))


def _preamble(metadata: dict[str, str], checksums: dict[str, str], tensors: dict[str, Tensor]) -> bytes:
    """Length and header of a safetensors file; as long for one set of checksums as for another."""
    layout: dict[str, Any] = {"__metadata__": {**metadata, "checksums": json.dumps(checksums)}}
    start = 0
    for name, tensor in tensors.items():
        stop = start + tensor.numel() * tensor.element_size()
        layout[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(layout).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _blocks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, a block at a time."""
    for block in tensor.detach().reshape(-1).split(BLOCK):
        yield memoryview(block.cpu().contiguous().view(torch.uint8).numpy())


def _written(blocks: Iterable[memoryview], file: BinaryIO) -> Iterator[memoryview]:
    for block in blocks:
        file.write(block)
        yield block


def _checksum(blocks: Iterable[bytes | memoryview]) -> str:
    found = 0
    for block in blocks:
        found = zlib.crc32(block, found)
    return f"{found:08x}"


def as_saved(part: Any) -> Any:
    """A part of a header as it comes back from a file."""
    return json.loads(json.dumps(part, default=_plain))


def _plain(value: Any) -> Any:
    """A number of NumPy or torch as Python's own, for JSON."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} cannot be saved: config() must hold numbers, strings, booleans, None and lists of them")


# --- reading ---------------------------------------------------------------------------------------------------------


@contextmanager
def opened(path: PathLike, *, kinds: tuple[str, ...]) -> Iterator[SavedFile]:
    """A file of one of these kinds, or an error that says what it is instead. Its tensors are to be copied before the
    end of the `with`."""
    path = os.fspath(path)
    if os.path.isdir(path):
        raise DamagedFileError(
            f"{path!r} is a folder, expected a file; Trainer.resume reads the newest checkpoint of a folder"
        )
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path!r}")
    try:
        content = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise DamagedFileError(
            f"{path!r} is not a complete safetensors file ({error}); it is another kind of file, or was cut short when "
            "it was copied"
        ) from error
    with content:
        file = SavedFile(path, content)
        if file.header["kind"] not in kinds:
            raise ValueError(file.misfit(" or ".join(EXPECTED[kind] for kind in kinds)))
        yield file


def _content(file: SavedFile) -> tuple[str, str]:
    """What a file holds, and how to read it, in words."""
    kind, path = file.header["kind"], file.path
    if TABLE in file.header:
        road = f"use it with `bayesmp predict {path} TABLE`, or in Python bayesmp.table_model.TableModel.load({path!r})"
        return "a model of a table that `bayesmp fit` made", road
    if kind == "estimator":
        name = file.header["estimator"]["type"]
        return f"an {name}", f"read it with bayesmp.{name}.load({path!r})"
    if kind == "run":
        return "a training run", f"read it with bayesmp.Trainer.load({path!r}, x, y), its network with bayesmp.load"
    return "a network", f"read it with bayesmp.load({path!r})"


class Header(dict[str, Any]):
    """What a file says of itself, or of a part; what it does not say is an error with the path."""

    def __init__(self, entries: dict[str, Any], path: str) -> None:
        super().__init__(entries)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self.path!r} does not fit this version of bayesmp: its header says nothing of {name!r}")


def _read_json(text: str) -> dict[str, Any]:
    """The dictionary in a text, empty if there is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class SavedFile:
    """An open file: its header, and its tensors on request."""

    def __init__(self, path: str, content: Any) -> None:
        self.path = path
        self._content, self._prefix = content, ""
        metadata = content.metadata() or {}
        if "bayesmp" not in metadata:
            raise DamagedFileError(f"{path!r} was not saved by bayesmp: its header is missing")
        text, checksums = metadata["bayesmp"], _read_json(metadata.get("checksums", ""))
        header = _read_json(text)
        if _checksum([text.encode()]) != metadata.get("checksum") or not checksums or not header:
            raise DamagedFileError(f"{path!r} is damaged: its header does not match its checksum")
        self._checksums: dict[str, str] = checksums
        parts = {name: Header(part, path) if isinstance(part, dict) else part for name, part in header.items()}
        self.header = Header(parts, path)
        if not isinstance(self.header["format"], int) or self.header["format"] > FORMAT:
            raise ValueError(
                f"{path!r} has format {self.header['format']}, written by bayesmp {self.header['library']}; this "
                f"version reads formats up to {FORMAT}: upgrade bayesmp"
            )

    def misfit(self, expected: str) -> str:
        """A sentence that says what the file holds instead of what was expected, and how to read it."""
        what, road = _content(self)
        return f"{self.path!r} holds {what}, expected {expected}; {road}"

    def part(self, prefix: str, **entries: Any) -> SavedFile:
        """A part of the file as a file of its own: tensors whose names begin so, and a header with these entries."""
        found = copy.copy(self)
        found._prefix = self._prefix + prefix
        parts = {name: Header(part, self.path) if isinstance(part, dict) else part for name, part in entries.items()}
        found.header = Header({**self.header, **parts}, self.path)
        return found

    def names(self) -> list[str]:
        """Names of all tensors in the file."""
        return [name.removeprefix(self._prefix) for name in self._checksums if name.startswith(self._prefix)]

    def tensor(self, name: str) -> Tensor:
        """One tensor as it was saved, on the CPU, or a ValueError if its bytes have changed since."""
        name = self._prefix + name
        try:
            found: Tensor = self._content.get_tensor(name)
        except SafetensorError as error:
            raise DamagedFileError(
                f"{self.path!r} has no tensor {name!r}: it is damaged, or of another version"
            ) from error
        if _checksum(_blocks(found)) != self._checksums.get(name):
            raise DamagedFileError(f"{self.path!r} is damaged: the tensor {name!r} does not match its checksum")
        return found

    def fill(self, target: Tensor, name: str) -> None:
        """Copy a saved tensor into one of the same shape and precision."""
        found = self.tensor(name)
        if found.shape != target.shape or found.dtype != target.dtype:
            raise ValueError(
                f"{self.path!r} does not fit: {name!r} must be {target.dtype} of shape {tuple(target.shape)}, got "
                f"{found.dtype} of shape {tuple(found.shape)}; it was saved by bayesmp {self.header['library']}, whose "
                "runs may differ"
            )
        target.copy_(found)


# --- layers, heads and data ------------------------------------------------------------------------------------------


def describe(part: Any, builtin: Mapping[str, type]) -> dict[str, Any]:
    """Type and constructor arguments of a layer or a head; a type of the user's own under its full name."""
    cls, args = type(part), part.config()
    try:
        inspect.signature(cls).bind(**args)
    except TypeError as error:
        raise TypeError(
            f"{cls.__name__} cannot be saved: its config() must return the arguments of its constructor, but {error}"
        ) from None
    is_builtin = builtin.get(cls.__name__) is cls
    return {"type": cls.__name__ if is_builtin else f"{cls.__module__}.{cls.__qualname__}", "args": args}


def rebuild(described: dict[str, Any], builtin: Mapping[str, type], classes: Iterable[type]) -> Any:
    """The layer or head that was described; `classes` are the user's own."""
    name: str = described["type"]
    if "." in name:
        known: Mapping[str, type] = {cls.__name__: cls for cls in classes}
        short = name.rpartition(".")[2]
        remedy = f"pass the class, classes=[{short}]"
    else:
        known, short, remedy = builtin, name, "upgrade bayesmp"
    if short not in known:
        raise ValueError(f"the file needs {name}, which is not part of this bayesmp; {remedy}")
    try:
        return known[short](**described["args"])
    except TypeError as error:
        raise ValueError(f"the file does not fit this version of bayesmp: {error}") from error


def fingerprint(tensor: Tensor) -> str:
    """A short text that differs for tensors of different bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for block in _blocks(tensor):
        digest.update(block)
    return digest.hexdigest()
