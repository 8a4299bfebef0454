"""Rows in proportion to a probability, at a cost that does not grow with their number; and where they are kept."""

from __future__ import annotations

from collections.abc import Callable

from smodice_cli.errors import InputError
from smodice_cli.lazy import Device, Generator, Tensor, np, torch

FITS = 0.5  # of a device's free memory, that columns may take


def row_sampler(probability: np.ndarray, generator: Generator) -> Callable[[int], Tensor]:
    """Draws rows in proportion to `probability`, which need not sum to 1; plain integers where it is uniform."""
    rows = len(probability)
    if not probability.any():
        raise InputError("no rows are left to learn from: every one has probability 0")
    if probability.min() == probability.max():
        return lambda count: torch.randint(rows, (count,), generator=generator)
    keep, other = map(torch.from_numpy, alias_table(probability))

    def sample(count: int) -> Tensor:
        drawn = torch.randint(rows, (count,), generator=generator)
        kept = torch.rand(count, generator=generator) < keep.index_select(0, drawn)
        return torch.where(kept, drawn, other.index_select(0, drawn).long())

    return sample


def resident(device: Device, *columns: Tensor) -> tuple[Tensor, ...]:
    """Columns that batches are drawn from: on the device where all of them fit, else in memory as they are."""
    size = sum(column.nbytes for column in columns)
    if device.type == "cpu" or size > FITS * torch.cuda.mem_get_info(device)[0]:
        return columns
    return tuple(column.to(device) for column in columns)


def moved(tensor: Tensor, device: Device) -> Tensor:
    """A tensor on another device, sent there without waiting for what that still has to do."""
    return tensor.to(device, non_blocking=True)


def alias_table(probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's table: a uniformly drawn row i stands with probability keep[i], and otherwise gives way to other[i].

    Every row owns the same share of the draws. In order, rows below the mean fill theirs up from the first row above it
    that has some to spare; one that gives its last fill more than it had fills up from the next. All of it follows from
    the cumulative sums of what is lacking and of what is spare.
    """
    # The mean of nearly equal numbers can be rounded to more than the largest of them.
    share = probability / min(probability.mean(dtype=np.float64), probability.max())
    below, above = (np.flatnonzero(side).astype(np.int32) for side in (share < 1, share >= 1))
    keep, other = share.astype(np.float32), np.arange(len(share), dtype=np.int32)
    keep[above] = 1
    lacking, spare = np.cumsum(1 - share[below]), np.cumsum(share[above] - 1)
    del share  # the rest needs room for its searches
    other[below[:1]] = above[np.searchsorted(spare, 0.0, side="right").clip(max=len(above) - 1)]
    other[below[1:]] = above[np.searchsorted(spare, lacking[:-1], side="right").clip(max=len(above) - 1)]
    last = np.searchsorted(lacking, spare[:-1])
    overdrawn = np.flatnonzero(last < len(below))
    keep[above[overdrawn]] = 1 - (lacking[last[overdrawn]] - spare[overdrawn])
    other[above[overdrawn]] = above[overdrawn + 1]
    return keep, other
