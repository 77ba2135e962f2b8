"""How a training run uses the machine: threads on the CPU, tensor cores on CUDA. Settings are put back afterwards."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import torch
from torch import Tensor

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names that glibc's mallopt knows by number
SMALL_WORK = 10_000_000  # multiplications per product of matrices below which a second thread costs more than it brings
SMALL_PASS = 1_000_000_000  # the same for a refresh of the belief, with many short steps between its few large products


@contextmanager
def fast_arithmetic(device: torch.device, *, n_products: int = SMALL_WORK) -> Iterator[None]:
    """The settings for a run whose batches need about n_products multiplications per product of matrices.

    CUDA: float32 products on tensor cores (TF32, 10 bits of mantissa), and cuDNN's fastest algorithms. CPU: one
    thread for small networks.
    """
    if device.type == "cuda":
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        return
    with few_threads(device, n_products=n_products), kept_memory():
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without what a caller may have switched on around it, and which beliefs do not bear: products in half precision
    (autocast), tensors that cannot be changed later (inference mode), new tensors on another device than the host.
    """
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def kept_memory() -> Iterator[None]:
    """Memory that is freed stays with the process until the end, for the next visit to use again.

    A visit frees some hundred megabytes at its end. glibc gives them back to the system at once, which must then fill
    every page with zeros before the next visit can use it: a tenth of the time of a visit, or more. Nothing happens
    with other allocators.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, 2**30)
    libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_THRESHOLD, 2**25)  # the largest values that glibc takes by itself
        libc.mallopt(_TRIM_THRESHOLD, 2**26)
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6")
        return libc if hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt") else None
    except OSError:
        return None


@contextmanager
def few_threads(device: torch.device, *, n_products: int, small: int = SMALL_WORK) -> Iterator[None]:
    """One thread on the CPU for work whose products of matrices need about n_products multiplications each, if these
    are too few to share; two threads were ten times slower there on a busy machine. Else as many as are set.
    """
    n_threads = torch.get_num_threads()
    if device.type != "cpu" or n_products >= small or n_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def rows_in_step(like: Tensor) -> Tensor:
    """Room for a matrix like this one, whose rows all begin at whole cache lines, which leaves gaps between them.

    On a CPU products of large matrices with an odd number of columns, as a bias makes it, take a third longer without.
    """
    line = 64 // like.element_size()
    n_rows, n_columns = like.shape
    return like.new_empty(n_rows, -(-n_columns // line) * line)[:, :n_columns]


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of symmetric matrices, on the CPU by one thread: LAPACK goes in short steps that
    wait for each other, and two threads were five times slower on a busy machine.

    Note:
        In float32 LAPACK's steps may not converge where many eigenvalues are equal but for rounding, as with pixels
        that are the same in all images; in float64 they do.
    """
    with few_threads(matrix.device, n_products=0):
        try:
            values, vectors = torch.linalg.eigh(matrix)
        except RuntimeError:  # LinAlgError is one
            if matrix.dtype == torch.float64 or not bool(matrix.isfinite().all()):
                raise
            values, vectors = (part.to(matrix) for part in torch.linalg.eigh(matrix.double()))
    return values, vectors


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Products of float32 matrices in full: a variance left over from two large ones needs all digits."""
    before = torch.backends.cuda.matmul.allow_tf32
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def packed(matrix: Tensor) -> Tensor:
    """The lower triangles of matrices (..., n, n), diagonals included: (..., n (n + 1) / 2)."""
    n = matrix.shape[-1]
    rows, columns = torch.tril_indices(n, n, device=matrix.device)
    return matrix[..., rows, columns]


def unpacked(values: Tensor, n: int) -> Tensor:
    """The lower triangular matrices (..., n, n) of which `packed` was made."""
    rows, columns = torch.tril_indices(n, n, device=values.device)
    found = values.new_zeros(*values.shape[:-1], n, n)
    found[..., rows, columns] = values
    return found
