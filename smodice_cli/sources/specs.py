"""Source texts as users type them: SCHEME:NAME[#SELECTION].

sim:pointmass-4direction#50000      simulate; a bare number counts transitions
file:log.hdf5#200                   recorded data; a bare number counts trajectories
...#steps=5000  #episodes=10        the same, said outright
...#traj=8                          one trajectory, counted from 0
...#states=300  #success=300        states drawn at random; success states by the task's own test (experts only)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smodice_cli.artifacts import BLOCK, Link
from smodice_cli.data import Transitions
from smodice_cli.envs import registry
from smodice_cli.errors import InputError, UsageError, nearest

SCHEMES = ("sim", "file")
ROW_SELECTIONS = ("", "steps", "episodes", "traj")
STATE_SELECTIONS = ("states", "success")


@dataclass(frozen=True)
class Spec:
    """A parsed source text."""

    text: str
    scheme: str
    name: str
    selection: str = ""
    count: int | None = None

    @property
    def label(self) -> str:
        """How the source is called in tables."""
        return f"{self.scheme}:{Path(self.name).name}"


def parse(text: str) -> Spec:
    """Split a source text; says what was expected where it cannot."""
    body, hash_sign, selection = text.partition("#")
    scheme, colon, name = body.partition(":")
    if not colon or scheme not in SCHEMES:
        hint = nearest(scheme, SCHEMES) if colon else "e.g. sim:pointmass-4direction#50000 or file:log.hdf5#traj=8"
        raise UsageError(f"source '{text}': expected SCHEME:NAME[#SELECTION]", hint)
    if not name:
        raise UsageError(f"source '{text}' names nothing after '{scheme}:'")
    word, equals, number = selection.partition("=")
    if not hash_sign:
        return Spec(text, scheme, name)
    if not equals and word.isdigit():
        word, number = ("steps" if scheme == "sim" else "episodes"), word
    known = [*ROW_SELECTIONS[1:], *STATE_SELECTIONS]
    if word not in known:
        raise UsageError(f"source '{text}': unknown selection '#{word}'", nearest(word, known))
    if not number and word == "success":
        return Spec(text, scheme, name, word)
    if not number.isdigit() or (int(number) == 0 and word != "traj"):
        raise UsageError(f"source '{text}': '#{word}=' needs a positive whole number")
    return Spec(text, scheme, name, word, int(number))


def linked_file(spec: Spec, folder: Path) -> Link | None:
    """The file a source reads, with the digest of its bytes, so that a changed file is noticed."""
    if spec.scheme != "file":
        return None
    path = Path(spec.name)
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    sha = hashlib.sha256()
    with open(path, "rb") as handle:
        while chunk := handle.read(BLOCK):
            sha.update(chunk)
    return Link(os.path.relpath(path.resolve(), folder.resolve()), sha.hexdigest()[:32])


def episodes(spec: Spec, env: str, seed: int, workers: int, *, states_only: bool = False) -> Iterator[Transitions]:
    """The episodes of a source, in blocks, after its selection of rows."""
    if spec.scheme == "sim":
        from smodice_cli.sources import simulate

        if spec.selection in ("", "success", "states") and not states_only:
            raise UsageError(f"source '{spec.text}': a simulation needs a size, e.g. {spec.text}#50000")
        stream = simulate.episodes(spec.name, seed, workers)
    else:
        from smodice_cli.sources import recorded

        stream = recorded.episodes(Path(spec.name), registry.spec(env).horizon, states_only=states_only)
    yield from _select(stream, spec)


def _select(stream: Iterator[Transitions], spec: Spec) -> Iterator[Transitions]:
    count = spec.count or 0
    if spec.selection == "steps":
        yield from _first_rows(stream, count, spec)
    elif spec.selection == "episodes":
        yield from _episode_range(stream, 0, count, spec)
    elif spec.selection == "traj":
        yield from _episode_range(stream, count, count + 1, spec)
    else:
        yield from stream


def _first_rows(stream: Iterator[Transitions], rows: int, spec: Spec) -> Iterator[Transitions]:
    seen = 0
    for block in stream:
        block = block.truncate(rows - seen)
        seen += block.rows
        yield block
        if seen == rows:
            return
    raise InputError(f"source '{spec.text}' has only {seen} transitions")


def _episode_range(stream: Iterator[Transitions], first: int, last: int, spec: Spec) -> Iterator[Transitions]:
    seen = 0
    for block in stream:
        low, high = max(first - seen, 0), min(last - seen, block.episodes)
        if low < high:
            yield block.take(low, high)
        seen += block.episodes
        if seen >= last:
            return
    raise InputError(f"source '{spec.text}' has only {seen} trajectories (counted from 0)")


def expert_states(spec: Spec, env: str, seed: int, workers: int) -> tuple[np.ndarray, list[float]]:
    """The states an expert source selects, and the returns of the trajectories it came from."""
    rng = np.random.default_rng([seed, 1])
    stream = episodes(spec, env, seed, workers, states_only=True)
    if spec.selection not in STATE_SELECTIONS:
        if spec.scheme == "sim" and not spec.selection:
            raise UsageError(f"source '{spec.text}': a simulation needs a size, e.g. {spec.text}#traj=0")
        return _trajectories(stream)
    if spec.selection == "states":
        found = _enough(stream, lambda block: block.states(), spec, always_stop=spec.scheme == "sim")
    else:
        passes = registry.success(env)
        if passes is None:
            raise UsageError(f"source '{spec.text}': environment '{env}' has no success test of its own")
        if spec.scheme == "sim" and spec.count is None:
            raise UsageError(f"source '{spec.text}': say how many success states to simulate, e.g. #success=300")

        def successes(block: Transitions) -> np.ndarray:
            states = block.states()
            return states[passes(states)]

        found = _enough(stream, successes, spec, always_stop=spec.scheme == "sim")
    if spec.count is None:
        return found, []
    if len(found) < spec.count:
        raise InputError(f"source '{spec.text}' has only {len(found)} such states")
    return found[np.sort(rng.choice(len(found), spec.count, replace=False))], []


def _trajectories(stream: Iterator[Transitions]) -> tuple[np.ndarray, list[float]]:
    parts, returns = [], []
    for block in stream:
        parts.append(block.states())
        returns += np.add.reduceat(block.rewards, block.offsets[:-1]).tolist()
    return (np.concatenate(parts) if parts else np.empty((0, 0), np.float32)), returns


def _enough(stream, pick, spec: Spec, *, always_stop: bool) -> np.ndarray:
    """States from every block; a simulation, which has no end, stops at twice what is asked (so a draw is one)."""
    parts: list[np.ndarray] = []
    total = 0
    for block in stream:
        parts.append(pick(block))
        total += len(parts[-1])
        if always_stop and spec.count is not None and total >= 2 * spec.count:
            break
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)
