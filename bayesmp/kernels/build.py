"""A C++ text as a shared library: built with the system's compiler on first use and kept in the user's cache.

The file's name holds a key of everything that the result depends on (text, flags, compiler, processor) and a digest of
the file itself, so that a file that was cut short is noticed before it is loaded. It is written under a temporary name
and then renamed: processes that build at the same moment do not disturb each other. Where the cache cannot be written
to, the library is built for this process alone.

A library is code that runs here, so only what nobody else could have written is loaded: folder and file must belong to
this user or to root, and nobody else may write to them, as OpenSSH asks of keys. What is looked at is the opened file,
and that very file is loaded, whatever its name may lead to by then.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
# Errno and traps of mathematical functions hinder vectorisation. NaN and infinity keep their meaning.
FLAGS = ("-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-shared", "-fPIC")
NATIVE = (("-march=native",), ("-mcpu=native",), ())  # the first that the compiler knows
TIMEOUT = 120.0  # seconds; it takes about two
SUFFIX = ".so"
PRIVATE = 0o700  # of folder and libraries: nobody else may write them
OPENED = Path("/proc/self/fd")  # where the system shows opened files, so that these can be loaded by name

_told: set[str] = set()


class NoCompilerError(RuntimeError):
    """There is no C++ compiler, which is no fault of anyone's."""


class NotOursError(Exception):
    """Somebody else could have written a file or a folder."""


def load(text: str) -> ctypes.CDLL:
    """The library of this text, from the cache or built now; a RuntimeError or OSError says why there is none."""
    compiler = find_compiler()
    if compiler is None:
        raise NoCompilerError(f"no C++ compiler found ($CXX, {', '.join(COMPILERS)})")
    key = _key(text, compiler)
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        _check_owned(folder, folder.stat())
        for path in sorted(folder.glob(f"{key}-*{SUFFIX}")):
            with suppress(OSError):
                return _open(path)
            with suppress(OSError):
                path.unlink()
        return _open(_publish(text, compiler, folder, key))
    except NotOursError as error:
        _tell(f"{error}, so no compiled kernels are loaded from there, and they are built anew for this process alone")
    except OSError:  # no place to keep it, or one from which nothing can be loaded
        pass
    with tempfile.TemporaryDirectory(prefix="bayesmp-") as own:  # an open library outlives its file
        return _open(_publish(text, compiler, Path(own), key))


def find_compiler() -> str | None:
    """$CXX if it is set, else the first of COMPILERS that there is."""
    named = os.environ.get("CXX", "").strip()
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    root = os.environ.get("XDG_CACHE_HOME", "").strip()
    try:
        return (Path(root) if root else Path.home() / ".cache") / "bayesmp" / "kernels"
    except RuntimeError:  # no home
        return Path(os.devnull) / "bayesmp"  # where nothing can be written


def _publish(text: str, compiler: str, folder: Path, key: str) -> Path:
    handle, name = tempfile.mkstemp(prefix=f"{key}.", suffix=".part", dir=folder)
    os.close(handle)
    partial = Path(name)
    try:
        _compile(text, compiler, partial)
        partial.chmod(PRIVATE)
        return partial.replace(folder / f"{key}-{_digest(partial.read_bytes())}{SUFFIX}")
    finally:
        partial.unlink(missing_ok=True)


def _compile(text: str, compiler: str, path: Path) -> None:
    for native in NATIVE:
        command = [compiler, *native, *FLAGS, "-o", str(path), "-x", "c++", "-"]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except subprocess.SubprocessError as error:
            raise RuntimeError(f"{compiler} does not answer: {error}") from None
        if done.returncode == 0 and path.stat().st_size > 0:
            return
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    raise RuntimeError(f"{compiler} failed with {lines[0] if lines else f'exit status {done.returncode}'}")


def _key(text: str, compiler: str) -> str:
    """What the library depends on; the compiler's own file stands for its version."""
    binary = os.stat(os.path.realpath(compiler))
    parts = [text, *FLAGS, os.path.realpath(compiler), str(binary.st_size), str(binary.st_mtime_ns), _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _processor() -> str:
    """What -march=native looks at: a cache may be shared by different machines."""
    found = [platform.system(), platform.machine(), platform.processor()]
    with suppress(OSError), open("/proc/cpuinfo") as file:
        lines = [line for line in file if line.startswith(("model name", "flags", "Features", "CPU part"))]
        found += sorted(set(lines))
    return "\n".join(found)


def _open(path: Path) -> ctypes.CDLL:
    """The library of a file that is ours and whole; an OSError if it is not whole."""
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        _check_owned(path, os.fstat(opened))
        with open(opened, "rb", closefd=False) as file:
            if not path.name.endswith(f"-{_digest(file.read())}{SUFFIX}"):
                raise OSError(f"{str(path)!r} is not what was built")
        library = ctypes.CDLL(str(OPENED / str(opened) if OPENED.exists() else path))
    except BaseException:
        os.close(opened)
        raise
    return library  # its file stays open: the loader knows libraries by name, and this one must never mean another


def _check_owned(path: Path, status: os.stat_result) -> None:
    """Raise if somebody other than this user and root can have written a file or a folder, or what is in it."""
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise NotOursError(
            f"{str(path)!r} belongs to another user (uid {status.st_uid}; remove it, or set $XDG_CACHE_HOME)"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise NotOursError(f"others may write to {str(path)!r} (mode {mode:o}; `chmod go-w` changes that)")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _tell(message: str) -> None:
    """Warn, once."""
    if message not in _told:
        _told.add(message)
        warnings.warn(message, stacklevel=2)
