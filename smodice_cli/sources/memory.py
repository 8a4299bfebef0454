"""Arrays that a program holds, kept as a recording beside the dataset made from them: what is read later is a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smodice_cli import containers, interrupts
from smodice_cli.errors import ForeignFileError, InputError, nearest
from smodice_cli.files import atomic, first_line, make_folder, writing
from smodice_cli.lazy import h5py, np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.source import COLUMNS

MARK = "written_by"  # an attribute of the files that are ours to replace
WRITER = "smodice.build_dataset"
EPISODE = ("observations", "actions", "rewards", "terminated")
STATES = "states"
FORMS = 'e.g. {"observations": (N, d), "actions": (N, k)}'


@contextmanager
def withdrawn(*places: Path) -> Iterator[None]:
    """Take the recordings written at these places away again where what they were written for is refused."""
    new = [place for place in places if not place.exists()]
    try:
        yield
    except BaseException:
        for place in new:
            place.unlink(missing_ok=True)
        raise


def source_texts(given: Any, place: Path) -> tuple[str, ...]:
    """Sources as they are, and arrays as a source: the recording that is written at `place`."""
    if isinstance(given, str | Path):
        given = [given]
    if isinstance(given, Sequence) and given and all(isinstance(one, str | Path) for one in given):
        return tuple(f"file:{one}" if isinstance(one, Path) else one for one in given)
    try:
        columns = columns_of(given)
    except (TypeError, ValueError) as error:  # numpy's, or of what has no length
        raise InputError(f"these are no arrays of numbers ({first_line(error)})", FORMS) from error
    states = columns.pop(STATES, None)
    if states is not None:
        columns["observations"] = states
    write(place, columns)
    return (f"file:{place}" + (f"#states={len(states)}" if states is not None else ""),)


def columns_of(given: Any) -> dict[str, np.ndarray]:
    """The columns of a recording: of columns themselves, of a list of episodes, or of one trajectory of states."""
    if isinstance(given, Mapping):
        known = (*COLUMNS, STATES)
        for name in given:
            if name not in known:
                ends = "say terminals where the task is over there, timeouts where episodes are cut"
                hint = ends if arrays.marking([str(name)]) else nearest(str(name), known)
                raise InputError(f"'{name}' is no column of a recording", hint)
        if STATES in given and len(given) > 1:
            raise InputError(f"'{STATES}' are single states and go with no other column")
        return {name: np.asarray(column) for name, column in given.items()}
    if isinstance(given, Sequence) and given and all(isinstance(one, Mapping) for one in given):
        return joined(given)
    states = np.asarray(given)
    if states.ndim != 2 or states.dtype.kind not in "biuf":
        raise InputError(
            "expected source texts, a dictionary of columns, a list of episodes, or a matrix of states", FORMS
        )
    return {"observations": states}


def joined(episodes: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Episodes one after the other; those that hold their final state, one more than actions, keep it."""
    for number, episode in enumerate(episodes):
        for name in episode:
            if name not in EPISODE:
                raise InputError(f"episode {number}: '{name}' is no part of an episode", nearest(str(name), EPISODE))
        if set(episode) - {"terminated"} != set(episodes[0]) - {"terminated"} or "observations" not in episode:
            raise InputError(f"episode {number} does not hold what episode 0 holds, or no observations")
    states = [np.asarray(episode["observations"]) for episode in episodes]
    acted = [np.asarray(episode["actions"]) for episode in episodes] if "actions" in episodes[0] else states
    more = {len(seen) - len(done) for seen, done in zip(states, acted, strict=True)}
    if len(more) > 1 or not more <= {0, 1}:
        raise InputError("an episode has as many observations as actions, or one more, and all alike")
    found = {"observations": np.concatenate([seen[: len(done)] for seen, done in zip(states, acted, strict=True)])}
    if more == {1}:
        found["next_observations"] = np.concatenate([seen[1:] for seen in states])
    for column in ("actions", "rewards"):
        if column in episodes[0]:
            found[column] = np.concatenate([np.asarray(episode[column]) for episode in episodes])
    ends = np.cumsum([len(done) for done in acted]) - 1
    ended = np.array([bool(episode.get("terminated", False)) for episode in episodes])
    for column, marks in (("terminals", ended), ("timeouts", ~ended)):
        found[column] = np.zeros(len(found["observations"]), bool)
        found[column][ends] = marks
    return found


def write(place: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write a recording, the same bytes for the same arrays; a file that is not ours is left alone."""
    if place.exists() and not _is_ours(place):
        raise ForeignFileError(f"{place} exists, where the arrays would be kept", "choose another out=")
    for name, column in columns.items():
        if column.dtype.kind not in "biuf":
            raise InputError(f"'{name}' is not an array of numbers: numpy makes it one of {column.dtype}")
    with writing(place):
        make_folder(place.parent)
    size = sum(column.nbytes for column in columns.values())
    with atomic(place) as temporary, interrupts.held(), containers.new_hdf5(temporary, size) as file:
        file.attrs[MARK] = WRITER
        for name, column in columns.items():
            file.create_dataset(name, data=column)


def _is_ours(place: Path) -> bool:
    try:
        with h5py.File(place, "r", locking=False) as file:
            return file.attrs.get(MARK) == WRITER
    except containers.DAMAGE:
        return False
