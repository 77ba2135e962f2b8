"""`python -m bayesmp` is the command `bayesmp`."""

from bayesmp.cli import app

app(prog_name="bayesmp")
