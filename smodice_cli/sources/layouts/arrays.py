"""What layouts share: arrays with a row a step as float32 matrices and as flags, and how many rows make a block."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from smodice_cli.errors import InputError
from smodice_cli.lazy import h5py, np
from smodice_cli.sources.layouts import outside

BLOCK_ROWS = 1 << 16
ROOM = 1 << 28  # bytes that a column may declare whatever is stored of it ...
RATIO = 20  # ... and times what is stored: more than recordings can be compressed


def width(column: Any) -> int:
    """The numbers in a row."""
    return int(np.prod(column.shape[1:], dtype=np.int64))


def matrix(column: Any, window: slice) -> np.ndarray:
    """Rows of a column, whatever its shape and type, as a float32 matrix."""
    check_held(column)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        return np.asarray(column[window], np.float32).reshape(window.stop - window.start, -1)


def actions_and_rewards(columns: Any, window: slice) -> tuple[np.ndarray, np.ndarray]:
    """Rows of both; where there are none, actions have no dimensions and rewards are 0."""
    rows = window.stop - window.start
    actions = matrix(columns["actions"], window) if "actions" in columns else np.zeros((rows, 0), np.float32)
    rewards = matrix(columns["rewards"], window).reshape(-1) if "rewards" in columns else np.zeros(rows, np.float32)
    return actions, rewards


def flags(columns: Any, name: str, rows: int, origin: str) -> np.ndarray:
    """A column of marks, all false where there is none."""
    if name not in columns:
        return np.zeros(rows, bool)
    check_held(columns[name])
    found = np.asarray(columns[name][:]).reshape(-1)
    if len(found) != rows or not np.isin(found, (0, 1)).all():
        raise InputError(f"{origin}: '{name}' must be true or false, 1 or 0, for each row")
    return found.astype(bool)


def check_held(column: Any) -> None:
    """Refuse an HDF5 column whose numbers lie elsewhere, or that declares far more of them than the file holds."""
    if isinstance(column, h5py.Dataset):
        outside.check(column)
        size = column.size * column.dtype.itemsize
        if size > ROOM:
            check_size(size, column.id.get_storage_size(), f"{column.file.filename}: '{column.name}'")


def check_size(size: int, held: int, what: str) -> None:
    """Refuse what would take far more memory than the bytes that are really there."""
    if size > ROOM + RATIO * held:
        raise InputError(f"{what} declares {size / 1e6:,.0f} MB of numbers, but only {held / 1e6:,.1f} MB are stored")


def quick(column: Any, pool: ThreadPoolExecutor) -> Any:
    """The column itself, or a view of it that reads windows of rows faster where its storage allows."""
    check_held(column)
    plain = column.dtype.kind in "biuf" and column.dtype.isnative and column.size
    if not plain or getattr(column, "compression", None) != "gzip":
        return column
    return column if column.fletcher32 or column.scaleoffset is not None else Compressed(column, pool)


class Compressed:
    """A gzip-compressed HDF5 column, read in windows that go forward, its chunks decompressed on all cores.

    HDF5 itself does one after the other; D4RL's files are stored that way, and it is most of the time of reading one.
    """

    def __init__(self, dataset: Any, pool: ThreadPoolExecutor) -> None:
        self.dataset, self.pool = dataset, pool
        self.dtype, self.chunk = dataset.dtype, dataset.chunks
        self.kept: dict[tuple[int, ...], np.ndarray] = {}  # chunks that reach beyond the last window, by their place

    def __getitem__(self, window: slice) -> np.ndarray:
        shape = (window.stop - window.start, *self.dataset.shape[1:])
        boxes = self.dataset.iter_chunks((window, *(slice(0, length) for length in shape[1:])))
        parts = {tuple(p.start - p.start % n for p, n in zip(box, self.chunk, strict=True)): box for box in boxes}
        packed = {place: self._packed(place) for place in parts if place not in self.kept}
        if any(data is None for data in packed.values()):
            return self.dataset[window]
        chunks = self.kept | dict(zip(packed, self.pool.map(self._unpack, packed.values()), strict=True))
        rows = np.empty(shape, self.dtype)
        for place, box in parts.items():
            inside = tuple(slice(part.start - at, part.stop - at) for part, at in zip(box, place, strict=True))
            rows[box[0].start - window.start : box[0].stop - window.start, *box[1:]] = chunks[place][inside]
        self.kept = {place: chunks[place] for place in parts if place[0] + self.chunk[0] > window.stop}
        return rows

    def _packed(self, place: tuple[int, ...]) -> bytes | None:
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
