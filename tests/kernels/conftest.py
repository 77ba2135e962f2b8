"""Each test of the backends starts on "auto" with nothing known to be broken, and leaves no trace of its choice."""

import pytest

from bayesmp import kernels
from bayesmp.kernels import build, compiled


@pytest.fixture(autouse=True)
def _own_backend():
    before = kernels._choice, kernels._broken
    kernels._choice, kernels._broken = "auto", set()
    yield
    kernels._choice, kernels._broken = before


@pytest.fixture
def unbuilt(monkeypatch, tmp_path):
    """No library is loaded yet, and the user's cache is an empty folder, which is given."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "FLAGS", ("-O0", *build.FLAGS[1:]))  # built sooner
    compiled.forget()
    yield tmp_path / "cache" / "bayesmp" / "kernels"
    compiled.forget()
