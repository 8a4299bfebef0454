"""Recordings that reach into other files: HDF5's external links, virtual datasets and external raw storage.

Such a file can show any file of the machine as data, and its own digest does not cover what it shows. So it is refused,
unless the user allows it (`--allow-links`); then everything that it reaches enters the digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smodice_cli.containers import open_hdf5
from smodice_cli.errors import InputError
from smodice_cli.lazy import h5py

HINT = "copy the data into one file, or allow it with --allow-links"
_allowed = False
_named_by_user: set[int] = set()  # the HDF5 library's own numbers of open files, each given once


@contextmanager
def permitted(allow: bool) -> Iterator[None]:
    """Whether recordings opened within this may reach into other files."""
    global _allowed
    before, _allowed = _allowed, allow
    try:
        yield
    finally:
        _allowed = before


def named(file: Any) -> None:
    """Note that an open HDF5 file is one that the user named."""
    _named_by_user.add(h5py.h5o.get_info(file.id).fileno)


def check(dataset: Any) -> None:
    """Refuse a dataset that is not in a file that the user named, or whose numbers are not."""
    if _allowed:
        return
    file, name = dataset.file.filename, dataset.name
    if h5py.h5o.get_info(dataset.id).fileno not in _named_by_user:
        raise InputError(f"the recording takes its numbers from other files: a link leads to '{name}' of {file}", HINT)
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{file}: '{name}' takes its numbers from other files", HINT)


def reached(path: Path) -> list[Path]:
    """The file itself and, where that is allowed, every file that it reaches; one that is not there is an error."""
    found = [path.resolve()]
    for place in found if _allowed and h5py.is_hdf5(path) else ():
        if h5py.is_hdf5(place):
            for other in _named(place):
                if not other.is_file():
                    raise InputError(f"{place} takes data from {other}, which is not there")
                if other.resolve() not in found:
                    found.append(other.resolve())
    return found


def _external_links(file: Any) -> list[str]:
    found: list[str] = []

    def visit(name: bytes, info: Any) -> None:
        if info.type == h5py.h5l.TYPE_EXTERNAL:
            found.append(name.decode(errors="replace"))

    file.id.links.visit(visit, info=True)
    return found


def _named(path: Path) -> list[Path]:
    """The files that an HDF5 file names, from its own folder or else, as the library does, from the current one."""
    names: list[str] = []
    with open_hdf5(path) as file:
        names += [file.get(name, getlink=True).filename for name in _external_links(file)]

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                sources = [source.file_name for source in item.virtual_sources()] if item.is_virtual else []
                if any("%" in source for source in sources):
                    raise InputError(f"{path}: '{name}' names its sources by a pattern, which is not read")
                names.extend([*(s for s in sources if s != "."), *(entry[0] for entry in item.external or ())])

        file.visititems(visit)
    places = [path.parent / name for name in names]
    return [place if place.exists() else Path(name) for place, name in zip(places, names, strict=True)]
