"""Layouts of recorded files. A layout is one module, and one line here; the last of the list is asked first.

Within `kept_open` a file is opened once, however often it is read. A folder, or a pattern, that is no recording itself
stands for the recordings in it (`many`).
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from csv import Error as CsvError
from pathlib import Path
from typing import Any, ClassVar

from smodice_cli.containers import open_hdf5
from smodice_cli.errors import InputError
from smodice_cli.files import check_regular, first_line
from smodice_cli.lazy import h5py
from smodice_cli.registry import Registry
from smodice_cli.sources.layouts import arrays, foreign, outside
from smodice_cli.sources.source import EVERYTHING, Blocks, Choice, Contents

# What h5py, numpy, pyarrow and zarr raise on files that are cut short or damaged.
DAMAGE = (
    *(OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError, MemoryError, EOFError),
    *(zipfile.BadZipFile, zlib.error, CsvError, tokenize.TokenError),  # the last of an .npy with a cut header
    SystemError,  # a chunk of a negative size
)


class Layout:
    """A recording that is open, read in one layout."""

    format: ClassVar[str] = "an HDF5 file"  # what a damaged file is said not to be
    extra: ClassVar[tuple[str, str]] = ("", "")  # a package it needs, and our extra that brings it
    filters: ClassVar[bool] = False  # whether it has named parts of its episodes, for #filter=NAME
    numbered: ClassVar[bool] = False  # whether a column may number its episodes, for --episode-column

    def __init__(self, path: Path, file: Any, choice: Choice = EVERYTHING) -> None:
        """`file` is the open HDF5 file, None where it is of another format; `choice` says what is read of it."""
        self.path, self.file, self.choice, self.origin = path, file, choice, str(path)
        if choice.subset and not self.filters:
            raise InputError(f"{path}: #filter={choice.subset} is for robomimic's filter keys and LeRobot's splits")
        if choice.episode and choice.must_number and not self.numbered:
            raise InputError(
                f"{path}: --episode-column {choice.episode} is for tables and for columns with a row a step",
                "leave it out: this recording says itself where its episodes end",
            )

    @property
    def members(self) -> list[Path]:
        """The files that its episodes are numbered by."""
        return [self.path]

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        """Whether a file, or a folder, has this layout."""
        raise NotImplementedError

    def describe(self) -> Contents:
        """What it holds, without reading all of it."""
        raise NotImplementedError

    def episodes(self, horizon: int, *, states_only: bool = False) -> Blocks:
        """Blocks of whole episodes; `horizon` is the time limit, `states_only` accepts a file without actions."""
        raise NotImplementedError

    def listing(self) -> dict[str, str]:
        """What lies in it, by name: shapes and types."""
        return arrays.listing(self.file)

    def flags(self) -> list[str]:
        """What build-dataset must be told beside the choice that was made: flags with values that are a good guess."""
        return []

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


LAYOUTS: Registry[type[Layout]] = Registry(
    "layout",
    {
        "many": "smodice_cli.sources.layouts.many:Many",
        "d4rl": "smodice_cli.sources.layouts.d4rl:D4rl",
        "aloha": "smodice_cli.sources.layouts.aloha:Aloha",
        "minari": "smodice_cli.sources.layouts.minari:Minari",
        "robomimic": "smodice_cli.sources.layouts.robomimic:Robomimic",
        "npz": "smodice_cli.sources.layouts.d4rl:Npz",
        "ogbench": "smodice_cli.sources.layouts.ogbench:OgBench",
        "mjlab": "smodice_cli.sources.layouts.mjlab:Motion",
        "npy": "smodice_cli.sources.layouts.npy:Npy",
        "csv": "smodice_cli.sources.layouts.csv:Csv",
        "parquet": "smodice_cli.sources.layouts.parquet:Parquet",
        "lerobot": "smodice_cli.sources.layouts.lerobot:LeRobot",
        "zarr": "smodice_cli.sources.layouts.zarr:Zarr",
    },
)
_kept: dict[tuple[Path, Choice], Layout] | None = None


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
def opened(path: Path, choice: Choice = EVERYTHING, *, keep: bool = True) -> Iterator[Layout]:
    """The recording at a path; what is wrong with it, there or while it is read, becomes one sentence.

    One of many (`keep` is false) is closed at once: no process may have them all open.
    """
    kept = _kept if keep else None
    found = (kept or {}).get((path.resolve(), choice))
    recording = found or _open(path, choice)
    if kept is not None:
        kept[path.resolve(), choice] = recording
    try:
        with damage_explained(path, recording.format):
            yield recording
    finally:
        if kept is None:
            recording.close()


def _open(path: Path, choice: Choice) -> Layout:
    check_regular(path)
    with ExitStack() as stack, damage_explained(path, Layout.format):
        file = None
        if path.is_file() and h5py.is_hdf5(path):
            whole = stack.enter_context(open_hdf5(path))
            outside.named(whole)
            file = arrays.Named(whole, choice.names)
        for layout in [LAYOUTS[name] for name in reversed(list(LAYOUTS))]:
            if layout.recognises(path, file):
                _check_extra(path, layout)
                with damage_explained(path, layout.format):
                    recording = layout(path, file, choice)
                stack.pop_all()  # from now on the recording closes the file
                return recording
        if file is not None:
            raise missing(str(path), file, "observations")
        raise foreign.refused(path)


def _check_extra(path: Path, layout: type[Layout]) -> None:
    """Refuse a format whose package is not installed."""
    package, extra = layout.extra
    try:
        if package:
            __import__(package)
    except ImportError as error:
        raise InputError(
            f"{path} is {layout.format}, and reading it needs the {package} package", f"pip install 'smodice[{extra}]'"
        ) from error


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
    return InputError(
        f"{origin} has no '{name}' (it has: {there})",
        f"if it is called otherwise there, say so, e.g. --keys {name}=NAME, or of an expert's states alone "
        f"--expert-keys NAME; {foreign.FORMATS}",
    )
