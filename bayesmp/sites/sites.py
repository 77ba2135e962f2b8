"""The store of per-batch messages. Posterior = prior x all sites; a visit replaces a site and never adds a second one.

A site is the Gaussian message with precision rho_b and, at the common point `origin`, the slope
slope_b + shift + rho_b offset:

    tau_b = slope_b + shift + rho_b (origin + offset)

`origin`, `shift` and `offset` are shared by all sites, so a schedule that moves the mean can carry all sites along
without touching them (parallel.py): `offset` changes each slope in proportion to the site's precision, `shift` all of
them alike. Where the three are 0 the stored slopes are the natural parameters tau_b themselves.
"""

from __future__ import annotations

import errno
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.messages.gaussian import Gaussian
from bayesmp.sites.row_file import RowFile
from bayesmp.sites.staging import HostRows, Staging

PLACES = ("auto", "device", "host", "disk")
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
DEVICE_SHARE = 0.6  # of the free device memory that sites may take before they are kept on the host
HOST_SHARE = 0.6  # of the free host memory before they go to a memory-mapped file


@dataclass(frozen=True)
class SiteIndex:
    """Which site: as a number for stores on the host, and as a (1,) tensor for stores on the device, where it can be
    read without waiting for the device. A staged one was brought to where visits look (staging.py)."""

    row: int
    tensor: Tensor
    is_staged: bool = False

    def row_of(self, store: Tensor) -> Tensor:
        """The entry of a store (n, ...): a view on the CPU, a copy elsewhere."""
        return store[self.row] if store.device.type == "cpu" else store.index_select(0, self.tensor)[0]

    def replace(self, store: Tensor, values: Tensor) -> None:
        """Put values in place of the first ones of the entry."""
        if store.device.type == "cpu":
            store[self.row, : len(values)] = values
            return
        row = store.index_select(0, self.tensor)
        row[0, : len(values)] = values
        store.index_copy_(0, self.tensor, row)


@dataclass(frozen=True)
class StoragePlan:
    """Where sites live, in which precision, and how many bytes that takes."""

    place: str  # "device", "host" or "disk"
    dtype: torch.dtype
    n_bytes: int

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"sites: {format_bytes(self.n_bytes)} in {kind} on {self.place}"


class Sites:
    """One site per batch for all weights, (n, w) each of slope and rho, and for the head's constant, (n, k).

    `store` is where they lie, (2, n, w); with staging, rows may be newer on the device, and `slope` and `rho` wait for
    them.

    Args:
        n_sites: number of batches.
        n_weights, n_grid: entries of a weight site and of a head site.
        plan: where they live and in which precision, see `plan_storage`.
        dtype, device: precision of the network, and where sites are used.
    """

    def __init__(
        self,
        n_sites: int,
        n_weights: int,
        n_grid: int,
        *,
        plan: StoragePlan,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.plan = plan
        self.dtype, self.device = dtype, device
        self.store, self._holder = self._allocate((2, n_sites, n_weights), plan)
        self.origin = torch.zeros(n_weights, dtype=dtype, device=device)
        self.shift = torch.zeros(n_weights, dtype=torch.float64, device=device)  # sums over all visits
        self.offset = torch.zeros(n_weights, dtype=torch.float64, device=device)
        self.head = torch.zeros(n_sites, n_grid, dtype=torch.float64, device=device)
        self._staging = self._make_staging()
        self._numbers = torch.arange(n_sites, device=device)

    def _make_staging(self) -> Staging | None:
        if self.device.type != "cuda" or self._holder is None:
            return None
        return Staging(self.store, self._holder, self.device)

    @property
    def slope(self) -> Tensor:
        """(n, w), as stored."""
        return self._complete()[0]

    @property
    def rho(self) -> Tensor:
        """Precisions of all sites, (n, w)."""
        return self._complete()[1]

    def _complete(self) -> Tensor:
        return self.store if self._staging is None else self._staging.complete()

    def state(self) -> dict[str, Tensor]:
        """All tensors of the store, to be saved, or filled from a file (then call `recount`)."""
        return {
            "slope": self.slope,
            "rho": self.rho,
            "origin": self.origin,
            "shift": self.shift,
            "offset": self.offset,
            "head": self.head,
        }

    def recount(self) -> None:
        """Sum all sites anew where a running sum is kept."""
        if self._staging is not None:
            self._staging.recount()

    def __len__(self) -> int:
        return self.store.shape[1]

    def get(self, index: SiteIndex) -> tuple[Tensor, Tensor]:
        """(slope, rho) of one batch as stored, ready for arithmetic."""
        if index.is_staged and self._staging is not None:
            slope, rho = self._staging.old
        elif self.plan.place == "device":
            slope, rho = self.store.index_select(1, index.tensor).view(2, -1).unbind(0)
        else:  # copies, even on the same device: the row may be replaced before the old site is used
            slope, rho = (part[index.row].to(self.device, copy=True) for part in self._complete())
        return self._widen(slope), self._widen(rho)

    def row(self, index: SiteIndex) -> tuple[Tensor, Tensor] | None:
        """(slope, rho) of one batch on the CPU, to be changed in place; None elsewhere, or in another precision."""
        if self._staging is not None or self.store.device.type != "cpu" or self.plan.dtype != self.dtype:
            return None
        return self.store[0, index.row], self.store[1, index.row]

    def replace(self, index: SiteIndex, slope: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        """Put a new site in place of the old one; returns it as stored, i.e. rounded to the store's precision."""
        slope, rho = slope.to(self.plan.dtype), rho.to(self.plan.dtype)
        if index.is_staged and self._staging is not None:
            self._staging.replace(slope, rho)
        elif self.plan.place == "device":
            for part, row in zip(self.store, (slope, rho), strict=True):
                part.index_copy_(0, index.tensor, row[None])
        else:
            for part, row in zip(self._complete(), (slope, rho), strict=True):
                part[index.row].copy_(row)
            self.recount()
        return self._widen(slope), self._widen(rho)

    def staged(self, index: SiteIndex) -> SiteIndex:
        """Bring the site to where a visit finds it whatever its number; the visit ends with `unstage`."""
        if self._staging is None:
            return index
        self._staging.bring(index.row)
        return SiteIndex(index.row, index.tensor, is_staged=True)

    def unstage(self, index: SiteIndex) -> None:
        """Take the site that a visit has left back to its place."""
        if self._staging is not None:
            self._staging.send(index.row)

    def prefetch(self, row: int) -> None:
        """Begin to move a row that a later visit will ask for, beside what the device does until then."""
        if self._staging is not None:
            self._staging.fetch(row)

    @property
    def ahead(self) -> int:
        """How many visits before its own a row should be sent for."""
        return 0 if self._staging is None else self._staging.ahead

    def index(self, row: int) -> SiteIndex:
        """The index of the site in this row."""
        return SiteIndex(row, self._numbers[row : row + 1])

    def common(self, rho: Tensor) -> Tensor:
        """What is added to the stored slope of a site with precision rho, in double precision."""
        return torch.addcmul(self.shift, rho.double(), self.offset)

    def share_out(self, change: Tensor, rho: Tensor, own_rho: Tensor) -> None:
        """Change the slopes of all sites at the origin so that their sum changes by this much.

        Each site takes what its precision says of a move, because slopes of batches that know nothing of a direction do
        not change along it; what the prior's precision is of the whole is shared out equally.

        Args:
            rho: precision of prior x all sites.
            own_rho: that of the prior alone.
        """
        part = change.double() / rho
        self.offset.add_(part)
        self.shift.addcmul_(part, own_rho.double(), value=1.0 / len(self))

    def site(self, row: int) -> Gaussian:
        """The message of one batch in natural parameters."""
        slope, rho = self.get(self.index(row))
        return Gaussian(slope + self.common(rho).to(slope) + rho * self.origin, rho)

    def natural(self, row: int) -> Gaussian:
        """The same in double precision."""
        slope, rho = (part[row].to(self.device, torch.float64, copy=True) for part in self._complete())
        return Gaussian(slope + self.common(rho) + rho * self.origin.double(), rho)

    def said(self, row: int) -> Tensor:
        """The slope of one batch's message at the origin, (w,) in double precision; what may be rounding only is 0."""
        slope, rho = (part[row].to(self.device).double() for part in self._complete())
        common = self.common(rho)
        smallest = torch.finfo(self.plan.dtype).eps * common.abs()
        found = slope + common
        return found.masked_fill_(found.abs() <= smallest, 0.0)

    def weaken(self, row: int, share: float, slope: Tensor | None = None) -> Tensor:
        """Leave a share of one batch's message, to the weights and to the head's constant; returns how much its slope
        at the origin has changed, (w,) in double precision. Call `recount` when all are done.

        Args:
            slope: what the part that goes says of the slope, where that is known better than by its share.
        """
        rows = self._complete()
        before = self._slope_at_origin(row)
        left = share * before if slope is None else before - slope
        rows[1, row] *= share
        rows[0, row] = (left - self.common(rows[1, row].to(self.device))).to(rows)
        self.head[row] *= share
        return self._slope_at_origin(row) - before

    def _slope_at_origin(self, row: int) -> Tensor:
        slope, rho = (part[row].to(self.device, torch.float64, copy=True) for part in self._complete())
        return slope + self.common(rho)

    def rearrange(self, kept: Sequence[int], n_new: int, plan: StoragePlan) -> None:
        """Keep the sites of these rows, in this order, and put new ones behind them that say nothing.

        Stored messages are not touched, and those of the store as it was stay in it as long as someone holds that: a
        file goes with the last who does. A new one has precision 0 and the slope -shift, which is nothing but for
        rounding; so taking a site out is exact, and putting one in leaves the posterior where it is.
        """
        old, n = self._complete(), len(kept) + n_new
        rows, holder = self._allocate((2, n, old.shape[2]), plan)
        for row, before in enumerate(kept):
            rows[:, row] = old[:, before].to(rows)
        rows[0, len(kept) :] = -self.shift.to(rows)
        rows[1, len(kept) :] = 0.0
        self.head = torch.cat([self.head[list(kept)], self.head.new_zeros(n_new, self.head.shape[1])])
        self.plan = plan
        self.store, self._holder = rows, holder
        self._numbers = torch.arange(n, device=self.device)
        self._staging = self._make_staging()
        if self._staging is not None:
            self._staging.take_all()

    def fill(self, rho: Tensor, head: Tensor, *, origin: Tensor) -> None:
        """The same site for every batch: precision rho, slope 0 at the origin."""
        self.shift.zero_()
        self.offset.zero_()
        self.origin.copy_(origin)
        self.head.copy_(head.expand(len(self), -1))
        if self._staging is not None:
            self._staging.fill(torch.stack([torch.zeros_like(rho), rho]))
            return
        self.store[0].zero_()
        self.store[1].copy_(rho.expand(len(self), -1))

    def posterior(self, prior: Gaussian) -> Gaussian:
        """prior x all sites, summed in double precision so that no drift builds up over epochs."""
        slope, rho = (self._total(part) for part in self.store) if self._staging is None else self._staging.totals
        slope = slope + len(self) * self.shift
        total = Gaussian(slope + rho * (self.origin.double() + self.offset), rho)
        return (prior.map(torch.Tensor.double) * total).map(lambda part: part.to(self.dtype))

    def _total(self, part: Tensor) -> Tensor:
        total = torch.zeros(part.shape[1], dtype=torch.float64, device=self.device)
        rows = max(1, 2**26 // max(1, part.shape[1]))  # bounded memory for the double-precision copy
        for block in part.split(rows):
            total += block.double().sum(0)
        return total

    def head_posterior(self, prior: Tensor) -> Tensor:
        """Log-belief about the head's constant, largest entry 0."""
        total = prior.to(self.head) + self.head.sum(0)
        return (total - total.max()).to(self.dtype)

    def _widen(self, part: Tensor) -> Tensor:
        return part.to(self.dtype)

    def _allocate(self, shape: tuple[int, int, int], plan: StoragePlan) -> tuple[Tensor, HostRows | RowFile | None]:
        """Room for sites, with what it lies in beside plain memory."""
        if plan.place == "device":
            return torch.zeros(shape, dtype=plan.dtype, device=self.device), None
        if plan.place == "host" and self.device.type == "cuda":
            pinned = HostRows(shape, plan.dtype)
            return pinned.tensor, pinned
        if plan.place == "host":
            return torch.zeros(shape, dtype=plan.dtype), None
        free = shutil.disk_usage(tempfile.gettempdir()).free
        try:
            if plan.n_bytes > free:
                raise OSError(errno.ENOSPC, "no room")
            file = RowFile(shape, plan.dtype)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise ValueError(
                f"{plan} do not fit: {format_bytes(free)} are free in {tempfile.gettempdir()}; "
                "set TMPDIR to a larger disk, use site_dtype='bfloat16', or larger batches"
            ) from None
        return file.tensor, file


def plan_storage(
    n_sites: int,
    n_weights: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    place: str = "auto",
    site_dtype: str | None = None,
) -> StoragePlan:
    """Where to keep the sites.

    Args:
        place: "device", "host" (pinned memory), "disk" (memory-mapped temporary file) or "auto": the first of these
            that leaves room to work.
        site_dtype: "float32", "float64" or "bfloat16"; the network's own if not given. bfloat16 halves the memory and
            rounds each site to 3 digits; the posterior stays exactly prior x (rounded) sites.
    """
    if place not in PLACES:
        raise ValueError(f"site_store must be one of {PLACES}, got {place!r}")
    if site_dtype is not None and site_dtype not in DTYPES:
        raise ValueError(f"site_dtype must be one of {tuple(DTYPES)}, got {site_dtype!r}")
    store = dtype if site_dtype is None else DTYPES[site_dtype]
    n_bytes = 2 * n_sites * n_weights * store.itemsize
    if place == "auto":
        place = "device"
        if device.type == "cuda" and n_bytes > DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]:
            place = "host"
        if (place == "host" or device.type == "cpu") and n_bytes > HOST_SHARE * _free_host_memory():
            place = "disk"
    return StoragePlan(place, store, n_bytes)


def format_bytes(n_bytes: float) -> str:
    """A size for people to read, with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


def _free_host_memory() -> float:
    """Available memory in bytes where the system tells (Linux), else infinity: then nothing is moved to disk."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        return 1024.0 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return math.inf
