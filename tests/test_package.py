"""The package as others get it: what is in the wheel, and that it works where there is no checkout."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import bayesmp
from tests.test_readme import EXAMPLES

ROOT = Path(__file__).parent.parent
PACKAGES = Path(torch.__file__).parent.parent  # of the environment that runs the tests

pytest.importorskip("hatchling")
pytest.importorskip("build")


def run(*command, cwd):
    """Standard output of a command that must succeed; nothing of this process's paths reaches it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from it; nothing is fetched."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(list(map(str, command)), cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The Python of a fresh environment that holds the wheel alone, and sees what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", built[0], cwd=folder)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(
        f"{PACKAGES}\n"
    )  # its own .pth files, a checkout's among them, stay unread
    return python


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
        (metadata,) = (wheel.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {name.split("/")[0] for name in names} == {"bayesmp", f"bayesmp-{bayesmp.__version__}.dist-info"}
    inside = {name for name in names if name.startswith("bayesmp/")}
    source = ROOT / "bayesmp"
    expected = {f"bayesmp/{path.relative_to(source).as_posix()}" for path in source.rglob("*") if path.is_file()}
    assert inside == {name for name in expected if "__pycache__" not in name}
    assert "bayesmp/py.typed" in inside
    assert {name for name in inside if name.endswith(".cpp")} >= {"bayesmp/kernels/prelude.cpp"}
    assert f"\nVersion: {bayesmp.__version__}\n" in metadata


def test_the_sdist_holds_what_its_tests_need(built):
    with tarfile.open(built[1]) as sdist:
        parts = {name.split("/")[1] for name in sdist.getnames() if "/" in name}
    assert parts >= {"bayesmp", "tests", "benchmarks", "experiments", "docs", "pyproject.toml", "README.md", "LICENSE"}


def test_the_citation_names_this_version():
    assert f"\nversion: {bayesmp.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_command_works_without_a_checkout(installed, tmp_path):
    where = run(installed, "-c", "import bayesmp; print(bayesmp.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent.parent)
    for command in ([installed, "-m", "bayesmp"], [installed.parent / "bayesmp"]):
        assert run(*command, "--version", cwd=tmp_path).strip() == f"bayesmp {bayesmp.__version__}"
    info = run(installed.parent / "bayesmp", "info", cwd=tmp_path)
    assert str(installed.parent.parent) in info and str(ROOT) not in info


@pytest.mark.slow
def test_the_readme_example_works_without_a_checkout(installed, tmp_path):
    """Its kernels, too, which are built from the .cpp files of the wheel."""
    checks = [
        "from pathlib import Path",
        f"assert Path(bmp.__file__).is_relative_to({str(installed.parent.parent)!r})",
        "assert abs(np.interp(0.7, grid[:, 0], mean) - np.sin(2.1)) < 0.15",
        "print('fine')",
    ]
    (tmp_path / "example.py").write_text("\n".join([EXAMPLES["Ten lines"], *checks]))
    assert run(installed, "example.py", cwd=tmp_path).endswith("fine\n")


@pytest.mark.slow
def test_type_checkers_see_the_types(installed, tmp_path):
    """py.typed at work: outside the package, too, a network is known by what it predicts."""
    pytest.importorskip("mypy")
    lines = ["import bayesmp as bmp", "net = bmp.Network([bmp.Linear(1, 2)], bmp.Argmax())", "reveal_type(net)"]
    (tmp_path / "user.py").write_text("\n".join(lines))
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*,numpy.*,sklearn.*]\nfollow_imports = skip\n")  # faster
    found = run(sys.executable, "-m", "mypy", "--python-executable", installed, "user.py", cwd=tmp_path)
    assert "bayesmp.network.network.Network[bayesmp.heads.classification.ClassPrediction]" in found
