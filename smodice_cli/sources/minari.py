"""`minari:ID`: Minari's data sets, read from its HDF5 storage with h5py; its package is needed only to download one."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path

from smodice_cli.console import console
from smodice_cli.errors import InputError, UsageError, nearest
from smodice_cli.files import first_line
from smodice_cli.sources.file import Recorded

DATA = Path("data") / "main_data.hdf5"


class Minari(Recorded):
    """One of Minari's data sets, by its id."""

    def check(self, example: str) -> None:
        """Refuse what cannot be an id: it would name a place outside Minari's folder, or it has no version."""
        parts = self.name.split("/")
        stem, dash_v, version = parts[-1].rpartition("-v")
        if not all(parts) or ".." in parts or not (stem and dash_v and version.isdigit()):
            raise UsageError(f"source '{self.text}': expected a Minari id such as minari:mujoco/hopper/expert-v0")

    def file(self, *, fetch: bool = True) -> Path | None:
        """The data file, downloaded through the minari package first if it is not there."""
        place = folder() / self.name
        if fetch and not (place / DATA).is_file():
            if place.exists():
                raise InputError(f"{place} has no {DATA}: only Minari's HDF5 storage is read")
            _download(self.name, place)
        return place / DATA if (place / DATA).is_file() else None


def folder() -> Path:
    """Minari's own folder: MINARI_DATASETS_PATH, or its default in the home folder."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def local_ids() -> list[str]:
    """The ids on this machine."""
    root = folder()
    return sorted(str(path.parent.parent.relative_to(root)) for path in root.glob(f"**/{DATA}"))


def _download(dataset: str, place: Path) -> None:
    """Download into a folder beside the place and move the whole thing there, so that no half of it stays."""
    try:
        import minari
    except ImportError as error:
        raise InputError(
            f"minari:{dataset} is not in {folder()}, and downloading it needs the minari package",
            f"pip install 'smodice[minari]', or put the file at {place / DATA}",
        ) from error
    before = os.environ.get("MINARI_DATASETS_PATH")
    here = nearest(dataset, local_ids()) or "none"
    existing = next(parent for parent in place.parents if parent.exists())
    with tempfile.TemporaryDirectory(dir=existing, prefix=".minari.") as scratch:
        os.environ["MINARI_DATASETS_PATH"] = scratch
        try:
            console.note(f"downloading {dataset} through the minari package")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                minari.download_dataset(dataset)
        except Exception as error:  # the package's remotes fail in their own ways: no network, no such id, no client
            reason = first_line(error).rstrip(".")
            raise InputError(
                f"minari:{dataset} is not on this machine and could not be downloaded ({reason})",
                f"put its data at {place / DATA}; on this machine: {here}",
            ) from error
        finally:
            os.environ.pop("MINARI_DATASETS_PATH")
            if before is not None:
                os.environ["MINARI_DATASETS_PATH"] = before
        found = Path(scratch) / dataset
        if not (found / DATA).is_file():
            raise InputError(f"minari:{dataset} is not kept in HDF5: only that storage is read")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(found, place)
