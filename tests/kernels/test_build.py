"""Building and keeping the compiled loops: no compiler, a broken one, a damaged file, no place, two at once."""

import logging
import os
import stat
import subprocess
import sys
import warnings

import pytest
import torch

from bayesmp import kernels
from bayesmp.kernels import build, compiled
from bayesmp.messages import linear
from tests.kernels.cases import messages

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")


def curvature_is_right():
    input_var, rho = messages((5, 7))[2], messages((5, 7))[4]
    torch.testing.assert_close(kernels.weight_curvature(input_var, rho), linear.weight_curvature(input_var, rho))


def a_compiler(folder, monkeypatch, script):
    """The only compiler there is: a shell script."""
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def test_without_a_compiler_the_equations_answer_and_nothing_is_said(unbuilt, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.DEBUG, logger="bayesmp"):
        curvature_is_right()
        curvature_is_right()
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "no C++ compiler" in caplog.text and kernels.backend_in_use() == "torch"


@pytest.mark.parametrize("script", ["echo 'cannot find stdint.h' >&2; exit 1", "exit 0", "kill -9 $$"])
def test_a_broken_compiler_costs_one_warning(script, unbuilt, monkeypatch, tmp_path):
    a_compiler(tmp_path, monkeypatch, script)
    with pytest.warns(UserWarning, match="fused kernels do not work here.*plain equations"):
        curvature_is_right()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curvature_is_right()
    assert not list(unbuilt.glob("*"))


def test_a_compiler_that_makes_something_else_costs_one_warning(unbuilt, monkeypatch, tmp_path):
    """Here a file that is no library; `-o PATH` are its arguments before the last three."""
    a_compiler(tmp_path, monkeypatch, 'while [ "$1" != "-o" ]; do shift; done; echo nonsense > "$2"')
    with pytest.warns(UserWarning, match="fused kernels do not work here"):
        curvature_is_right()


@needs_compiler
def test_wrong_numbers_are_noticed(unbuilt, monkeypatch):
    right = compiled.source()
    monkeypatch.setattr(
        compiled, "source", lambda: right.replace("out_rho = proper ? found_rho", "out_rho = proper ? 2")
    )
    with pytest.warns(UserWarning, match="wrong numbers"):
        curvature_is_right()


@needs_compiler
def test_a_library_is_built_once_and_kept(unbuilt, monkeypatch):
    kernels.set_backend("fused")
    curvature_is_right()
    (path,) = unbuilt.glob("*")
    made = path.stat().st_mtime_ns
    compiled.forget()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("built again"))
    curvature_is_right()
    assert path.stat().st_mtime_ns == made


@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_built_again(damage, unbuilt):
    kernels.set_backend("fused")
    curvature_is_right()
    (path,) = unbuilt.glob("*")
    whole = path.read_bytes()
    compiled.forget()
    path.unlink()  # the loaded library keeps the old file
    middle = len(whole) // 2
    path.write_bytes(
        {"cut": whole[:middle], "changed": whole[:middle] + b"?" + whole[middle + 1 :], "empty": b""}[damage]
    )
    curvature_is_right()
    (path,) = unbuilt.glob("*")
    assert path.read_bytes() == whole


@needs_compiler
def test_a_cache_that_cannot_be_written_to_is_no_obstacle(unbuilt, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    kernels.set_backend("fused")
    curvature_is_right()
    assert blocked.read_text() == "not a folder"


def build_one(folder):
    """The file that using a kernel leaves in the cache."""
    kernels.set_backend("fused")
    curvature_is_right()
    (path,) = folder.glob("*")
    compiled.forget()
    return path


def count_builds(monkeypatch):
    """Where libraries are built from now on."""
    folders, publish = [], build._publish
    monkeypatch.setattr(build, "_publish", lambda *args: folders.append(args[2]) or publish(*args))
    return folders


@needs_compiler
def test_the_cache_is_private_whatever_the_umask(unbuilt):
    umask = os.umask(0)
    try:
        path = build_one(unbuilt)
    finally:
        os.umask(umask)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (unbuilt, path)] == [0o700, 0o700]


@needs_compiler
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777], ids=oct)
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_is_not_loaded(what, mode, unbuilt, monkeypatch):
    """A library that another user put into a cache that all could write to was loaded, and its code run."""
    path, folders = build_one(unbuilt), count_builds(monkeypatch)
    (path if what == "file" else unbuilt).chmod(mode)
    build._told.clear()
    with pytest.warns(UserWarning, match=rf"others may write to .*mode {mode:o}.*chmod go-w.*this process alone"):
        curvature_is_right()
    assert len(folders) == 1 and folders[0] != unbuilt and not folders[0].exists()
    compiled.forget()
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        curvature_is_right()


@needs_compiler
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_another_user_owns_is_not_loaded(what, unbuilt, monkeypatch):
    path, folders, fstat, whole = build_one(unbuilt), count_builds(monkeypatch), os.fstat, build.Path.stat

    def of_another(status):
        return os.stat_result([*status[:4], os.geteuid() + 1, *status[5:10]])

    if what == "file":
        inode = path.stat().st_ino
        monkeypatch.setattr(os, "fstat", lambda f: of_another(fstat(f)) if fstat(f).st_ino == inode else fstat(f))
    else:
        monkeypatch.setattr(build.Path, "stat", lambda p, **o: of_another(whole(p)) if p == unbuilt else whole(p, **o))
    build._told.clear()
    with pytest.warns(UserWarning, match=rf"belongs to another user \(uid {os.geteuid() + 1}; remove it"):
        curvature_is_right()
    assert len(folders) == 1 and folders[0] != unbuilt


@needs_compiler
def test_roots_cache_is_used(unbuilt, monkeypatch):
    """An administrator may have filled it, e.g. in an image of a container."""
    path, folders, uid = build_one(unbuilt), count_builds(monkeypatch), os.geteuid()
    if uid == 0:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    else:
        fstat = os.fstat
        monkeypatch.setattr(os, "fstat", lambda f: os.stat_result([*fstat(f)[:4], 0, *fstat(f)[5:10]]))
    assert path.exists()
    curvature_is_right()
    assert folders == []


@needs_compiler
def test_a_link_in_the_cache_is_not_followed(unbuilt, monkeypatch, tmp_path):
    """It is replaced by a library of our own."""
    path = build_one(unbuilt)
    moved = path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(moved)
    curvature_is_right()
    assert not path.is_symlink() and path.read_bytes() == moved.read_bytes()


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_no_obstacle(unbuilt):
    unbuilt.mkdir(parents=True)
    unbuilt.chmod(stat.S_IRUSR | stat.S_IXUSR)
    kernels.set_backend("fused")
    try:
        curvature_is_right()
    finally:
        unbuilt.chmod(stat.S_IRWXU)
    assert not list(unbuilt.glob("*"))


@needs_compiler
def test_without_a_home_there_is_no_cache(unbuilt, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build.Path, "home", no_home)
    kernels.set_backend("fused")
    curvature_is_right()


@needs_compiler
def test_two_processes_may_build_at_once(unbuilt):
    script = (
        "import torch; from bayesmp import kernels; kernels.set_backend('fused');"
        "print(float(kernels.weight_curvature(torch.ones(3), torch.ones(3)).sum()))"
    )
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [float(process.communicate(timeout=120)[0]) for process in both] == [1.5, 1.5]
    assert [path.suffix for path in unbuilt.glob("*")] == [build.SUFFIX]


def test_the_sources_are_part_of_the_package():
    text = compiled.source()
    assert "run_leaky_relu_to_input" in text and "EXPORT(max_pool)" in text
