"""What artifacts are kept in: safetensors, HDF5 or JSON. Each holds the text of a header, and arrays.

Whoever made a file, reading it takes no more time and memory than its bytes are worth.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from smodice_cli.errors import InputError
from smodice_cli.lazy import h5py, np

TAG = "smodice"  # where the header lies
MAX_DEPTH = 30  # of JSON, ours has less than 10
MAX_TEXT = 1 << 28  # bytes of JSON that are read at once
HDF5_OVERHEAD = 1 << 16  # bytes of HDF5's own bookkeeping, generously
HDF5_MEMORY = 1 << 27  # bytes of memory that reading it may take
# What readers raise on files that are cut short, damaged or made up.
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError)

Contents = tuple[str | None, dict[str, "np.ndarray"]]


def read(path: Path) -> Contents:
    """The header's text, None where there is none, and the arrays, memory-mapped where the format allows."""
    with open(path, "rb") as handle:
        magic = handle.read(9)
    if magic[:4] == b"\x89HDF":
        return _read_hdf5(path)
    if magic[8:9] == b"{":
        return _read_safetensors(path)
    if magic[:1] == b"{":
        return _read_json(path)
    raise InputError(f"{path} is neither HDF5, safetensors nor JSON")


def _read_safetensors(path: Path) -> Contents:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return (file.metadata() or {}).get(TAG), arrays
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _read_json(path: Path) -> Contents:
    if path.stat().st_size > MAX_TEXT:
        raise ValueError("it is too large for JSON of ours")
    whole = json.loads(path.read_text())
    check_depth(whole)
    header = whole.pop(TAG, None)
    return (None if header is None else canonical(header)), {"payload": json_bytes(whole)}


def _read_hdf5(path: Path) -> Contents:
    with open_hdf5(path) as file:
        text = file.attrs.get(TAG)
        text = text.decode() if isinstance(text, bytes) else text
        arrays = {}
        if text is not None:

            def visit(name: str, item: Any) -> None:
                if not isinstance(name, str):
                    raise ValueError("a name in it is no text")
                if isinstance(item, h5py.Dataset):
                    arrays[name] = map_dataset(path, item)

            file.visititems(visit)
    return text, arrays


def open_hdf5(path: Path) -> Any:
    """An HDF5 file to read, all of whose groups have been gone through once in little memory.

    The library follows a damaged group's list of free space round in a circle, and takes memory at every step.
    """
    with ExitStack() as stack:
        file = stack.enter_context(h5py.File(path, "r", locking=False))  # nobody writes into a file that has its name
        with _little_memory(HDF5_MEMORY):
            file.id.links.visit(lambda name: None)
        stack.pop_all()  # from now on the caller closes it
        return file


_limiting = threading.Lock()  # the limit is the whole process's


@contextmanager
def _little_memory(room: int) -> Iterator[None]:
    """Let the process grow by so many bytes at most, where the system can say how large it is (Linux)."""
    sizes = Path("/proc/self/status")
    if not sizes.exists():
        yield
        return
    import resource

    with _limiting:
        used = int(sizes.read_text().split("VmData:")[1].split()[0]) << 10
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        lower = used + room if soft == resource.RLIM_INFINITY else min(soft, used + room)
        resource.setrlimit(resource.RLIMIT_DATA, (lower, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def map_dataset(path: Path, dataset: Any) -> np.ndarray:
    """A contiguous HDF5 dataset as a copy-on-write memory map (torch wants writable memory; the file stays)."""
    if dataset.dtype.kind not in "biuf":
        raise ValueError(f"{dataset.name} does not hold numbers")
    offset = dataset.id.get_offset()
    if dataset.size == 0:
        return np.empty(dataset.shape, dataset.dtype)
    if offset is None:
        raise ValueError(f"{dataset.name} is not stored contiguously")
    if offset + dataset.size * dataset.dtype.itemsize > path.stat().st_size:
        raise ValueError(f"{dataset.name} reaches beyond the end of the file")
    return np.memmap(path, dataset.dtype, "c", offset, dataset.shape)


# --- writing HDF5 -----------------------------------------------------------------------------------------------------


@contextmanager
def new_hdf5(path: Path, size: int) -> Iterator[Any]:
    """A new HDF5 file for so many bytes, in place of an empty one of ours.

    A write that fails, when the library itself does it, crashes the process or is passed over in silence. So we write
    for it: it sees no failure, and the first one is raised in the end.
    """
    with open(path, "r+b", buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size + HDF5_OVERHEAD)  # there is room, or it fails at once
        sink = _Sink(file.fileno())
        try:
            with h5py.File(sink, "w") as opened:
                yield opened
        except Exception as error:
            raise sink.error or error from None
        if sink.error:
            raise sink.error
        file.truncate(sink.end)


class _Sink:
    """A file, empty at first, as the library sees it: no write fails; after one that did, nothing is written."""

    def __init__(self, handle: int) -> None:
        self.handle, self.place, self.end = handle, 0, 0
        self.error: OSError | None = None

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        self.place = self.end + place if whence == os.SEEK_END else place
        return self.place

    def tell(self) -> int:
        return self.place

    def write(self, data: Any) -> int:
        left, size = memoryview(data), len(data)
        while left and not self.error:
            try:
                written = os.pwrite(self.handle, left, self.place)
            except OSError as error:
                self.error = error
                break
            self.place, left = self.place + written, left[written:]
        self.end = max(self.end, self.place)
        return size

    def read(self, size: int) -> bytes:
        return os.pread(self.handle, size, self.place)

    def readinto(self, buffer: Any) -> int:
        return os.preadv(self.handle, [buffer], self.place)

    def truncate(self, size: int) -> int:
        self.end = size
        return size

    def flush(self) -> None:
        pass  # it is synced before it is renamed


# --- JSON -------------------------------------------------------------------------------------------------------------


def json_bytes(payload: Mapping[str, Any]) -> np.ndarray:
    """JSON members as the bytes that a digest covers."""
    return np.frombuffer(canonical(dict(payload)).encode(), dtype=np.uint8)


def check_depth(value: Any) -> None:
    """Refuse JSON that is nested deeper than anything we write: code that walks it would fail anywhere."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _members(outer)]
    if level:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def _members(value: dict | list) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
