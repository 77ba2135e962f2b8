"""Data sets: the real ones from their official files, and as benchmarks want them; the paper's toy data."""

from bayesmp.data import sine, sine_function
from benchmarks.datasets.download import ChecksumError, DownloadError, MissingDataError, data_directory
from benchmarks.datasets.prepared import Images, Source, prepare
from benchmarks.datasets.sets import Dataset, Table, cifar10, find_sets, mnist, svhn_test, uci
from benchmarks.datasets.sources import UCI_NAMES

__all__ = [
    "UCI_NAMES",
    "ChecksumError",
    "Dataset",
    "DownloadError",
    "Images",
    "MissingDataError",
    "Source",
    "Table",
    "cifar10",
    "data_directory",
    "find_sets",
    "mnist",
    "prepare",
    "sine",
    "sine_function",
    "svhn_test",
    "uci",
]
