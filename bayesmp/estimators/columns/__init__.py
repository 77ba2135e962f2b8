"""What the columns of a table mean, and how they become numbers; decided once, by the training table.

So a code such as "007" keeps its zeros, and a later table cannot turn a column of texts into numbers by chance. Pandas
is imported when it is needed: `pip install bayesmp[tables]`.
"""
