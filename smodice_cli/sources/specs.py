"""Source texts as users type them: SCHEME:NAME[#SELECTION].

sim:pointmass-4direction#50000      simulate; a bare number counts transitions (sim:gym:ID-random: Gymnasium's own)
d4rl:hopper-expert-v2#200           D4RL's files, cached or downloaded; `d4rl:` may be left out
minari:mujoco/hopper/expert-v0      Minari's data sets, local or downloaded
file:log.hdf5#200                   recorded data (D4RL's or Minari's layout, .npz)
...#200                             the first trajectories (of a simulation: transitions)
...#steps=5000  #episodes=10        the same, said outright
...#traj=8                          one trajectory, counted from 0
...#states=300  #success=300        states drawn at random; success states by the task's own test (experts only)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from smodice_cli.artifacts import Link, file_digest, read_header
from smodice_cli.data import Transitions
from smodice_cli.envs import registry
from smodice_cli.errors import InputError, UsageError, nearest
from smodice_cli.sources import d4rl, minari, recorded

SCHEMES = ("sim", "d4rl", "minari", "file")
ROW_SELECTIONS = ("", "steps", "episodes", "traj")
STATE_SELECTIONS = ("states", "success")
SEARCHED = 1_000_000  # transitions simulated in search of states before giving up
EXAMPLES = "e.g. hopper-random-v2, d4rl:hopper-expert-v2#200, sim:pointmass-4direction#50000 or file:log.hdf5#traj=8"


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
        return f"{self.scheme}:{Path(self.name).name if self.scheme == 'file' else self.name}"

    @property
    def origin(self) -> str:
        """What the rows come from, whichever of them are selected; where they may be a mixture, that matters too."""
        scripted = self.name in registry.SPECS and registry.SPECS[self.name].demonstrator
        return self.text if self.scheme == "file" or scripted else f"{self.scheme}:{self.name}"


def labels(found: Sequence[Spec]) -> list[str]:
    """What several sources are called, no two alike: more of the text where labels are, a number where that is."""
    short = [spec.label for spec in found]
    whole = [spec.text if short.count(spec.label) > 1 else spec.label for spec in found]
    return [f"{name} ({whole[: i + 1].count(name)})" if whole.count(name) > 1 else name for i, name in enumerate(whole)]


def parse(text: str) -> Spec:
    """Split a source text; says what was expected where it cannot."""
    body, hash_sign, selection = text.partition("#")
    scheme, colon, name = body.partition(":")
    if not colon and d4rl.known(body):
        scheme, name = "d4rl", body
    elif not colon:
        close = nearest(body, d4rl.list_ids()) if body else ""
        hint = close if close.startswith("did") else EXAMPLES
        raise UsageError(f"source '{text}': expected SCHEME:NAME[#SELECTION] or an id of D4RL's", hint)
    elif scheme not in SCHEMES:
        raise UsageError(f"source '{text}': expected SCHEME:NAME[#SELECTION]", nearest(scheme, SCHEMES))
    if not name:
        raise UsageError(f"source '{text}' names nothing after '{scheme}:'")
    word, equals, number = selection.partition("=")
    if not hash_sign:
        return Spec(text, scheme, name)
    if not equals and word.isdecimal():
        word, number = ("steps" if scheme == "sim" else "episodes"), word
    known = [*ROW_SELECTIONS[1:], *STATE_SELECTIONS]
    if word not in known:
        raise UsageError(f"source '{text}': unknown selection '#{word}'", nearest(word, known))
    if not number and word == "success":
        return Spec(text, scheme, name, word)
    if not number.isdecimal() or (int(number) == 0 and word != "traj"):
        raise UsageError(f"source '{text}': '#{word}=' needs a positive whole number")
    return Spec(text, scheme, name, word, int(number))


# --- before any work ------------------------------------------------------------------------------------------------


def check_offline(spec: Spec, env: str) -> None:
    """Refuse an offline source that cannot be used, before anything is simulated, downloaded or written."""
    if spec.selection in STATE_SELECTIONS:
        raise UsageError(f"offline source '{spec.text}': #{spec.selection} selects states, not transitions")
    if spec.scheme == "sim" and not spec.selection:
        raise UsageError(f"source '{spec.text}': a simulation needs a size, e.g. {spec.text}#50000")
    body = _check_name(spec)
    if body not in ("", env):
        raise InputError(f"offline source '{spec.text}' acts in {body}, but the data are for {env}")


def check_expert(spec: Spec, env: str) -> None:
    """The same for an expert source, which may come from another body."""
    if spec.scheme == "sim" and not spec.selection:
        raise UsageError(f"source '{spec.text}': a simulation needs a size, e.g. {spec.text}#traj=0")
    if spec.selection == "success":
        if registry.success(env) is None:
            raise UsageError(f"source '{spec.text}': environment '{env}' has no success test of its own")
        if spec.scheme == "sim" and spec.count is None:
            raise UsageError(f"source '{spec.text}': say how many success states to simulate, e.g. #success=300")
    _check_name(spec)


def _check_name(spec: Spec) -> str:
    """Refuse a name that means nothing; returns the body a simulation acts in, '' for recordings."""
    if spec.scheme == "sim":
        from smodice_cli.sources import simulate

        return simulate.check(spec.name)
    if spec.scheme == "d4rl":
        d4rl.check_id(spec.name, spec.text)
    elif spec.scheme == "minari":
        minari.check_id(spec.name, spec.text)
    return ""


def body_of(spec: Spec) -> str:
    """The environment a simulation acts in, '' for recordings, which do not say."""
    if spec.scheme != "sim":
        return ""
    from smodice_cli.sources import simulate

    return simulate.behaviour(spec.name)[0]


def local_file(spec: Spec, *, fetch: bool = True) -> Path | None:
    """The file a source reads, downloaded first where that is needed and allowed; None for simulations."""
    if spec.scheme == "sim":
        return None
    if spec.scheme == "file":
        path = Path(spec.name)
        if not path.is_file():
            raise InputError(f"{path} is a folder, not a file" if path.is_dir() else f"{path} does not exist")
        return path
    store = d4rl if spec.scheme == "d4rl" else minari
    if fetch:
        return store.fetch(spec.name)
    path = store.path_of(spec.name)
    return path if path.is_file() else None


def linked_files(sources: list[Spec], folder: Path, *, fetch: bool = True) -> dict[str, Link]:
    """The files sources depend on, policies included, by source text, with digests that tell when one has changed."""
    digests: dict[Path, str] = {}
    links = {}
    for spec in sources:
        path = _policy_file(spec) if spec.scheme == "sim" else local_file(spec, fetch=fetch)
        if path is not None:
            path = path.resolve()
            digests[path] = digests.get(path) or _digest(path)
            links[spec.text] = Link(os.path.relpath(path, folder.resolve()), digests[path])
    return links


def _policy_file(spec: Spec) -> Path | None:
    from smodice_cli.sources import simulate

    who = simulate.behaviour(spec.name)[1]
    return None if who in simulate.BUILT_IN else Path(who)


def _digest(path: Path) -> str:
    """An artifact's own digest, or that of a foreign file's bytes."""
    if path.suffix == ".safetensors":
        try:
            return read_header(path).digest
        except InputError:
            pass
    return file_digest(path)


def contents(spec: Spec) -> recorded.Contents:
    """Whether a source holds rewards and marks of ends, as every simulation does."""
    path = local_file(spec)
    return recorded.contents(path) if path else recorded.Contents()


# --- rows -----------------------------------------------------------------------------------------------------------


def episodes(spec: Spec, env: str, seed: int, workers: int, *, states_only: bool = False) -> Iterator[Transitions]:
    """The episodes of a source, in blocks, after its selection of rows."""
    if spec.scheme == "sim":
        yield from _simulated(spec, seed, workers)
        return
    path = local_file(spec)
    assert path is not None
    entry = registry.spec(env)
    same = recorded.widths(path, entry.observation_parts)[0] == entry.obs_dim
    horizon = entry.horizon if same else registry.UNLIMITED  # another body has a time limit of its own
    stream = recorded.episodes(path, horizon, states_only=states_only, parts=entry.observation_parts)
    yield from _select(stream, spec)


def _simulated(spec: Spec, seed: int, workers: int) -> Iterator[Transitions]:
    """Simulated episodes are seeded by their number, so that single ones can be made without those before them."""
    from smodice_cli.sources import simulate

    count = spec.count or 0
    if spec.selection == "traj":
        yield from simulate.episodes(spec.name, seed, workers, first=count, limit=1)
    elif spec.selection == "episodes":
        yield from simulate.episodes(spec.name, seed, workers, limit=count)
    else:
        yield from _select(simulate.episodes(spec.name, seed, workers), spec)


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


# --- states ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpertStates:
    """The states an expert source selects; of whole trajectories also lengths, returns and, if wanted, actions."""

    states: np.ndarray
    lengths: np.ndarray  # states of each trajectory; none for states drawn one by one
    returns: list[float]
    actions: np.ndarray | None = None
    action_rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # the states they were taken in


def expert_states(spec: Spec, env: str, seed: int, workers: int, *, actions: bool = False) -> ExpertStates:
    """What an expert source selects."""
    if actions and spec.selection in STATE_SELECTIONS:
        raise InputError(f"expert source '{spec.text}' selects single states, which have no actions")
    stream = episodes(spec, env, seed, workers, states_only=not actions)
    if spec.selection not in STATE_SELECTIONS:
        return _trajectories(stream, actions)
    pick: Callable[[Transitions], np.ndarray] = Transitions.states
    if spec.selection == "success":
        passes = registry.success(env)
        assert passes is not None

        def pick(block: Transitions) -> np.ndarray:
            states = block.states()
            return states[passes(states)]

    drawn = _draw(stream, pick, spec, np.random.default_rng([seed, 1]))
    return ExpertStates(drawn, np.empty(0, np.int64), [])


def _trajectories(stream: Iterator[Transitions], actions: bool) -> ExpertStates:
    states: list[np.ndarray] = [np.empty((0, 0), np.float32)]
    taken: list[np.ndarray] = []
    returns: list[float] = []
    rows, held = [np.empty(0, np.int64)], [np.empty(0, bool)]
    for block in stream:
        states.append(block.states())
        returns += np.add.reduceat(block.rewards, block.offsets[:-1], dtype=np.float64).tolist()
        rows.append(np.diff(block.offsets))
        held.append(block.final_states_held())
        if actions:
            taken.append(block.actions)
    steps, final = np.concatenate(rows), np.concatenate(held).astype(np.int64)
    found = ExpertStates(np.concatenate(states[1:] or states), steps + final, returns)
    if not taken:
        return found
    skipped = np.repeat(np.cumsum(final) - final, steps)  # final states of the trajectories before
    return replace(found, actions=np.concatenate(taken), action_rows=np.arange(steps.sum()) + skipped)


def _draw(
    stream: Iterator[Transitions],
    pick: Callable[[Transitions], np.ndarray],
    spec: Spec,
    rng: np.random.Generator,
) -> np.ndarray:
    """States picked from every block: all of them, or a uniform draw that never holds more than it needs.

    A simulation, which has no end, stops at twice what is asked (so that a draw is one).
    """
    parts: list[np.ndarray] = []
    keys = np.empty(0)  # a random number a state; the smallest are drawn
    total = searched = 0
    for block in stream:
        parts.append(pick(block))
        total += len(parts[-1])
        searched += block.rows
        if spec.count is None:
            continue
        keys = np.append(keys, rng.random(len(parts[-1])))
        if len(keys) > spec.count:
            kept = np.sort(np.argpartition(keys, spec.count)[: spec.count])
            parts, keys = [np.concatenate(parts)[kept]], keys[kept]
        if spec.scheme == "sim" and (total >= 2 * spec.count or searched >= SEARCHED):
            break
    if total < (spec.count or 0):
        raise InputError(f"source '{spec.text}' has only {total} such states in {searched:,} transitions")
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)
