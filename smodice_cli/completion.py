"""What a shell offers after TAB: names and files that would fit, found when they are asked for."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from smodice_cli import recipes
from smodice_cli.algos import ALGORITHMS
from smodice_cli.config import choices_of
from smodice_cli.envs import DATA, ENVIRONMENTS
from smodice_cli.stages import maker, sections

Completion = Callable[[str], list[str]]
RUNS = "runs"  # where artifacts usually lie


def one_of(names: Callable[[], Iterable[str]]) -> Completion:
    """Any of these names."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def several_of(names: Callable[[], Iterable[str]]) -> Completion:
    """Names with commas between them, each once."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        left = [name for name in names() if name.startswith(last) and name not in before.split(",")]
        return [f"{before}{comma}{name}" for name in left]

    return complete


def files_like(*endings: str) -> Completion:
    """Folders, and files with one of these endings."""

    def complete(incomplete: str) -> list[str]:
        places = sorted(glob.glob(f"{glob.escape(incomplete)}*"))
        folders = [f"{place}{os.sep}" for place in places if os.path.isdir(place)]
        return folders + [place for place in places if place.endswith(endings) and os.path.isfile(place)]

    return complete


def artifacts_of(kind: str) -> Completion:
    """Artifacts of a kind: those of all runs, by their usual name, or whatever lies where the path leads."""
    usual = maker(kind).file
    nearby = files_like(Path(usual).suffix)

    def complete(incomplete: str) -> list[str]:
        known = sorted(map(str, Path(RUNS).rglob(usual)))
        return list(dict.fromkeys([*(path for path in known if path.startswith(incomplete)), *nearby(incomplete)]))

    return complete


def of_setting(field: dataclasses.Field) -> Completion | None:
    """The values of a setting that takes only some; None where a shell can only offer files."""
    if field.name == "env":
        return environments
    return one_of(lambda: choices_of(field)) if field.metadata["choices"] else None


def assignments(incomplete: str) -> list[str]:
    """`value.gamma=`, and after it the values that it takes, where there are few."""
    name, equals, value = incomplete.partition("=")
    known = {
        f"{section}.{field.name}": field
        for section, stage in sections().items()
        for algo in ALGORITHMS
        for field in dataclasses.fields(stage.config_of(algo))
    }
    if not equals:
        return [f"{key}=" for key in known if key.startswith(name)]
    choices = choices_of(known[name]) if name in known else []
    return [f"{name}={choice}" for choice in choices if choice.startswith(value)]


algorithm = one_of(lambda: ALGORITHMS)
algorithms = several_of(lambda: ALGORITHMS)
environments = one_of(lambda: (*ENVIRONMENTS, DATA))
presets = one_of(lambda: recipes.PRESETS)


def recipe(incomplete: str) -> list[str]:
    """Shipped recipes by name, and recipes of your own."""
    return one_of(recipes.names)(incomplete) + files_like(".toml")(incomplete)


def variants(incomplete: str) -> list[str]:
    """Shipped files of variants by name, and your own."""
    return one_of(recipes.variant_names)(incomplete) + files_like(".toml")(incomplete)
