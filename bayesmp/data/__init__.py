"""Data sets: the real ones from their official files, the paper's toy data, and standardising."""

from bayesmp.data.download import ChecksumError, DownloadError, MissingDataError, data_directory
from bayesmp.data.scaling import Scaling, TableScaling, standardise
from bayesmp.data.sets import Dataset, Table, cifar10, find_sets, mnist, svhn_test, uci
from bayesmp.data.sources import UCI_NAMES
from bayesmp.data.toy import sine, sine_function

__all__ = [
    "UCI_NAMES",
    "ChecksumError",
    "Dataset",
    "DownloadError",
    "MissingDataError",
    "Scaling",
    "Table",
    "TableScaling",
    "cifar10",
    "data_directory",
    "find_sets",
    "mnist",
    "sine",
    "sine_function",
    "standardise",
    "svhn_test",
    "uci",
]
