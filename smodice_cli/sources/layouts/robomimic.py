"""robomimic's HDF5: `data/demo_N` with `obs/<key>`, `actions`, perhaps `next_obs`, `rewards`, `dones`, and `mask`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from smodice_cli.data import Transitions
from smodice_cli.errors import InputError, nearest
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.episodic import Episodic
from smodice_cli.sources.source import Contents

DEMO = "demo_"


class Robomimic(Episodic):
    """Demonstrations; `#filter=NAME` reads those of a filter key alone."""

    filters = True

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return file is not None and "data" in file and any(name.startswith(DEMO) for name in file["data"])

    def name(self, number: int) -> str:
        return f"{DEMO}{number}"

    @cached_property
    def demos(self) -> Any:
        """The group of all demonstrations."""
        return self.file["data"]

    @cached_property
    def chosen(self) -> list[str]:
        """The parts of the state; several must be chosen, since their order is nobody's but the user's."""
        name = self.name(self.numbers()[0])
        there = _parts(self.file["data"][name])
        if not there:
            raise InputError(
                f"{self.origin}: {name} has neither 'obs' nor 'states' (it has: {', '.join(self.file['data'][name])})",
                "robomimic's dataset_states_to_obs.py adds observations",
            )
        if self.choice.parts:
            return arrays.pick(self.choice.parts, there, self.origin, "--obs-keys")
        vectors = [part for part in self.vectors() if part != "states"] or ["states"]
        if len(vectors) > 1:
            raise InputError(
                f"{self.origin}: an observation has several parts ({', '.join(vectors)}): say which, and their order",
                f"--obs-keys {','.join(vectors)}",
            )
        return vectors

    def vectors(self) -> list[str]:
        """The parts that are a vector a row."""
        there = _parts(self.file["data"][self.name(self.numbers()[0])])
        return [name for name, part in there.items() if sum(length != 1 for length in part.shape[1:]) < 2]

    def flags(self) -> list[str]:
        vectors = [part for part in self.vectors() if part != "states"]
        return ["--obs-keys", ",".join(vectors)] if len(vectors) > 1 and not self.choice.parts else []

    def numbers(self) -> Sequence[int]:
        names = self.file["data"] if not self.choice.subset else self._filtered()
        numbers = [name.removeprefix(DEMO) for name in names if name.startswith(DEMO)]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _filtered(self) -> list[str]:
        masks = list(self.file["mask"]) if "mask" in self.file else []
        if self.choice.subset not in masks:
            has = f"it has: {', '.join(masks)}" if masks else "it has none"
            hint = nearest(self.choice.subset, masks) if masks else "leave #filter out"
            raise InputError(f"{self.origin} has no filter key '{self.choice.subset}' ({has})", hint)
        names = [name.decode() for name in np.asarray(self.file["mask"][self.choice.subset])]
        if absent := [name for name in names if name not in self.file["data"]]:
            raise InputError(
                f"{self.origin}: the filter key '{self.choice.subset}' names '{absent[0]}', which is not there"
            )
        return names

    def describe(self) -> Contents:
        numbers = self.numbers()
        if not numbers:
            raise InputError(f"{self.origin} has no demonstrations")
        name = self.name(numbers[0])
        demo, there = self.file["data"][name], _parts(self.file["data"][name])
        states, names = arrays.join(there, self.chosen, f"{self.origin}: {name}")
        acted = arrays.width(demo["actions"]) if "actions" in demo else 0
        left_out = tuple(part for part in there if part not in (*self.chosen, "states"))
        return Contents(
            states.shape[1], acted, "rewards" in demo, names=names, left_out=left_out, episode_name=DEMO + "{}"
        )

    def episode(self, number: int, *, states_only: bool) -> Transitions | None:
        name = self.name(number)
        demo, origin = self.demos[name], f"{self.origin}: {name}"
        there = set(demo)  # every further question to HDF5 takes its time, a million times
        if "actions" not in there and not states_only:
            raise InputError(f"{origin} has no 'actions' (it has: {', '.join(demo)})")
        column, _ = arrays.join(self._chosen_of(demo, there, origin), self.chosen, origin)
        rows = len(column)
        columns = {key: demo[key] for key in ("actions", "rewards", "dones") if key in there}
        for key, other in columns.items():
            if len(other) != rows:
                raise InputError(f"{origin}: '{key}' has {len(other)} rows, the observation {rows}")
        if not states_only:
            arrays.check_numbers(columns["actions"], "actions", origin, action=True)
        following = "next_obs" in there and "states" not in self.chosen
        if rows < 2 - following:
            return None
        states, window = column[slice(0, rows)], slice(0, rows)
        ended = bool(arrays.flags(columns, "dones", rows, origin)[-1])
        actions, rewards = arrays.actions_and_rewards(columns, window)
        if following:
            after, _ = arrays.join(demo["next_obs"], self.chosen, f"{origin}: next_obs")
            states = np.concatenate([states, after[slice(rows - 1, rows)]])
            return Transitions.episode(states, actions, rewards, terminated=ended)
        last = np.arange(rows) == rows - 1
        steps = (states, actions, rewards, states, last & ended, last & (not ended))
        return arrays.shifted(Transitions(*steps, np.array([0, rows])), states_only)

    def _chosen_of(self, demo: Any, there: set[str], origin: str) -> dict[str, Any]:
        """The chosen parts of one demonstration."""
        observed = demo["obs"] if "obs" in there else {}
        names = set(observed)
        found = {part: observed[part] if part in names else demo[part] for part in self.chosen if part in names | there}
        arrays.pick(self.chosen, found if len(found) == len(self.chosen) else names, origin, "--obs-keys")
        return found

    def listing(self) -> dict[str, str]:
        masks = self.file.get("mask", {})
        return arrays.listing(self.file) | {f"mask/{name}": f"{len(masks[name])} demonstrations" for name in masks}


def _parts(demo: Any) -> Mapping[str, Any]:
    """What a demonstration observed, by name: the keys of `obs`, and the simulator's `states`."""
    found = {name: demo["obs"][name] for name in demo["obs"]} if "obs" in demo else {}
    return found | ({"states": demo["states"]} if "states" in demo else {})
