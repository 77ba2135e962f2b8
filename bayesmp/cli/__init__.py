"""The command line: parses, calls the library, prints."""

from bayesmp.cli.app import app

__all__ = ["app"]
