"""Tables from files, their columns as numbers that an estimator can learn from, and what is to be predicted.

A CSV file is read as text, and what a column means is decided here, once, by the training table: so a code such as
"007" keeps its zeros, and a later file cannot turn a column of texts into numbers by chance. Pandas is imported when it
is needed: `pip install bayesmp[tables]`.
"""

from bayesmp.tables.dates import Calendar
from bayesmp.tables.encoder import Column, Encoded, EncoderHeader, TableEncoder
from bayesmp.tables.files import ENDINGS, check_column, check_ending, ending, read_table, write_table
from bayesmp.tables.target import Target
from bayesmp.tables.values import as_numbers, require_pandas
from bayesmp.tables.words import TableError, plural

__all__ = [
    "ENDINGS",
    "Calendar",
    "Column",
    "Encoded",
    "EncoderHeader",
    "TableEncoder",
    "TableError",
    "Target",
    "as_numbers",
    "check_column",
    "check_ending",
    "ending",
    "plural",
    "read_table",
    "require_pandas",
    "write_table",
]
