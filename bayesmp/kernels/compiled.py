"""The text of the equations (text.py) in C++ loops for CPUs: one pass over memory, several elements at a time.

float32 only. The loops are built on first use (build.py) and called through ctypes, which lets other threads of Python
run. An input may be one number for all elements; other inputs that are not laid out as the first one are copied.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesmp.kernels import build
from bayesmp.kernels.text import EVERYTHING, FUNCTIONS, Function
from bayesmp.messages.activation import leaky_relu_to_input
from bayesmp.messages.gaussian import Gaussian, Moments

CHUNK = 1024  # elements at a time; an input that is one number for all is spread out over a chunk once
SOURCES = ("prelude.cpp", "sums.cpp", "rows.cpp", "sites.cpp", "metric.cpp", "pools.cpp", "convs.cpp", "chain.cpp")
ANSWERS = {
    "move_means": ctypes.c_float,
    "count_below": ctypes.c_int64,
    "chain_room": ctypes.c_int64,
}  # other functions answer in memory alone
LEAST_WORK = 65_536  # elements for each thread; with fewer a thread costs more than it brings


def source() -> str:
    """The whole text: prelude, equations, a loop over each, then sums, rows, sites, metric, pools, convs and chain."""
    here = Path(__file__).parent
    equations = EVERYTHING.replace("template <typename T>", "template <typename T> INLINE")
    loops = "".join(_loop(name, function) for name, function in FUNCTIONS.items())
    prelude, *others = ((here / name).read_text() for name in SOURCES)
    return "".join([prelude, equations, loops, *others])


def _loop(name: str, function: Function) -> str:
    """A loop over elements begin to end; bit i of `constant` says that input i is one number."""
    inputs, outputs = range(function.n_inputs), range(function.n_outputs)
    values = [f"x{i}[k]" for i in inputs] + ["option"] * len(function.options) + [f"y{i}" for i in outputs]
    lines = [
        f'extern "C" void run_{name}(int64_t begin, int64_t end, uint64_t constant, const float* const* in,',
        "                           float* const* out, float option) {",
        f"  float spread[{function.n_inputs}][{CHUNK}];",
        f"  for (int i = 0; i < {function.n_inputs}; ++i)",
        f"    if (constant >> i & 1) for (int k = 0; k < {CHUNK}; ++k) spread[i][k] = in[i][0];",
        f"  for (int64_t at = begin; at < end; at += {CHUNK}) {{",
        f"    int64_t n = end - at < {CHUNK} ? end - at : {CHUNK};",
        *(f"    const float* __restrict x{i} = constant >> {i} & 1 ? spread[{i}] : in[{i}] + at;" for i in inputs),
        *(f"    float* __restrict out{i} = out[{i}] + at;" for i in outputs),
        "#pragma omp simd",
        "    for (int64_t k = 0; k < n; ++k) {",
        f"      float {', '.join(f'y{i}' for i in outputs)};",
        f"      {name}({', '.join(values)});",
        f"      {' '.join(f'out{i}[k] = y{i};' for i in outputs)}",
        "    }",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


@cache
def entry_of(name: str) -> Callable[..., Any]:
    """run_NAME of the library."""
    entry = getattr(_library(), f"run_{name}")
    entry.argtypes, entry.restype = _signature(name), ANSWERS.get(name)
    return entry


def _signature(name: str) -> list[Any]:
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    if name in FUNCTIONS:  # from, to, which inputs are constant, inputs, outputs, option
        return [number, number, number, pointer, pointer, ctypes.c_float]
    if name == "residual_sums":  # from, to, columns, a flag, inputs, outputs, sums
        return [*[number] * 4, pointer, pointer, pointer]
    if name == "count_below":  # how many, of what, the bound
        return [number, pointer, ctypes.c_float]
    if name == "spread_sums":  # from, to, inputs, sums
        return [number, number, pointer, pointer]
    if name == "solve_small":  # outputs, inputs, blocks, their widths, inputs, answers
        return [number, number, number, *[pointer] * 3]
    if name == "take_site":  # how many, two bounds, inputs, shift, offset, slope, two precisions, innovation
        return [number, ctypes.c_float, ctypes.c_float, *[pointer] * 7]
    if name == "move_means":  # how many, share of a site, inputs, origin, tau, shift, offset
        return [number, ctypes.c_double, *[pointer] * 5]
    if name in ("chain_room", "chain_out", "chain_back"):  # the visit
        return [pointer]
    if name == "conv_to_weight":  # window, from, to, slopes, images, sums
        return [pointer, number, number, *[pointer] * 3]
    if name == "conv_to_input":  # window, from, to, slopes, weights, room, answer
        return [pointer, number, number, *[pointer] * 4]
    if name == "patch_products":  # window, from, to, how many images, images, room, sums
        return [pointer, *[number] * 3, *[pointer] * 3]
    if name == "argmax_to_latent":  # rows, classes, labels, inputs, outputs, constants
        return [number, number, pointer, pointer, pointer, *[ctypes.c_float] * 3]
    return [pointer, number, number, pointer, pointer, ctypes.c_float]  # windows, from, to, inputs, outputs, option


@cache
def _library() -> ctypes.CDLL:
    """Built or found, and tried once: a library that computes something else is worse than none."""
    library = build.load(source())
    entry = library.run_leaky_relu_to_input
    entry.argtypes, entry.restype = _signature("leaky_relu_to_input"), None
    m_in, m_back = _sample()
    truth = leaky_relu_to_input(m_in, m_back, 0.1)
    parts = m_in.mean, m_in.var, m_back.tau, m_back.rho
    found = [torch.empty_like(parts[0]) for _ in range(2)]
    entry(0, found[0].numel(), 0, pointers(parts), pointers(found), 0.1)
    if not all(map(torch.allclose, found, (truth.tau, truth.rho), (1e-2, 1e-2), (1e-4, 1e-4))):
        raise RuntimeError("the compiled loops give wrong numbers")
    return library


def forget() -> None:
    """Load the library anew at its next use."""
    entry_of.cache_clear()
    _library.cache_clear()


def _sample() -> tuple[Moments, Gaussian]:
    """Ordinary messages at an activation."""
    grid = torch.linspace(-3.0, 3.0, 37, dtype=torch.float32)
    return Moments(grid, 0.5 + grid.square()), Gaussian(0.3 - grid.flip(0), 0.1 + grid.abs())


def can_take(tensors: Sequence[Tensor]) -> bool:
    """Whether loops may answer for these tensors: float32 on the CPU, and nobody differentiates."""
    differentiates = torch.is_grad_enabled()
    for part in tensors:  # a plain loop: small networks come here for every message
        if part.dtype is not torch.float32 or not part.is_cpu or (differentiates and part.requires_grad):
            return False
    return type(tensors[0]) is Tensor and torch._C._functorch.peek_interpreter_stack() is None


# --- element by element ----------------------------------------------------------------------------------------------


def launch(name: str, *tensors: Tensor, **options: float) -> tuple[Tensor, ...]:
    """One pass of a function of text.py over tensors that broadcast against each other."""
    function, entry, first = FUNCTIONS[name], entry_of(name), tensors[0]
    shape, strides = first.shape, first.stride()
    constant = 0
    if not (is_dense(first) and all(part.shape == shape and part.stride() == strides for part in tensors)):
        tensors, constant = _laid_out(tensors)
        first = next(part for k, part in enumerate(tensors) if not constant >> k & 1)
    outputs = [_empty(first) for _ in range(function.n_outputs)]
    option = options[function.options[0]] if function.options else 0.0
    arguments = pointers(tensors), pointers(outputs), option
    share_out(outputs[0].numel(), LEAST_WORK, lambda begin, end: entry(begin, end, constant, *arguments))
    return tuple(outputs)


def _empty(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, memory_format=layout_of(like))


def layout_of(tensor: Tensor) -> torch.memory_format:
    """The order in which the entries of a dense tensor lie in memory."""
    return torch.channels_last if channels_come_last(tensor) else torch.contiguous_format


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills a piece of memory without gaps, in one of two orders."""
    return tensor.is_contiguous() or channels_come_last(tensor)


def channels_come_last(tensor: Tensor) -> bool:
    """Whether these are images whose channels lie next to each other in memory."""
    return tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


def _laid_out(tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], int]:
    """All tensors in one shape and order of memory but for those that are one number; and which these are, as bits."""
    shape = _common_shape(tensors)
    whole = [part for part in tensors if part.shape == shape and not is_one_number(part)]
    layout = torch.channels_last if any(map(channels_come_last, whole)) else torch.contiguous_format
    found, constant = [], 0
    for k, part in enumerate(tensors):
        if whole and is_one_number(part):
            constant |= 1 << k
            found.append(part.expand(shape))
        else:
            found.append(part.expand(shape).contiguous(memory_format=layout))
    return tuple(found), constant


def _common_shape(tensors: Sequence[Tensor]) -> torch.Size:
    """What they broadcast to; `torch.broadcast_shapes` takes half a millisecond, and half a second at first."""
    largest = max(tensors, key=lambda part: (part.ndim, part.numel())).shape
    if all(part.shape == largest or part.numel() == 1 for part in tensors) and all(largest):
        return largest
    return torch.broadcast_tensors(*tensors)[0].shape


def is_one_number(tensor: Tensor) -> bool:
    """One number in memory, however often it is looked at."""
    for step, size in zip(tensor.stride(), tensor.shape, strict=True):
        if (step != 0 and size != 1) or size == 0:
            return False
    return True


# --- calls -----------------------------------------------------------------------------------------------------------


def pointers(tensors: Sequence[Tensor]) -> Any:
    """Where the tensors begin in memory, as an array for C."""
    return (ctypes.c_void_p * len(tensors))(*[part.data_ptr() for part in tensors])


def share_out(n: int, least: int, work: Callable[[int, int], None]) -> None:
    """work(begin, end) over 0 to n, in equal parts for as many threads as torch uses, each with at least `least`."""
    n_threads = min(torch.get_num_threads(), n // least)
    if n_threads < 2:
        work(0, n)
        return
    ends = [n * k // n_threads for k in range(n_threads + 1)]
    others = [_pool_of_threads().submit(work, *part) for part in pairwise(ends[1:])]
    work(0, ends[1])
    for other in others:
        other.result()


@cache
def _pool_of_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="bayesmp")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool_of_threads.cache_clear)
