"""Minari's HDF5 layout: a group an episode, with one observation more than actions.

Of an observation that is a dictionary (goal tasks) the chosen parts are joined; where none are chosen, those the
environment names. Recordings without an environment have none that names them: there a goal is not passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smodice_cli.data import Transitions
from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.episodic import Episodic
from smodice_cli.sources.source import Contents, Parts

EPISODE = "episode_"  # how Minari names its groups


class Minari(Episodic):
    """Groups named episode_0, episode_1 and so on."""

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return file is not None and "observations" not in file and bool(_numbers(file))

    def numbers(self) -> Sequence[int]:
        return _numbers(self.file)

    def name(self, number: int) -> str:
        return f"{EPISODE}{number}"

    def describe(self) -> Contents:
        name = self.name(self.numbers()[0])
        group, origin = self.file[name], f"{self.origin}: {name}"
        parts, names, left_out = self._parts(group, origin)
        acted = arrays.width(_array(group, "actions", origin)) if "actions" in group else 0
        rewards = "rewards" in group
        return Contents(sum(map(arrays.width, parts)), acted, rewards, names=names, left_out=left_out)

    def flags(self) -> list[str]:
        group = self.file[self.name(self.numbers()[0])]
        usual, observed = self.choice.usual, group.get("observations", {})
        if self.choice.parts or hasattr(observed, "shape") or not set(usual) <= set(observed):
            return []
        goals = [part for part in observed if "goal" in part.lower() and "achieved" not in part.lower()]
        return ["--obs-keys", ",".join([*usual, *goals])] if goals else []

    def episode(self, number: int, *, states_only: bool) -> Transitions | None:
        name = self.name(number)
        return self._episode(self.file[name], f"{self.origin}: {name}", states_only)

    def _parts(self, group: Any, origin: str) -> tuple[list[Any], Parts, Parts]:
        """The arrays an episode's state is joined from, the names of its dimensions, and what is left out."""
        if "observations" not in group:
            raise InputError(f"{origin}: {group.name} has no 'observations'")
        observed = group["observations"]
        if hasattr(observed, "shape"):
            return [_array(group, "observations", origin)], (), ()
        chosen = list(self.choice.usual)
        if self.choice.parts:
            chosen = arrays.pick(self.choice.parts, observed, origin, "--obs-keys")
        for part in chosen:
            if part not in observed:
                there = ", ".join(sorted(observed))
                raise InputError(
                    f"{origin}: observations are a dictionary without '{part}' (it has: {there})",
                    f"choose and order its parts, e.g. --obs-keys {there.replace(' ', '')}",
                )
        found = {part: _array(observed, part, origin) for part in chosen}
        names = [name for part in chosen for name in arrays.dimensions(part, arrays.width(found[part]))]
        return list(found.values()), tuple(names), tuple(part for part in observed if part not in chosen)

    def _episode(self, group: Any, origin: str, states_only: bool) -> Transitions | None:
        joined, *_ = self._parts(group, origin)
        rows = len(joined[0]) - 1
        if rows < 1:
            return None
        states = np.concatenate([arrays.matrix(part, slice(0, rows + 1)) for part in joined], axis=1)
        if "actions" not in group and not states_only:
            raise InputError(f"{origin} has no 'actions'")
        for name in ("actions", "rewards", "terminations", "truncations"):
            if name in group and len(_array(group, name, origin)) != rows:
                raise InputError(f"{origin}: expected {rows} {name}, one fewer than observations")
        if not states_only:
            arrays.check_numbers(group["actions"], "actions", origin, action=True)
        if "rewards" in group and group["rewards"].size != rows:
            raise InputError(f"{origin}: 'rewards' has more than one number a row")
        ends = arrays.flags(group, "terminations", rows, origin)
        if ends[:-1].any():
            raise InputError(f"{origin}: 'terminations' is set before the last step")
        return Transitions.episode(states, *arrays.actions_and_rewards(group, slice(0, rows)), terminated=ends[-1])


def _numbers(file: Any) -> list[int]:
    """The episodes' numbers in order (as text, episode_10 would come before episode_2)."""
    names = [name.removeprefix(EPISODE) for name in file if name.startswith(EPISODE)]
    return sorted(int(name) for name in names if name.isdecimal())


def _array(group: Any, name: str, origin: str) -> Any:
    """An array of numbers with a row a step."""
    if not getattr(group[name], "shape", ()):
        raise InputError(f"{origin}: '{name}' is not an array with a row for each step")
    arrays.check_numbers(group[name], name, origin)
    return group[name]
