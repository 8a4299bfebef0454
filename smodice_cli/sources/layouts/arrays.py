"""What layouts share: arrays with a row a step as float32 matrices and as flags, and how many rows make a block.

Nothing is silently taken for something else: whole numbers are no actions, and a row is a vector, not a picture.
"""

from __future__ import annotations

import fnmatch
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from smodice_cli.data import Transitions, concatenate, offsets_of
from smodice_cli.errors import InputError, nearest
from smodice_cli.lazy import h5py, np
from smodice_cli.sources.layouts import outside
from smodice_cli.sources.source import Blocks, Parts

BLOCK_ROWS = 1 << 16
ROOM = 1 << 28  # bytes that a column may declare whatever is stored of it ...
RATIO = 20  # ... and times what is stored: more than recordings can be compressed
# What columns that number episodes are called ...
NUMBERING = re.compile(
    r"(episode|traj|demo).*|(ep|run|trial|rollout|attempt|recording)([_ .-]?(id|idx|index|no|nr|number))?"
)
# ... that mark ends ...
MARKING = re.compile(r"(is_?)?(done|end|last|final|terminal|terminated|truncated|timeout)s?")
OBSERVING = ("obs", "state")  # ... and how those of states begin, and of actions
ACTING = ("act", "cmd", "command", "ctrl", "control", "torque", "tau", "effort", "motor")
PICTURE = 16  # pixels: two axes of a row that are both at least as long make a picture


class Named(Mapping[str, Any]):
    """Columns by our names, where the user said what those are called in the file."""

    def __init__(self, columns: Any, keys: Iterable[tuple[str, str]]) -> None:
        self.columns = columns
        self.theirs = {ours: name for ours, name in keys if name in columns}

    def __getitem__(self, name: str) -> Any:
        return self.columns[self.theirs.get(name, name)]

    def __contains__(self, name: object) -> bool:
        return name in self.theirs or name in self.columns

    def __iter__(self) -> Iterator[str]:
        ours = {theirs: name for name, theirs in self.theirs.items()}
        return iter([ours.get(name, name) for name in self.columns])

    def __len__(self) -> int:
        return len(self.columns)

    def close(self) -> None:
        """Close the file they are in."""
        self.columns.close()


class Joined:
    """Several columns side by side, as one."""

    def __init__(self, columns: Sequence[Any]) -> None:
        self.columns = columns
        self.shape = (columns[0].shape[0], sum(map(width, columns)))
        self.dtype, self.size = np.dtype(np.float32), int(np.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, window: slice) -> np.ndarray:
        return np.concatenate([matrix(column, window) for column in self.columns], axis=1)


def pick(wanted: Sequence[str], there: Iterable[str], origin: str, flag: str) -> list[str]:
    """The names that a choice of names and patterns selects, in its order; each must select something."""
    known = list(there)
    found: dict[str, None] = {}
    for pattern in wanted:
        chosen = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not chosen:
            has = ", ".join(sorted(known)) or "nothing"
            raise InputError(
                f"{origin} has no '{pattern}', which {flag} names (it has: {has})", nearest(pattern, known)
            )
        found |= dict.fromkeys(chosen)
    return list(found)


def join(there: Mapping[str, Any], chosen: Sequence[str], origin: str) -> tuple[Any, Parts]:
    """The chosen parts of an observation as one column, and the names of its dimensions."""
    for name in chosen:
        check_numbers(there[name], name, origin)
    sizes = {name: there[name].shape[0] for name in chosen}
    if len(set(sizes.values())) > 1:
        raise InputError(f"{origin}: parts of the observation differ in their rows: {sizes}")
    names = [dimension for name in chosen for dimension in dimensions(name, width(there[name]))]
    return Joined([there[name] for name in chosen]), tuple(names)


def dimensions(name: str, count: int) -> list[str]:
    """The names of the dimensions of a part."""
    return [name] if count == 1 else [f"{name}[{index}]" for index in range(count)]


def check_numbers(column: Any, name: str, origin: str, *, action: bool = False) -> None:
    """Refuse a column that is no vector of numbers a row, and actions that are a choice and no quantity."""
    kind = getattr(getattr(column, "dtype", None), "kind", "")
    if kind not in "biuf" or not kind or not column.shape:
        what = {"c": ": it holds complex numbers", "O": ": it holds objects", "": ""}.get(kind, ": it holds text")
        raise InputError(
            f"{origin}: '{name}' is not an array of numbers{what}", "real numbers, one row a step, would do"
        )
    axes = [length for length in column.shape[1:] if length != 1]
    if len(axes) > 1:
        shape = " x ".join(map(str, axes))
        if kind == "u" or sum(length >= PICTURE for length in axes) > 1:
            hint = "states are vectors: choose another part of the observation, or encode pictures as vectors first"
            raise InputError(f"{origin}: '{name}' holds pictures ({shape} a row), which are not read", hint)
        hint = "a row is one step: store episodes one after the other, and a step as a vector"
        raise InputError(f"{origin}: '{name}' holds {shape} numbers a row, not a vector", hint)
    if action and kind in "biu":
        raise InputError(
            f"{origin}: '{name}' holds whole numbers ({column.dtype}), as a choice among actions does: "
            "only quantities can be imitated",
            "if they are quantities, store them as float32",
        )


def listing(columns: Any, prefix: str = "", seen: list[Any] | None = None) -> dict[str, str]:
    """Every array of a file, in groups too, by name: its shape and type; of numbered groups the first, each once."""
    found: dict[str, str] = {}
    numbered: set[str] = set()
    seen = [] if seen is None else seen
    for key in columns:
        item, name = columns.get(key), key if isinstance(key, str) else repr(key)  # HDF5 has names that are no text
        if hasattr(item, "shape"):
            found[prefix + name] = f"{' x '.join(map(str, item.shape)) or 'one value'} {item.dtype}"
            continue
        if item in seen:  # a file may hold itself
            continue
        if not hasattr(item, "keys"):
            found[prefix + name] = "no array"
            continue
        seen.append(item)
        stem = name.rstrip("0123456789")
        if stem != name and stem in numbered:
            continue
        numbered.add(stem)
        found |= listing(item, f"{prefix}{name}/", seen)
    return found


def batched(episodes: Iterable[Transitions]) -> Blocks:
    """Blocks of BLOCK_ROWS rows or a little more, of smaller ones."""
    waiting: list[Transitions] = []
    rows = 0
    for block in episodes:
        waiting.append(block)
        rows += block.rows
        if rows >= BLOCK_ROWS:
            yield concatenate(waiting)
            waiting, rows = [], 0
    if waiting:
        yield concatenate(waiting)


def shifted(block: Transitions, states_only: bool) -> Transitions:
    """Next states from the following row; an episode's last row stays only if the task ended there.

    Or, of states alone, if it is the only one.
    """
    ends = block.offsets[1:] - 1
    keep = np.ones(block.rows, bool)
    keep[ends] = block.terminals[ends] | (states_only & (np.diff(block.offsets) == 1))
    next_observations = np.roll(block.observations, -1, axis=0)
    next_observations[ends] = block.observations[ends]
    timeouts = block.timeouts.copy()
    cut = ends[~keep[ends] & (np.diff(block.offsets) > 1)]
    timeouts[cut - 1] = True  # the row before a dropped one is now where the episode was cut
    lengths = np.add.reduceat(keep, block.offsets[:-1], dtype=np.int64)
    found = replace(block, next_observations=next_observations, timeouts=timeouts)
    return found.rows_at(keep, offsets_of(lengths[lengths > 0]), lengths > 0)


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


def numbering(names: Iterable[str]) -> str:
    """The column that probably numbers the episodes; '' where none is called so."""
    return next((name for name in names if NUMBERING.fullmatch(name.lower())), "")


def marking(names: Iterable[str]) -> str:
    """The column that probably marks where episodes end; '' where none is called so."""
    ours = ("terminals", "timeouts")
    return next((name for name in names if name not in ours and MARKING.fullmatch(name.lower())), "")


def is_marks(column: Any, rows: int) -> bool:
    """Whether a column holds true or false, 1 or 0, for each row, and some are true."""
    if getattr(column, "size", 0) != rows:
        return False
    found = np.asarray(column[:])
    return bool(np.isin(found, (0, 1)).all() and found.any())


def unmarked(origin: str, likely: str, keys: Iterable[tuple[str, str]]) -> InputError:
    """The error of a recording whose episodes probably end where a column says so that nobody has named."""
    given = "".join(f"{ours}={theirs}," for ours, theirs in keys)
    return InputError(
        f"{origin} has a column '{likely}', and nothing says whether it marks where episodes end",
        f"--keys {given}timeouts={likely} (they are cut there) or --keys {given}terminals={likely} (the task is over)",
    )


def whole_numbers(column: np.ndarray, origin: str, name: str) -> np.ndarray:
    """A column that counts something."""
    found = column.reshape(-1)
    if not np.isfinite(found).all() or (found != np.rint(found)).any():
        raise InputError(f"{origin}: '{name}' must be a whole number in each row")
    return found.astype(np.int64)


def uncertain(origin: str, likely: str) -> InputError:
    """The error of a recording whose episodes are probably numbered by a column that nobody has named."""
    return InputError(
        f"{origin} has a column '{likely}', and nothing says whether it numbers the episodes",
        f"--episode-column {likely}",
    )


def unnumbered(origin: str, name: str, columns: Iterable[str]) -> InputError:
    """The error of a recording without the column that --episode-column names."""
    has = ", ".join(columns)
    return InputError(f"{origin} has no '{name}', which --episode-column names (it has: {has})")


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
