"""Rows of gzip-compressed HDF5 columns, the chunks decompressed on all cores: HDF5 itself does one after the other.

D4RL's files are stored that way, and decompressing is most of the time it takes to read one.
"""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np

Place = tuple[int, ...]


def column(dataset: Any, pool: ThreadPoolExecutor) -> Any:
    """The dataset itself, or a view of it that reads windows of rows faster where its storage allows."""
    plain = dataset.dtype.kind in "biuf" and dataset.dtype.isnative
    if plain and dataset.compression == "gzip" and not dataset.fletcher32 and dataset.scaleoffset is None:
        return Column(dataset, pool)
    return dataset


class Column:
    """A gzip-compressed column, read in windows that go forward; whatever else is asked goes to the dataset."""

    def __init__(self, dataset: Any, pool: ThreadPoolExecutor) -> None:
        self.dataset, self.pool = dataset, pool
        self.shape, self.dtype, self.size = dataset.shape, dataset.dtype, dataset.size
        self.chunk: Place = dataset.chunks
        self.kept: dict[Place, np.ndarray] = {}  # chunks that reach beyond the last window

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, window: slice) -> np.ndarray:
        start, stop, _ = window.indices(len(self))
        places = list(product(*self._starts(start, stop)))
        packed = {place: self._packed(place) for place in places if place not in self.kept}
        if any(data is None for data in packed.values()):
            return self.dataset[window]
        chunks = self.kept | dict(zip(packed, self.pool.map(self._unpack, packed.values()), strict=True))
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for place in places:
            self._copy(chunks[place], place, rows, start)
        self.kept = {place: chunks[place] for place in places if place[0] + self.chunk[0] > stop}
        return rows

    def _starts(self, start: int, stop: int) -> list[range]:
        """Where chunks begin along each axis."""
        first = start // self.chunk[0] * self.chunk[0]
        others = zip(self.shape[1:], self.chunk[1:], strict=True)
        return [range(first, stop, self.chunk[0]), *(range(0, length, size) for length, size in others)]

    def _packed(self, place: Place) -> bytes | None:
        """A chunk as it is stored, or None where it is not simply compressed."""
        try:
            skipped, data = self.dataset.id.read_direct_chunk(place)
        except (OSError, RuntimeError, ValueError):  # never written: it holds the fill value
            return None
        return None if skipped else data

    def _unpack(self, data: bytes) -> np.ndarray:
        size = int(np.prod(self.chunk)) * self.dtype.itemsize
        flat = np.frombuffer(zlib.decompress(data, bufsize=size), np.uint8)
        if self.dataset.shuffle:  # all first bytes, then all second bytes, ...
            flat = np.ascontiguousarray(flat.reshape(self.dtype.itemsize, -1).T).reshape(-1)
        return flat.view(self.dtype).reshape(self.chunk)

    def _copy(self, chunk: np.ndarray, place: Place, rows: np.ndarray, start: int) -> None:
        low, high = max(place[0], start), min(place[0] + self.chunk[0], start + len(rows))
        widths = [
            min(size, length - at) for at, size, length in zip(place[1:], self.chunk[1:], self.shape[1:], strict=True)
        ]
        target = (
            slice(low - start, high - start),
            *(slice(at, at + w) for at, w in zip(place[1:], widths, strict=True)),
        )
        source = (slice(low - place[0], high - place[0]), *(slice(0, w) for w in widths))
        rows[target] = chunk[source]
