"""The training data of a run: where they lie, how a batch comes to the device, and what may be handed in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

PLACES = ("auto", "device", "host")
DEVICE_SHARE = 0.4  # of the free device memory that training inputs may take before they stay on the host
ROWS_AT_ONCE = 1024  # examples of a Dataset that are read at a time


def as_arrays(x: Any, y: Any) -> tuple[Any, Any]:
    """Inputs and targets; given as one, the parts of a tuple, or all that a torch Dataset or DataLoader holds.

    Batches of a run have fixed members, so a loader's own batches, order and shuffling are not used.
    """
    loader = x if isinstance(x, DataLoader) else None
    dataset = x.dataset if isinstance(x, DataLoader) else x
    if not isinstance(dataset, Dataset):
        if y is None and isinstance(x, tuple) and len(x) == 2:
            return x
        if y is None:
            raise ValueError(
                "y is missing: pass targets beside x; or in place of x a tuple (x, y) or a torch Dataset of pairs; "
                f"got x of type {type(x).__name__}"
            )
        return x, y
    if y is not None:
        raise ValueError("a Dataset brings its own targets: pass either the Dataset alone, or tensors x and y")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            "a run needs batches with fixed members, which an IterableDataset cannot give; read it into tensors first, "
            "or use a Dataset with __len__ and __getitem__"
        )
    reader = DataLoader(
        dataset,
        batch_size=ROWS_AT_ONCE,
        num_workers=0 if loader is None else loader.num_workers,
        collate_fn=None if loader is None else loader.collate_fn,
    )
    pairs = [_check_pair(part) for part in reader]
    if not pairs:
        raise ValueError("the Dataset is empty; training needs at least one example")
    return torch.cat([part[0] for part in pairs]), torch.cat([part[1] for part in pairs])


def _check_pair(part: Any) -> tuple[Tensor, Tensor]:
    is_pair = isinstance(part, (tuple, list)) and len(part) == 2 and all(isinstance(entry, Tensor) for entry in part)
    if not is_pair:
        what = f"{len(part)} entries" if isinstance(part, (tuple, list)) else type(part).__name__
        raise ValueError(
            f"each example of the Dataset must be a pair (x, y) of tensors, arrays or numbers, got {what}; wrap it in "
            "a Dataset whose __getitem__ returns such a pair"
        )
    return part[0], part[1]


def place_inputs(x: Tensor, device: torch.device, dtype: torch.dtype, place: str) -> Tensor:
    """Inputs on the device, or on the host if they are to stay there or leave too little room."""
    on_host = place == "host"
    if place == "auto" and device.type == "cuda" and not x.is_cuda:
        n_bytes = x.numel() * dtype.itemsize
        on_host = n_bytes > DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]
    return x.to(device="cpu" if on_host else device, dtype=dtype)


def rows_on(device: torch.device, x: Tensor, rows: Tensor) -> Tensor:
    """x[rows] on the device; from the host through pinned memory, so that nothing waits for the copy."""
    found = x.index_select(0, rows)
    if found.device == device:
        return found
    return (found.pin_memory() if device.type == "cuda" else found).to(device, non_blocking=True)
