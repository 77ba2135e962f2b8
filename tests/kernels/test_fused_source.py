"""The text of every fused kernel as CUDA gets it, built for the host by a C++ compiler and run against its equation.

No GPU is needed: the text is plain C++ but for one function of CUDA's mathematics, which a prelude supplies.
"""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

from bayesmp import kernels
from bayesmp.kernels.text import FUNCTIONS
from tests.kernels.cases import CALLS, messages

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

PRELUDE = r"""
#include <cmath>
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
"""


@pytest.fixture(scope="module")
def host_launch(tmp_path_factory):
    """`fused.launch` on the host: the same sources, in a loop over the elements."""
    folder = tmp_path_factory.mktemp("fused")
    built = {}

    def build(name, n_inputs):
        source, n_outputs, options = FUNCTIONS[name].source, FUNCTIONS[name].n_outputs, FUNCTIONS[name].options
        arguments = [f"x{i}[k]" for i in range(n_inputs)] + list(options) + [f"y{i}[k]" for i in range(n_outputs)]
        parameters = [f"const float* x{i}" for i in range(n_inputs)] + [f"float {option}" for option in options]
        parameters += [f"float* y{i}" for i in range(n_outputs)]
        loop = f'extern "C" void run(long n, {", ".join(parameters)}) {{ for (long k = 0; k < n; ++k) '
        text = PRELUDE + source + loop + f"{name}({', '.join(arguments)}); }}"
        path = folder / f"{name}.cpp"
        path.write_text(text)
        library = path.with_suffix(".so")
        subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", library, path], check=True, capture_output=True)
        return ctypes.CDLL(str(library)).run

    def launch(name, *tensors, **options):
        shape = torch.broadcast_shapes(*(part.shape for part in tensors))
        inputs = [np.ascontiguousarray(part.expand(shape).numpy(), np.float32) for part in tensors]
        outputs = [np.empty(shape, np.float32) for _ in range(FUNCTIONS[name].n_outputs)]
        run = built.setdefault(name, None) or build(name, len(inputs))
        built[name] = run
        pointers = [part.ctypes.data_as(ctypes.c_void_p) for part in (*inputs, *outputs)]
        scalars = [ctypes.c_float(options[option]) for option in FUNCTIONS[name].options]
        run(ctypes.c_long(inputs[0].size), *pointers[: len(inputs)], *scalars, *pointers[len(inputs) :])
        return tuple(torch.from_numpy(part) for part in outputs)

    return launch


@pytest.mark.parametrize("name", CALLS)
def test_the_source_computes_its_equation(name, host_launch, monkeypatch):
    """Against the equation in float64, no worse than ten times the equation's own float32 error, or 1e-4."""
    tensors = messages((40, 50))
    truth = CALLS[name](*(part.double() for part in tensors))
    kernels.set_backend("torch")
    plain = CALLS[name](*tensors)
    used = []

    def on_host(name, *tensors, **options):
        used.append(name)
        return host_launch(name, *tensors, **options)

    monkeypatch.setattr(kernels, "_launch", on_host)
    found = CALLS[name](*tensors)
    assert used
    for one, same, exact in zip(found, plain, truth, strict=True):
        scale = exact.abs() + 1e-3
        error, own = (((part.double() - exact).abs() / scale).nan_to_num(1e9) for part in (one, same))
        worse = error > 10 * own + 1e-4
        assert worse.double().mean() < 2e-3, f"{int(worse.sum())} of {worse.numel()} entries differ"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_finds_the_entry_function_in_the_source(name):
    """torch parses the text with regular expressions, which a `>` in a body would mislead."""
    source, n_outputs, options = FUNCTIONS[name].source, FUNCTIONS[name].n_outputs, FUNCTIONS[name].options
    kernel = torch.cuda.jiterator._create_multi_output_jit_fn(source, n_outputs, **dict.fromkeys(options, 0.0))
    assert kernel.kernel_name == name
    assert len(re.findall(r"T& ", source.split(f" {name}(")[1].split("{")[0])) == n_outputs
