"""The text of the element-wise equations (text.py) as CUDA kernels, each one pass over memory instead of dozens.

torch.cuda.jiterator builds them with the driver's compiler in about a second, takes tensors of any strides and
broadcasts; torch.compile did the same work as fast, but needed 8 to 11 seconds per function to build it. float32 only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesmp.kernels.text import FUNCTIONS

_built: dict[str, Callable[..., Any]] = {}


def launch(name: str, *tensors: Tensor, **options: float) -> tuple[Tensor, ...]:
    """One pass of a function of text.py over CUDA tensors that broadcast against each other."""
    if name not in _built:
        function = FUNCTIONS[name]
        declared = dict.fromkeys(function.options, 0.0)
        create = torch.cuda.jiterator._create_multi_output_jit_fn
        _built[name] = create(function.source, function.n_outputs, **declared)
    answers = _built[name](*tensors, **options)
    return (answers,) if isinstance(answers, Tensor) else tuple(answers)
