"""The artifact contract: every file says what it is, what it came from, and proves that it is whole.

A header travels inside each file (one JSON string: safetensors metadata, an HDF5 attribute, or a JSON member). Its
`digest` covers the payload bytes and every header field but those that differ between equal runs (times, versions,
notes, places); its `key` covers everything that determines the payload, so that equal keys mean "nothing to do". Files
appear whole or not at all: they are written beside the target, synced and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from smodice_cli import containers, interrupts
from smodice_cli.containers import DAMAGE, TAG, canonical
from smodice_cli.errors import ForeignFileError, InputError
from smodice_cli.files import BLOCK, atomic, check_regular, file_digest, first_line, matching, nearby
from smodice_cli.lazy import np, torch

SCHEMA = 1
LONGEST = 1e12  # seconds that anything can have taken
# Bytes of a header that HDF5 keeps beside the data: in its heap, where longer text goes, damage can make the library
# search for ever.
MOST_INLINE = 60_000
SETTLED = 10**9  # nanoseconds after which another write cannot have the same time

Arrays = Mapping[str, "np.ndarray"]


@dataclass(frozen=True)
class Link:
    """Another artifact this one depends on: where it lies (relative to this file) and its content digest."""

    path: str
    digest: str


@dataclass(frozen=True)
class Header:
    """What an artifact says about itself."""

    kind: str
    stage: str
    config: dict[str, Any]
    seed: int
    inputs: dict[str, Link] = field(default_factory=dict)
    outputs: dict[str, Link] = field(default_factory=dict)
    key: str = ""
    digest: str = ""
    schema: int = SCHEMA
    seconds: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return canonical(asdict(self))

    @staticmethod
    def from_json(text: str) -> Header:
        raw = json.loads(text)
        containers.check_depth(raw)
        canonical(raw)  # refuses NaN and infinite numbers, which we do not write
        for links in ("inputs", "outputs"):
            raw[links] = {name: Link(**link) for name, link in raw[links].items()}
        header = Header(**raw)
        header.check()
        return header

    def check(self) -> None:
        """Refuse members of another type than they are written with."""
        texts = [self.kind, self.stage, self.key, self.digest, *self.notes, *self.versions.values()]
        texts += [text for link in (*self.inputs.values(), *self.outputs.values()) for text in (link.path, link.digest)]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a member that must be text is none")
        if not all(isinstance(table, dict) for table in (self.config, self.metrics)):
            raise ValueError("config and metrics must be tables")
        if type(self.seed) is not int or type(self.seconds) not in (int, float) or not 0 <= self.seconds < LONGEST:
            raise ValueError("seed and seconds must be numbers")


def hash_of(**parts: Any) -> str:
    """The hash of these values, and of how files are laid out."""
    return hashlib.sha256(canonical({"schema": SCHEMA, **parts}).encode()).hexdigest()[:32]


@cache
def versions() -> dict[str, str]:
    """The versions that may matter to whoever reads the file later."""
    import importlib.metadata
    import platform

    found = {"python": platform.python_version()}
    for name in ("smodice", "torch", "numpy", "mujoco", "gymnasium"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def content_digest(header: Header, arrays: Arrays) -> str:
    """Hash of the payload and of the header without what differs between equal runs: times, notes, versions, places."""
    sha = hashlib.sha256()
    names = ("kind", "schema", "stage", "config", "seed", "key", "metrics")
    identity = {name: getattr(header, name) for name in names}
    for links in ("inputs", "outputs"):
        identity[links] = {name: link.digest for name, link in getattr(header, links).items()}
    sha.update(canonical(identity).encode())
    for name in sorted(arrays):
        array = arrays[name]
        sha.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        flat = array.reshape(-1)
        rows = max(1, BLOCK // max(1, array.dtype.itemsize))
        for start in range(0, flat.size, rows):
            sha.update(np.ascontiguousarray(flat[start : start + rows]).data)
    return sha.hexdigest()[:32]


# --- writing --------------------------------------------------------------------------------------------------------


def write_safetensors(path: Path, header: Header, tensors: Mapping[str, torch.Tensor]) -> Header:
    """Write networks with their header; returns the header with its digest filled in."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = _sealed(header, {name: tensor.numpy() for name, tensor in plain.items()})
    with atomic(path) as temporary:
        temporary.write_bytes(save(plain, metadata={TAG: header.to_json()}))
    return header


def write(path: Path, header: Header, payload: Mapping[str, Any], ending: str) -> Header:
    """Write an artifact in the format of a file ending: networks, arrays or scores."""
    formats: dict[str, Any] = {".safetensors": write_safetensors, ".h5": write_hdf5, ".json": write_json}
    return formats[ending](path, header, payload)


def write_json(path: Path, header: Header, payload: Mapping[str, Any]) -> Header:
    """Write scores as JSON with the header as its first member."""
    header = _sealed(header, {"payload": containers.json_bytes(payload)})
    with atomic(path) as temporary:
        temporary.write_text(json.dumps({TAG: asdict(header), **payload}, indent=2, allow_nan=False) + "\n")
    return header


def write_hdf5(path: Path, header: Header, arrays: Arrays) -> Header:
    """Write arrays contiguously, so that readers can map them; `a/b` names become groups."""
    from concurrent.futures import ThreadPoolExecutor

    size = sum(array.nbytes for array in arrays.values()) + len(header.to_json())
    # Hashing leaves the interpreter free, so that it runs beside the writing.
    with atomic(path) as temporary, ThreadPoolExecutor(1) as beside:
        sealing = beside.submit(_sealed, header, arrays)
        with containers.new_hdf5(temporary, size) as file:
            for name, array in arrays.items():
                with interrupts.held():  # one inside the library would end as a write that fails does
                    target = file.create_dataset(name, shape=array.shape, dtype=array.dtype)
                rows = max(1, BLOCK // max(1, array[:1].nbytes))
                for start in range(0, len(array), rows):
                    with interrupts.held():
                        target[start : start + rows] = array[start : start + rows]
            header = sealing.result()
            text = header.to_json().encode()
            with interrupts.held():
                file.attrs[TAG] = np.bytes_(text) if len(text) < MOST_INLINE else text.decode()
    return header


def _sealed(header: Header, arrays: Arrays) -> Header:
    plain = Header.from_json(header.to_json())  # as a reader will see it: tuples are lists, keys are text
    return replace(plain, versions=versions(), digest=content_digest(plain, arrays))


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Artifact:
    """A verified artifact: its place, its header and its payload (memory-mapped where the format allows)."""

    path: Path
    header: Header
    arrays: dict[str, np.ndarray]

    def is_whole(self) -> bool:
        """Whether the payload matches the digest; a file that has not changed since is not hashed twice."""
        mark = (*_identity(self.path), self.header.digest)
        if mark in _verified:
            return True
        whole = content_digest(self.header, self.arrays) == self.header.digest
        if whole and mark[0] and mark == (*_identity(self.path), self.header.digest):
            _verified.add(mark)
        return whole

    def link(self, relative_to: Path) -> Link:
        """This artifact as an input of a file in the folder `relative_to`."""
        return Link(os.path.relpath(self.path.resolve(), relative_to.resolve()), self.header.digest)

    def payload(self) -> dict[str, Any]:
        """The JSON members of a score file, without its header."""
        return json.loads(self.arrays["payload"].tobytes())

    def tensors(self) -> dict[str, torch.Tensor]:
        """The payload as torch tensors, sharing memory with the map."""
        return {name: torch.from_numpy(array) for name, array in self.arrays.items()}


_verified: set[tuple[object, ...]] = set()  # what this process has found whole: files, and their digests


def _identity(path: Path) -> tuple[int, ...]:
    """What changes with a file, however it is written to; zeros while it is too young for its clock to tell."""
    try:
        found = path.stat()
    except OSError:
        return (0,)
    old = time.time_ns() - found.st_ctime_ns > SETTLED
    return (found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns, found.st_ctime_ns) if old else (0,)


def linked(path: Path, link: Link) -> Path:
    """Where an input or output of the artifact at `path` lies: links start from where that file really is.

    Or, where a file is itself a symbolic link into some store, from where it is linked.
    """
    places = [os.path.normpath(folder / link.path) for folder in (path.resolve().parent, path.parent.resolve())]
    place = next((place for place in places if os.path.exists(place)), places[0])
    return Path(place if path.is_absolute() else os.path.relpath(place))


def load(path: Path, kind: str) -> Artifact:
    """Open an artifact of the given kind and verify every byte of it against its digest."""
    found = _read(path)
    if found.header.kind != kind:
        raise InputError(
            f"{path} is an artifact of the kind {found.header.kind}, where one of the kind {kind} is needed",
            f"smodice status {path.parent} lists what is there",
        )
    if not found.is_whole():
        raise InputError(
            f"{path} was changed after it was written: its content does not match its digest",
            f"run the stage that made it again: smodice {found.header.stage} ... --force",
        )
    return found


def follow(artifact: Artifact, name: str, kind: str) -> Artifact:
    """Open the artifact that `artifact` names as its input or output `name`, and check that it is the same one."""
    links = {**artifact.header.inputs, **artifact.header.outputs}
    if name not in links:
        raise InputError(f"{artifact.path} does not name a {name}")
    place = linked(artifact.path, links[name])
    if not os.path.exists(place):
        raise InputError(
            f"{artifact.path.name} was made from {place}, which is not there",
            "move the run folder as a whole, or run the earlier stage again",
        )
    found = load(place, kind)
    if found.header.digest != links[name].digest:
        raise InputError(
            f"{place} is not the {name} that {artifact.path.name} was made with (digest {found.header.digest[:12]}, "
            f"expected {links[name].digest[:12]})",
            f"run smodice {artifact.header.stage} again on the present {name}",
        )
    return found


def read_header(path: Path) -> Header:
    """The header of any artifact, without verifying the payload."""
    return _read(path).header


def staleness(path: Path, header: Header, known: dict[Path, str] | None = None) -> str:
    """Which input of an artifact, or of its inputs, is no longer the one it was made from; '' if all still are.

    `known` holds what was found out before, and ends the search where files name each other in a circle.
    """
    known = {} if known is None else known
    if path not in known:
        known[path] = ""  # while it is being found out
        known[path] = next(filter(None, (_stale(path, name, link, known) for name, link in header.inputs.items())), "")
    return known[path]


def _stale(path: Path, name: str, link: Link, known: dict[Path, str]) -> str:
    place = linked(path, link)
    if not matching(place):
        return f"its {name} is missing"
    try:
        found = read_header(place)
        if found.digest == link.digest:
            reason = staleness(place, found, known)
            return reason and f"{reason} (through its {name})"
    except InputError:
        pass
    try:
        same = file_digest(place) == link.digest  # how a user's own file is linked
    except (InputError, OSError):
        same = False
    return "" if same else f"stale: its {name} has changed since"


def read_any(path: Path) -> Artifact:
    """Open an artifact of whatever kind and verify it."""
    return load(path, read_header(path).kind)


def peek(path: Path) -> Artifact | None:
    """What lies at an output path: None if nothing; a file that is no artifact is refused, not overwritten."""
    refuse_folder(path)
    if not path.exists():
        return None
    try:
        return _read(path)
    except InputError as error:
        raise ForeignFileError(
            f"{path} exists and is not a readable smodice artifact",
            "choose another --out, move that file away, or overwrite it with --force",
        ) from error


def refuse_folder(path: Path) -> None:
    """An output is a file."""
    if path.is_dir():
        raise ForeignFileError(f"{path} is a folder", "choose another --out")


def _read(path: Path) -> Artifact:
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist", nearby(path))
    if path.is_dir():
        raise InputError(f"{path} is a folder, not an artifact", f"smodice status {path} lists what is in it")
    check_regular(path)
    try:
        text, arrays = containers.read(path)
    except DAMAGE as error:
        raise InputError(f"{path} is damaged or cut short ({first_line(error)})") from error
    if not isinstance(text, str):
        raise InputError(f"{path} was not written by smodice: it has no header")
    try:
        raw = json.loads(text)
        if raw.get("schema", 0) > SCHEMA:
            raise InputError(f"{path} has schema {raw['schema']}, newer than this version's {SCHEMA}", "update smodice")
        return Artifact(path, Header.from_json(text), arrays)
    except DAMAGE as error:
        raise InputError(f"{path} has an unreadable header ({first_line(error)})") from error


@contextmanager
def as_expected(artifact: Artifact) -> Iterator[None]:
    """What is whole may still not hold what its kind does: somebody else's file, or another version's."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{artifact.path} does not hold what a {artifact.header.kind} does ({what})") from error


def read_payload(path: Path) -> dict[str, Any]:
    """The JSON members of a score file, verified, without its header."""
    return read_any(path).payload()
