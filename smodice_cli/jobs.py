"""What somebody asked for, at the command line or in Python: one stage (`Job`), or a whole run (`plan`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smodice_cli import pipeline, recipes
from smodice_cli.algos import ALGORITHMS
from smodice_cli.config import Settings, build
from smodice_cli.engine import Options, Result, Stage, make
from smodice_cli.errors import UsageError
from smodice_cli.recipes import Recipe
from smodice_cli.stages import DEFAULT, flag_of, has, home, owner

# --- one stage -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One stage with all that determines what it makes, but for the seed."""

    stage: Stage
    algo: str
    config: Any
    start: Path | None  # the artifact it starts from
    out: Path

    def make(self, seed: int, options: Options) -> Result:
        """Do it, unless its artifact is there."""
        return make(self.stage, self.start, self.out, self.config, seed, options)


def job(
    stage: Stage,
    places: Mapping[str, Path | None],
    chosen: Settings,
    *,
    algo: str = "",
    recipe: Recipe | None = None,
    out: Path | None = None,
) -> Job:
    """What a stage does with these artifacts, by kind, and settings: `chosen` over the recipe's, or over a preset's."""
    recipe = recipe or Recipe({}, [])
    config, algo = stage_config(stage, recipe, chosen, algo)
    start = starting_point(stage, algo, places)
    folder = home(start, owner(stage, algo, config)) if start else Path()
    return Job(stage, algo, config, start, out or stage.place(start, config, folder))


def stage_config(stage: Stage, recipe: Recipe, chosen: Settings, algo: str) -> tuple[Any, str]:
    """The stage's config and whose it is: defaults < recipe < what defines the algorithm < what was chosen."""
    section = stage.section
    asked = chosen.get(section, {}).get("algo")
    if algo and asked not in (None, algo):
        raise UsageError(f"--algo {algo} and --set algo={asked} are two answers to one question")
    asked = algo or asked or (recipe.algos[0] if len(recipe.algos) == 1 else DEFAULT)
    algo, *others = recipes.check_algorithms(asked, "--algo")
    if others:
        raise UsageError("--algo: a stage trains one algorithm", "smodice run compares several")
    if not has(algo, section):
        raise UsageError(f"{algo} has no {stage.name}: it starts from --{flag_of(ALGORITHMS[algo].starts_from)}")
    recipes.refuse_idle(chosen, [algo])
    recipes.refuse_unread(chosen, [algo])
    settings = recipes.for_algorithm(algo, recipe.settings, chosen)
    return build(stage.config_of(algo), section, settings.get(section, {})), algo


def starting_point(stage: Stage, algo: str, places: Mapping[str, Path | None]) -> Path | None:
    """The one artifact that the stage starts from with this algorithm; refuses another, or more."""
    if not places:
        return None
    named = {kind: path for kind, path in places.items() if path is not None}
    needed = stage.starts_from(algo)
    path = named.pop(needed, None)
    if path is None or named:
        instead = f", not from --{' and --'.join(map(flag_of, named))}" if named else ""
        flag = flag_of(needed)
        raise UsageError(f"{algo} starts from --{flag}{instead}", f"smodice {stage.name} --algo {algo} --{flag} FILE")
    return path


# --- a whole run -----------------------------------------------------------------------------------------------------


def plan(
    recipe: Recipe, chosen: Settings, seeds: Sequence[int], folder: Path, variants: Path | None = None
) -> pipeline.Run:
    """A run of a recipe, every setting of which was checked."""
    methods = pipeline.hold_out_recordings(recipes.for_methods(recipe, chosen, variants))
    usual = recipes.configs(DEFAULT, recipes.for_algorithm(DEFAULT, recipe.settings, chosen))
    return pipeline.Run(folder, methods, usual, list(seeds))
