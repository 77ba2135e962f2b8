"""Tables from files, and what is to be predicted; how their columns become numbers is in `bayesmp.estimators.columns`.

A CSV file is read as text, and what a column means is decided by the training table. Pandas is imported when it is
needed: `pip install bayesmp[tables]`.
"""

from bayesmp.estimators.columns.values import require_pandas
from bayesmp.estimators.columns.words import TableError, check_column, plural
from bayesmp.tables.files import ENDINGS, check_ending, ending, read_table, write_table
from bayesmp.tables.target import Target

__all__ = [
    "ENDINGS",
    "TableError",
    "Target",
    "check_column",
    "check_ending",
    "ending",
    "plural",
    "read_table",
    "require_pandas",
    "write_table",
]
