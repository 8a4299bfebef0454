"""Layouts of recorded files. A layout is one module, and one line here; the last of the list is asked first.

Within `kept_open` a file is opened once, however often it is read.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from smodice_cli.errors import InputError
from smodice_cli.files import first_line
from smodice_cli.lazy import h5py
from smodice_cli.registry import Registry
from smodice_cli.sources.layouts import outside
from smodice_cli.sources.source import PARTS, Blocks, Contents, Parts

# What h5py and numpy raise on files that are cut short or damaged.
DAMAGE = (
    *(OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError, MemoryError, EOFError),
    *(zipfile.BadZipFile, zlib.error),
)


class Layout:
    """A recording that is open, read in one layout."""

    format: ClassVar[str] = "an HDF5 file"  # what a damaged file is said not to be

    def __init__(self, path: Path, file: Any) -> None:
        """`file` is the open HDF5 file; None where it is of another format."""
        self.path, self.file, self.origin = path, file, str(path)

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        """Whether a file has this layout."""
        raise NotImplementedError

    def describe(self, parts: Parts = PARTS) -> Contents:
        """What it holds, without reading all of it; `parts` are joined of observations that are dictionaries."""
        raise NotImplementedError

    def episodes(self, horizon: int, *, states_only: bool = False, parts: Parts = PARTS) -> Blocks:
        """Blocks of whole episodes; `horizon` is the time limit, `states_only` accepts a file without actions."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


LAYOUTS: Registry[type[Layout]] = Registry(
    "layout",
    {
        "d4rl": "smodice_cli.sources.layouts.d4rl:D4rl",
        "minari": "smodice_cli.sources.layouts.minari:Minari",
        "npz": "smodice_cli.sources.layouts.d4rl:Npz",
    },
)
_kept: dict[Path, Layout] | None = None


@contextmanager
def kept_open() -> Iterator[None]:
    """Keep every recording that is opened within this open to its end, for whoever reads it again."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        for recording in _kept.values():
            recording.close()
        _kept = None


@contextmanager
def opened(path: Path) -> Iterator[Layout]:
    """The recording at a path; what is wrong with it, there or while it is read, becomes one sentence."""
    kept = {} if _kept is None else _kept
    recording = kept[path.resolve()] = kept.get(path.resolve()) or _open(path)
    try:
        with damage_explained(path, recording.format):
            yield recording
    finally:
        if _kept is None:
            recording.close()


def _open(path: Path) -> Layout:
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    with ExitStack() as stack, damage_explained(path, Layout.format):
        file = stack.enter_context(h5py.File(path, "r", locking=False)) if h5py.is_hdf5(path) else None
        if file is not None:
            outside.named(file)
        for layout in [LAYOUTS[name] for name in reversed(list(LAYOUTS))]:
            if layout.recognises(path, file):
                with damage_explained(path, layout.format):
                    recording = layout(path, file)
                stack.pop_all()  # from now on the recording closes the file
                return recording
        raise missing(str(path), h5py.File(path, "r") if file is None else file, "observations")


@contextmanager
def damage_explained(path: Path, format: str) -> Iterator[None]:
    """Turn what h5py and numpy say of a damaged file into one sentence."""
    try:
        yield
    except DAMAGE as error:
        raise InputError(f"{path} is not {format}, or is cut short ({first_line(error)})") from error


def missing(origin: str, found: Any, name: str) -> InputError:
    """The error of a file without a column that it needs."""
    there = ", ".join(sorted(found)) or "nothing"
    return InputError(f"{origin} has no '{name}': expected D4RL's or Minari's layout (it has: {there})")
