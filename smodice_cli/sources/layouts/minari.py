"""Minari's HDF5 layout: a group an episode, with one observation more than actions.

Of an observation that is a dictionary (goal tasks) the environment's `observation_parts` are joined, in that order; by
default only `observation`, since an imitator has one goal and does not see it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smodice_cli.data import Transitions, concatenate
from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import Layout, arrays
from smodice_cli.sources.source import PARTS, Blocks, Contents, Parts

EPISODE = "episode_"  # how Minari names its groups


class Minari(Layout):
    """Groups named episode_0, episode_1 and so on."""

    def __init__(self, path: Path, file: Any) -> None:
        super().__init__(path, file)
        self.names = _episode_names(file)

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return file is not None and "observations" not in file and bool(_episode_names(file))

    def describe(self, parts: Parts = PARTS) -> Contents:
        first, origin = self.file[self.names[0]], f"{self.origin}: {self.names[0]}"
        observed = sum(map(arrays.width, _observation_parts(first, origin, parts)))
        acted = arrays.width(_array(first, "actions", origin)) if "actions" in first else 0
        return Contents(observed, acted, rewards="rewards" in first)

    def episodes(self, horizon: int, *, states_only: bool = False, parts: Parts = PARTS) -> Blocks:
        waiting: list[Transitions] = []
        widths = None
        for name in self.names:
            episode = _episode(self.file[name], f"{self.origin}: {name}", parts, states_only)
            if episode is None:
                continue
            found = (episode.observations.shape[1], episode.actions.shape[1])
            if found != (widths := widths or found):
                sizes = f"{found[0]} dimensions of state and {found[1]} of action"
                raise InputError(f"{self.origin}: {name} has {sizes}, others {widths}")
            waiting.append(episode)
            if sum(block.rows for block in waiting) >= arrays.BLOCK_ROWS:
                yield concatenate(waiting)
                waiting = []
        if waiting:
            yield concatenate(waiting)


def _episode_names(file: Any) -> list[str]:
    """The episodes' groups in the order of their numbers (as text, episode_10 would come before episode_2)."""
    names = [name for name in file if name.startswith(EPISODE) and name.removeprefix(EPISODE).isdecimal()]
    return sorted(names, key=lambda name: int(name.removeprefix(EPISODE)))


def _array(group: Any, name: str, origin: str) -> Any:
    """An array with a row a step."""
    if not getattr(group[name], "shape", ()):
        raise InputError(f"{origin}: '{name}' is not an array with a row for each step")
    return group[name]


def _observation_parts(group: Any, origin: str, parts: Parts) -> list[Any]:
    """The arrays an episode's state is joined from."""
    if "observations" not in group:
        raise InputError(f"{origin}: {group.name} has no 'observations'")
    observed = group["observations"]
    if hasattr(observed, "shape"):
        return [_array(group, "observations", origin)]
    for part in parts:
        if part not in observed:
            raise InputError(
                f"{origin}: observations are a dictionary without '{part}' (it has: {', '.join(sorted(observed))})"
            )
    return [_array(observed, part, origin) for part in parts]


def _episode(group: Any, origin: str, parts: Parts, states_only: bool) -> Transitions | None:
    """One episode; None where it has no step."""
    joined = _observation_parts(group, origin, parts)
    rows = len(joined[0]) - 1
    if rows < 1:
        return None
    states = np.concatenate([arrays.matrix(part, slice(0, rows + 1)) for part in joined], axis=1)
    if "actions" not in group and not states_only:
        raise InputError(f"{origin} has no 'actions'")
    for name in ("actions", "rewards", "terminations", "truncations"):
        if name in group and len(_array(group, name, origin)) != rows:
            raise InputError(f"{origin}: expected {rows} {name}, one fewer than observations")
    if "rewards" in group and group["rewards"].size != rows:
        raise InputError(f"{origin}: 'rewards' has more than one number a row")
    ends = arrays.flags(group, "terminations", rows, origin)
    if ends[:-1].any():
        raise InputError(f"{origin}: 'terminations' is set before the last step")
    return Transitions.episode(states, *arrays.actions_and_rewards(group, slice(0, rows)), terminated=ends[-1])
