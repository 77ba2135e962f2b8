"""How a training run uses the machine: threads on the CPU, tensor cores on CUDA. Settings are put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

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
    with few_threads(device, n_products=n_products):
        yield


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


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of symmetric matrices, on the CPU by one thread: LAPACK goes in short steps that
    wait for each other, and two threads were five times slower on a busy machine.
    """
    with few_threads(matrix.device, n_products=0):
        values, vectors = torch.linalg.eigh(matrix)
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
