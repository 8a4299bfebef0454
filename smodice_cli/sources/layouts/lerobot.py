"""LeRobot's data sets, v2.1 and v3: `meta/info.json` and parquet files under `data`; videos are not read."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from smodice_cli.data import Transitions, concatenate
from smodice_cli.errors import InputError, nearest
from smodice_cli.files import first_line, natural
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.parquet import Parquet
from smodice_cli.sources.layouts.tables import Wanted
from smodice_cli.sources.source import Blocks, Parts

INFO = Path("meta") / "info.json"
PREFIX, USUAL, ACTION = "observation.", "observation.state", "action"
REWARD = "next.reward"


class LeRobot(Parquet):
    """Frames by `episode_index` and `frame_index`; an episode ends where it was cut, unless `--keys` names an end."""

    format = "a LeRobot data set"
    filters = True
    numbered = False

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return (path / INFO).is_file()

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the data set says about itself."""
        try:
            found = json.loads((self.path / INFO).read_text())
            version = str(found["codebase_version"])
            found["features"].items()
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"{self.path / INFO} is not LeRobot's ({first_line(error)})") from error
        if found.get("storage_format") == "lance":
            raise InputError(
                f"{self.origin} is a LeRobot data set in a Lance store, which is not read", "export it to parquet"
            )
        if version not in ("v2.0", "v2.1", "v3.0"):
            raise InputError(f"{self.origin} is a LeRobot data set of version {version}; v2.1 and v3 are read")
        return found

    def files(self) -> list[Path]:
        assert self.info
        found = sorted((self.path / "data").rglob("*.parquet"), key=natural)
        if not found:
            raise InputError(f"{self.origin} has no parquet files under data")
        return found

    @cached_property
    def features(self) -> dict[str, Any]:
        """The vectors that were observed, by name."""
        found = {name: feature for name, feature in self.info["features"].items() if name.startswith(PREFIX)}
        vectors = {name: feature for name, feature in found.items() if feature.get("dtype") not in ("video", "image")}
        if not vectors:
            only = f"only pictures were observed ({', '.join(found)})" if found else "nothing was observed"
            raise InputError(f"{self.origin} has no vector of states: {only}", f"a feature such as {USUAL} would do")
        return vectors

    def wanted(self) -> Wanted:
        keys, columns = dict(self.choice.keys), list(self.kinds())
        usual = [keys.get("observations", USUAL)]
        if not self.choice.parts and usual[0] not in self.features:
            raise InputError(
                f"{self.origin} has no '{usual[0]}' (it has: {', '.join(self.features)})",
                f"--obs-keys {','.join(self.features)}",
            )
        chosen = arrays.pick(self.choice.parts or usual, self.features, self.origin, "--obs-keys")
        for name in (*chosen, "episode_index", "frame_index"):
            if name not in columns:
                raise InputError(f"{self.files()[0]} has no '{name}' (it has: {', '.join(columns)})")
        action = keys.get("actions", ACTION)
        single = {"rewards": keys.get("rewards", REWARD), "terminals": keys.get("terminals", "")}
        return Wanted(
            chosen,
            [action] if action in columns else [],
            "episode_index",
            "frame_index",
            **{name: theirs for name, theirs in single.items() if theirs in columns},
        )

    def flags(self) -> list[str]:
        usual = dict(self.choice.keys).get("observations", USUAL)
        return [] if self.choice.parts or usual in self.features else ["--obs-keys", ",".join(self.features)]

    def left_out(self, wanted: Wanted) -> Parts:
        return tuple(name for name in self.info["features"] if name.startswith(PREFIX) and name not in wanted.states)

    def dimensions(self, column: str) -> list[str]:
        names = self.info["features"].get(column, {}).get("names")
        while isinstance(names, dict) and names:  # {"motors": [...]}
            names = next(iter(names.values()))
        width = self.width(column)
        return list(map(str, names)) if isinstance(names, list) and len(names) == width else super().dimensions(column)

    def listing(self) -> dict[str, str]:
        found = {}
        for name, feature in self.info["features"].items():
            shape = " x ".join(map(str, feature.get("shape", [])))
            found[name] = f"{shape} {feature.get('dtype', '')}".strip()
        return {f"{self.info.get('total_episodes', '?')} episodes": self.info["codebase_version"], **found}

    def episodes(self, horizon: int, *, states_only: bool = False) -> Blocks:
        wanted = self._subset() if self.choice.subset else None
        count = 0
        for block in super().episodes(horizon, states_only=states_only):
            assert block.origin is not None
            count += block.episodes
            number = block.origin[:, 1]
            kept = block if wanted is None else _only(block, (number >= wanted[0]) & (number < wanted[1]))
            if kept is not None:
                yield kept
        told = self.info.get("total_episodes", count)
        if count < told and wanted is None:
            raise InputError(
                f"{self.origin} holds {count} episodes of two frames or more, its {INFO} counts {told}",
                "download the missing files under data",
            )

    def _subset(self) -> tuple[int, int]:
        """The episodes of a split: the first, and the one after the last."""
        splits = self.info.get("splits", {})
        if self.choice.subset not in splits:
            hint = nearest(self.choice.subset, list(splits)) if splits else "leave #filter out"
            raise InputError(f"{self.origin} has no split '{self.choice.subset}'", hint)
        first, _, last = str(splits[self.choice.subset]).partition(":")
        return int(first), int(last)


def _only(block: Transitions, which: np.ndarray) -> Transitions | None:
    """Some of a block's episodes; None where there are none."""
    found = [block.take(k, k + 1) for k in np.flatnonzero(which).tolist()]
    return concatenate(found) if found else None
