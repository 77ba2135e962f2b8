"""Warnings that point at the user's line, however deep in the package they arise."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from pathlib import Path

import torch

# Code between the user's line and a warning.
INSIDE = (
    os.path.join(Path(__file__).parent.parent, ""),
    os.path.join(Path(torch.__file__).parent, ""),
    os.path.join(Path(torch.__file__).parent.parent, "sklearn", ""),
    contextlib.__file__,
)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the nearest line outside of the package, PyTorch and scikit-learn that led here."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
