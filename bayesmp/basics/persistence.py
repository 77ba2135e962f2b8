"""The file format: a safetensors file, whose metadata hold one JSON header that says what the tensors are. No pickle.

    metadata["bayesmp"]    {"format": 3, "library": "0.2.0", "torch": "2.6.0", "kind": "model", ...}
    metadata["checksums"]  {tensor name: CRC-32 of its bytes}
    metadata["checksum"]   CRC-32 of all that stands before the tensors, with zeros in its own place

The kind is "model", "run" or "estimator". A run contains its model, so both can be read as a model. What the rest of
the header says is up to the classes that save themselves: `Network.save`, `Trainer.save`, `SavedEstimator.save`.

The writer is our own: it streams each tensor from where it lives, so a store of sites that does not fit in memory can
be saved, too. Any safetensors reader can read the result.

The reader is our own, too. Nothing in a file is believed before it is checked, and a checksum guards against accidents
only: whoever forges a file can make that fit, too. So three questions are asked, each in one place:

- Is it, to the letter, what `write` makes of what it says (`_open_head`)? No byte is unused: no gap, no other spelling.
- Does each entry of the header have the type and the range that it must have (`SavedFile.entry`, typed.py)?
- Does each tensor have the type, the shape and the range that the structure asks for (`SavedFile.tensor`)? Memory is
  asked for afterwards, so there is never more of it than there are bytes in the file.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TypeVar

import torch
from torch import Tensor

from bayesmp.basics import atomic, typed

FORMAT = 3  # of the header and the tensors' names; a file with another one is refused
BLOCK = 2**22  # entries moved at a time, so that a store of any size passes through little memory
LARGEST_HEAD = 100_000_000  # bytes before the tensors; what safetensors allows, too
CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {code: dtype for dtype, code in CODES.items()}
NO_CHECKSUM = "0" * 8  # as long as one

PathLike = atomic.PathLike
TABLE = "table"  # entry of the header of what `bayesmp fit` wrote: an estimator, and what a table's columns mean
EXPECTED = {"model": "a network", "run": "a training run", "estimator": "an estimator"}

T = TypeVar("T")


class DamagedFileError(ValueError):
    """A file that is not, or no longer, what bayesmp wrote."""


class UnfitFileError(ValueError):
    """A file that is whole, but says what this version of bayesmp would not write."""


# --- writing ---------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def write(path: PathLike, *, kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file in one piece: it appears under its name when it is complete and on disk, and an earlier one stays
    until then, whenever the process ends. A full disk or a folder that is read-only is an OSError with the path.
    """
    from bayesmp import __version__  # known only after all modules are imported

    header = {"format": FORMAT, "library": __version__, "torch": torch.__version__, "kind": kind, **header}
    text = json.dumps(header, default=_plain)
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # widest first: all are aligned
    layout = {name: Entry(part.dtype, tuple(part.shape)) for name, part in ordered.items()}
    checksums = dict.fromkeys(ordered, NO_CHECKSUM)
    with atomic.writing(path) as file:
        file.write(_head(text, checksums, layout))
        for name, tensor in ordered.items():
            checksums[name] = _checksum(_written(_blocks(tensor), file))
        file.seek(0)
        file.write(_head(text, checksums, layout))


@dataclass(frozen=True)
class Entry:
    """What a tensor is."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _head(text: str, checksums: dict[str, str], layout: dict[str, Entry]) -> bytes:
    """All that stands before the tensors; as long for one set of checksums as for another."""
    head = _preamble({"bayesmp": text, "checksum": NO_CHECKSUM, "checksums": json.dumps(checksums)}, layout)
    return _preamble({"bayesmp": text, "checksum": _checksum([head]), "checksums": json.dumps(checksums)}, layout)


def _preamble(metadata: dict[str, str], layout: dict[str, Entry]) -> bytes:
    """Length and header of a safetensors file."""
    described: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, entry in layout.items():
        stop = start + entry.n_bytes
        described[name] = {"dtype": CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _blocks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, a block at a time."""
    for block in tensor.detach().reshape(-1).split(BLOCK):
        # a copy: of a single number torch takes any stride for contiguous, and `view` does not
        block = block.cpu().clone(memory_format=torch.contiguous_format)
        yield memoryview(block.view(torch.uint8).numpy())


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
    """A file of one of these kinds, or an error that says what it is instead. Its tensors are read while the `with`
    lasts."""
    path = os.fspath(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path!r}") from None
    except IsADirectoryError:
        raise DamagedFileError(_no_file(path, stat.S_IFDIR)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise DamagedFileError(_no_file(path, stat.S_IFMT(mode)))
    with open(descriptor, "rb", buffering=0) as content:
        file = SavedFile(path, content)
        if file.header["kind"] not in kinds:
            raise ValueError(file.misfit(" or ".join(EXPECTED[kind] for kind in kinds)))
        yield file


def _no_file(path: str, mode: int) -> str:
    hint = "; Trainer.resume reads the newest checkpoint of a folder" if mode == stat.S_IFDIR else ""
    return f"{path!r} is {atomic.KINDS.get(mode, 'no file')}, expected a file{hint}"


def _content(file: SavedFile) -> tuple[str, str]:
    """What a file holds, and how to read it, in words."""
    kind, path = file.header["kind"], file.path
    if TABLE in file.header:
        road = f"use it with `bayesmp predict {path} TABLE`, or in Python "
        road += f"bayesmp.tables.model.TableModel.load({path!r})"
        return "a model of a table that `bayesmp fit` made", road
    if kind == "estimator":
        name = file.estimator_type
        return f"an {name}", f"read it with bayesmp.{name}.load({path!r})"
    if kind == "run":
        return "a training run", f"read it with bayesmp.Trainer.load({path!r}, x, y), its network with bayesmp.load"
    return "a network", f"read it with bayesmp.load({path!r})"


def _read_json(text: str | bytes) -> dict[str, Any]:
    """The object in a text; a ValueError if it is no JSON, or has a name twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name is there twice")
        return found

    try:
        found = json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ValueError("it is too deep") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _open_head(path: str, content: BinaryIO) -> tuple[dict[str, Any], dict[str, str], dict[str, Entry], int]:
    """Header, checksums and tensors of a file, and where these begin; it must be what `write` makes of them."""
    size = os.fstat(content.fileno()).st_size
    length = int.from_bytes(_read_exactly(content, min(8, size), path), "little")
    if size < 8 or length > min(size - 8, LARGEST_HEAD):
        raise DamagedFileError(
            f"{path!r} is not a complete safetensors file; it is another kind of file, or was cut short when it was "
            "copied"
        )
    head = _read_exactly(content, length, path)
    try:
        described = _read_json(head)
        metadata = typed.read(dict[str, str], described.pop("__metadata__", {}), "its metadata")
        layout = {name: _entry(part, name) for name, part in described.items()}
    except ValueError as error:
        raise DamagedFileError(f"{path!r} is damaged, or not a file of bayesmp: {error}") from error
    if "bayesmp" not in metadata:
        raise DamagedFileError(f"{path!r} was not saved by bayesmp: its header is missing")
    text = metadata["bayesmp"]
    try:
        header, checksums = _read_json(text), _read_json(metadata.get("checksums", ""))
        is_ours = _head(text, checksums, layout)[8:] == head
    except ValueError as error:
        raise DamagedFileError(f"{path!r} is damaged: its header is no JSON: {error}") from error
    if isinstance(header.get("format"), int) and header["format"] != FORMAT:  # whose checksum may be another
        raise UnfitFileError(_other_format(path, header))
    if not is_ours:
        raise DamagedFileError(f"{path!r} is damaged: its header does not match its checksum")
    start, n_bytes = 8 + length, sum(entry.n_bytes for entry in layout.values())
    if list(checksums) != list(layout) or start + n_bytes != size:
        raise DamagedFileError(
            f"{path!r} is not a complete safetensors file: its tensors take {n_bytes:,} bytes, it has {size - start:,}"
        )
    return header, checksums, layout, start


def _entry(described: Any, name: str) -> Entry:
    """What a file says of one tensor; its offsets are compared with those that the writer gives."""
    found = typed.read(_Described, described, f"the tensor {name!r}")
    if math.prod(found.shape) > typed.LARGEST:
        raise ValueError(f"the tensor {name!r} has the shape {found.shape}")
    return Entry(DTYPES[found.dtype], tuple(found.shape))


@dataclass(frozen=True)
class _Described:
    dtype: Literal[tuple(DTYPES)]  # type: ignore[valid-type]
    shape: list[typed.Count]
    data_offsets: list[typed.Count]


def _other_format(path: str, header: dict[str, Any]) -> str:
    number, library = header["format"], header.get("library")
    if number > FORMAT:
        remedy = "upgrade bayesmp"
    else:
        remedy = "train the network again, or use that version"
    return f"{path!r} has format {number}, written by bayesmp {library}; this version reads format {FORMAT}: {remedy}"


def _read_exactly(content: BinaryIO, n: int, path: str) -> bytes:
    parts = []
    while n > 0 and (part := content.read(n)):
        parts.append(part)
        n -= len(part)
    if n > 0:
        raise DamagedFileError(f"{path!r} became shorter while it was read")
    return b"".join(parts)


@dataclass(frozen=True)
class _Common:
    format: typed.Positive
    library: str
    torch: str
    kind: Literal["model", "run", "estimator"]


class SavedFile:
    """An open file: its header, and its tensors on request."""

    def __init__(self, path: str, content: BinaryIO) -> None:
        self.path = path
        self._content, self._prefix, self._is_compact = content, "", False
        self.header, self._checksums, self._layout, start = _open_head(path, content)
        self._starts, self._unread = {}, set(self._layout)
        for name, entry in self._layout.items():
            self._starts[name], start = start, start + entry.n_bytes
        with self.understood():
            common = {part: self.header.get(part) for part in _Common.__dataclass_fields__}
            typed.read(_Common, common, "the header")

    @property
    def estimator_type(self) -> str:
        """Which estimator it holds."""
        found = self.header.get("estimator")
        return str(found.get("type")) if isinstance(found, dict) else "estimator"

    def misfit(self, expected: str) -> str:
        """A sentence that says what the file holds instead of what was expected, and how to read it."""
        what, road = _content(self)
        return f"{self.path!r} holds {what}, expected {expected}; {road}"

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Whatever cannot be made of the file is an error that names it."""
        try:
            yield
        except (DamagedFileError, UnfitFileError, OSError, MemoryError):
            raise
        except Exception as error:
            raise self.unfit(str(error)) from error

    def unfit(self, why: str) -> UnfitFileError:
        """The error that says why the file, which is whole, cannot be read."""
        return UnfitFileError(f"{self.path!r} does not fit this version of bayesmp: {why}")

    def entry(self, kind: type[T], name: str) -> T:
        """An entry of the header, of this type (typed.py)."""
        with self.understood():
            if name not in self.header:
                raise ValueError(f"its header says nothing of {name!r}")
            return typed.read(kind, self.header[name], name)

    def check_entries(self, names: Iterable[str]) -> None:
        """Raise unless the header has these entries, beside those that every file has, and no others."""
        found, expected = set(self.header) - set(_Common.__dataclass_fields__), set(names)
        if found != expected:
            raise self.unfit(f"its header must hold {sorted(expected)}, got {sorted(found)}")

    def compact(self, is_compact: bool) -> SavedFile:
        """The file, whose float64 may be kept as float32."""
        found = copy.copy(self)
        found._is_compact = is_compact
        return found

    def part(self, prefix: str, **entries: Any) -> SavedFile:
        """A part of the file as a file of its own: tensors whose names begin so, and a header with these entries."""
        found = copy.copy(self)
        found._prefix = self._prefix + prefix
        found.header = {**self.header, **entries}
        return found

    def names(self) -> list[str]:
        """Names of all tensors in the file."""
        return [name.removeprefix(self._prefix) for name in self._layout if name.startswith(self._prefix)]

    def n_bytes(self, part: str) -> int:
        """What the tensors take whose names hold this."""
        return sum(entry.n_bytes for name, entry in self._layout.items() if part in name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that is in the file."""
        name = self._prefix + name
        if name not in self._layout:
            raise self.unfit(f"it has no tensor {name!r}")
        return self._layout[name].shape

    def tensor(
        self,
        name: str,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        *,
        low: float = -math.inf,
        high: float = math.inf,
        is_finite: bool = True,
    ) -> Tensor:
        """One tensor, on the CPU, or an error if it is not what it should be, or its bytes have changed since.

        Args:
            name: of the tensor.
            shape, dtype: what it must be; any if not given.
            low, high: between which its entries must lie, both included.
            is_finite: whether none of them may be infinite. NaN never comes.
        """
        found_shape, whole = self.shape(name), self._prefix + name
        entry = self._layout[whole]
        is_narrow = self._is_compact and dtype == torch.float64 and entry.dtype == torch.float32
        dtype = torch.float32 if is_narrow else dtype
        if (shape is not None and found_shape != tuple(shape)) or dtype not in (None, entry.dtype):
            wanted = f"{dtype or entry.dtype} of shape {tuple(found_shape if shape is None else shape)}"
            raise self.unfit(f"{whole!r} must be {wanted}, got {entry.dtype} of shape {found_shape}")
        found = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
        self._content.seek(self._starts[whole])
        checksum = 0
        for block in _memory(found):
            left = block
            while len(left) > 0:
                n = self._content.readinto(left)  # type: ignore[attr-defined]
                if not n:
                    raise DamagedFileError(f"{self.path!r} became shorter while it was read")
                left = left[n:]
            checksum = zlib.crc32(block, checksum)
        if f"{checksum:08x}" != self._checksums[whole]:
            raise DamagedFileError(f"{self.path!r} is damaged: the tensor {whole!r} does not match its checksum")
        self._check_range(found, whole, low, high, is_finite=is_finite)
        self._unread.discard(whole)
        return found.double() if is_narrow else found

    def _check_range(self, found: Tensor, name: str, low: float, high: float, *, is_finite: bool) -> None:
        if found.dtype == torch.bool:
            return
        if is_finite and found.is_floating_point():
            low, high = max(low, -torch.finfo(found.dtype).max), min(high, torch.finfo(found.dtype).max)
        for block in found.reshape(-1).split(BLOCK):
            if not bool(((block >= low) & (block <= high)).all()):  # of NaN neither is true
                raise self.unfit(f"entries of {name!r} must be numbers from {low:g} to {high:g}")

    def like(self, target: Tensor, name: str, **limits: Any) -> Tensor:
        """A saved tensor of the same shape and precision as another."""
        return self.tensor(name, target.shape, target.dtype, **limits)

    def fill(self, target: Tensor, name: str, **limits: Any) -> None:
        """Copy a saved tensor into one of the same shape and precision."""
        target.copy_(self.like(target, name, **limits))

    def check_all_read(self) -> None:
        """Raise if the file has tensors that nobody asked for."""
        if self._unread:
            raise self.unfit(f"nothing is known of its tensors {', '.join(map(repr, sorted(self._unread)[:5]))}")


def _memory(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a contiguous tensor of the host, to be written to, a block at a time."""
    for block in tensor.reshape(-1).split(BLOCK):
        yield memoryview(block.view(torch.uint8).numpy())


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


def rebuild(described: Described, builtin: Mapping[str, type], classes: Iterable[type]) -> Any:
    """The layer or head that was described; `classes` are the user's own."""
    name = described.type
    if "." in name:
        known: Mapping[str, type] = {cls.__name__: cls for cls in classes}
        short = name.rpartition(".")[2]
        remedy = f"pass the class, classes=[{short}]"
    else:
        known, short, remedy = builtin, name, "upgrade bayesmp"
    if short not in known:
        raise ValueError(f"the file needs {name}, which is not part of this bayesmp; {remedy}")
    cls, args = known[short], described.args
    if known is builtin:  # whose annotations say which arguments there may be
        args = typed.arguments(cls.__init__, args, name)  # type: ignore[misc]
    part = cls(**args)
    expected = as_saved(part.config())
    if json.dumps(expected, sort_keys=True) != json.dumps(described.args, sort_keys=True):  # 1 is not 1.0 there
        raise ValueError(f"{name} must be described as {expected}, got {described.args}")
    return part


@dataclass(frozen=True)
class Described:
    """What a file says of a layer or a head: its type, and the arguments of its constructor."""

    type: str
    args: dict[str, Any]


def fingerprint(tensor: Tensor) -> str:
    """A short text that differs for tensors of different bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for block in _blocks(tensor):
        digest.update(block)
    return digest.hexdigest()
