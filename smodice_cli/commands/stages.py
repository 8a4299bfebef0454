"""The commands of the pipeline, one for each stage that declares itself, and `tabular`.

A command's options are what every stage shares, the artifacts it may start from, and the settings that have a flag.
"""

import dataclasses
import inspect
import shlex
import typing
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from smodice_cli import recipes
from smodice_cli.algos import ALGORITHMS
from smodice_cli.cli import MAX_SEED, PIPELINE, Algo, Common, DryRun, Force, Running, Source, command, flag, report
from smodice_cli.config import Config, build, choices_of, merge
from smodice_cli.console import console
from smodice_cli.engine import Options, Stage, make
from smodice_cli.errors import UsageError
from smodice_cli.parallel import cores
from smodice_cli.stages import DEFAULT, STAGES, chain, flag_of, has, home, maker, owner
from smodice_cli.stages.tabular import Config as TabularConfig
from smodice_cli.stages.tabular import tabular as solve

Sums = Annotated[
    list[str] | None,
    typer.Option(
        "--sha256", metavar="NAME=SUM", help="What the file of a source must be, e.g. hopper-medium-v2=9f8a..."
    ),
]
NamedEnv = Annotated[
    str, typer.Option(metavar="NAME", help="The policy's environment: needed where it imports a module, gym:MODULE:ID.")
]
Video = Annotated[Path | None, typer.Option(metavar="FILE", help="Also film the first episode, as .gif or .mp4.")]


# --- options ---------------------------------------------------------------------------------------------------------


def setting_options(classes: Iterable[type[Config]]) -> list[inspect.Parameter]:
    """The settings of these configs that have a flag, as options of a command."""
    found: dict[str, inspect.Parameter] = {}
    for cls in dict.fromkeys(classes):
        hints = typing.get_type_hints(cls)
        for f in dataclasses.fields(cls):
            if f.metadata.get("flag"):
                kind = list[str] if typing.get_origin(hints[f.name]) is tuple else hints[f.name]
                words = f.metadata["help"][0].upper() + f.metadata["help"][1:]
                words += f": {' | '.join(choices_of(f))}." if choices_of(f) else "."
                written = [f.metadata["flag"]] if isinstance(f.metadata["flag"], str) else []
                option = typer.Option(*written, help=words, metavar=f.metadata.get("metavar"))
                found[f.name] = flag(f.name, Annotated[kind | None, option], None)
    return list(found.values())


def start_options(stage: Stage) -> dict[str, inspect.Parameter]:
    """An option for each kind of artifact that the stage starts from, with some algorithm."""
    kinds: dict[str, list[str]] = {}
    for algo in ALGORITHMS:
        if kind := stage.starts_from(algo):
            kinds.setdefault(kind, []).append(algo)
    found = {}
    for kind, algos in kinds.items():
        words = f"Artifact of {maker(kind).name}"
        if len(kinds) == 1:
            option = Annotated[Path, typer.Option(help=f"{words}.")]
            found[kind] = flag(flag_of(kind), option, inspect.Parameter.empty)
        else:
            words += f", for {' and '.join([', '.join(algos[:-1]), algos[-1]] if algos[1:] else algos)}."
            found[kind] = flag(flag_of(kind), Annotated[Path | None, typer.Option(help=words)], None)
    return found


# --- the commands ----------------------------------------------------------------------------------------------------


def add(stage: Stage) -> None:
    """Register the command of a stage."""
    starts = start_options(stage)
    further = [
        *([flag("algo", Algo, None)] if stage.by_algorithm else []),
        *([flag("source", Source, ""), flag("sha256", Sums, None)] if stage.per_run else []),
        *([flag("video", Video, None), flag("env", NamedEnv, "")] if stage.films else []),
    ]

    def perform(common: Common, running: Running, **given: Any) -> None:
        perform_stage(stage, common, running, given)

    perform.__doc__ = stage.help
    settings = setting_options(stage.config_of(algo) for algo in ALGORITHMS)
    command(PIPELINE, stage.name, *stage.examples, options=[*starts.values(), *further, *settings])(perform)


def perform_stage(stage: Stage, common: Common, running: Running, given: dict[str, Any]) -> None:
    """What the command of a stage does; `given` are its options: the first artifacts, and settings that have a flag."""
    places = {kind: given.pop(flag_of(kind)) for kind in start_options(stage)}
    algo, source, video = (given.pop(name, None) for name in ("algo", "source", "video"))
    named, sums = given.pop("env") if stage.films else "", tuple(given.pop("sha256", None) or ())
    if common.steps is not None and stage.instead_of_steps:
        raise UsageError(f"{stage.name} has no gradient steps; {stage.instead_of_steps}")
    if video:
        from smodice_cli.views import video as films

        films.check(video, running.force)
    config, chosen = stage_config(stage, common, algo, source, given)
    start = starting_point(stage, chosen, places)
    folder = home(start, owner(stage, chosen, config)) if start else Path()
    out = common.out or stage.place(start, config, folder)
    options = replace(running.options(common.threads or (cores() if stage.simulates else 1)), env=named, sha256=sums)
    result = make(stage, start, out, config, common.seed, options)
    if result.header is None:
        report(result, {}, [])
        return
    if video and start:
        films.record(start, video, config, common.seed)
    report(result, *stage.tell(result.header), next_step(stage, chosen, out, named=bool(algo)))


def stage_config(
    stage: Stage, common: Common, algo: str | None, source: str | None, given: dict[str, Any]
) -> tuple[Any, str]:
    """The stage's config and whose it is: defaults < preset < recipe < what defines the algorithm < --set < flags."""
    if source and not common.config:
        raise UsageError("--source chooses among the data of a recipe: name it with --config")
    recipe = recipes.Recipe(recipes.preset(common.preset), [])
    if common.config:
        recipe = recipes.read_recipe(common.config, source or "", [algo] if algo else [], common.preset)
    flags = {name: value for name, value in given.items() if value is not None}
    flags |= {} if common.steps is None else {"steps": common.steps}
    section = stage.section
    chosen = merge(recipes.parse_set(common.set or [], section), {section: flags})
    asked = chosen[section].get("algo")
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
    config = build(stage.config_of(algo), section, settings.get(section, {}))
    return config, algo


def starting_point(stage: Stage, algo: str, places: dict[str, Path | None]) -> Path | None:
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


def next_step(stage: Stage, algo: str, out: Path, *, named: bool) -> str:
    """The commands that take what was made: to look at it, and to go on."""
    steps = [["smodice", "inspect", str(stage.companion(out, stage.hands_on))]] if stage.hands_on else []
    following = [later for before, later in pairwise(chain(algo)) if before is stage]
    for later in following:
        flags = ["--algo", algo] if named and later.by_algorithm else []
        steps.append(["smodice", later.name, f"--{flag_of(stage.kind)}", str(out), *flags])
    return " ; ".join(map(shlex.join, steps))


for _stage in STAGES.values():
    if _stage.help:
        add(_stage)


# --- tabular ---------------------------------------------------------------------------------------------------------


@command(
    PIPELINE,
    "tabular",
    "smodice tabular mismatched --out runs/tabular/mismatched.h5",
    "smodice tabular example --f kl --seed 3 --json",
    options=setting_options([TabularConfig]),
)
def tabular(
    source: Annotated[
        str, typer.Argument(metavar="TASK", help="mismatched | example | a text map of # S G . | an HDF5 of counts.")
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; the picture lies beside it.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the random policy's data.")] = 0,
    force: Force = False,
    dry_run: DryRun = False,
    **given: Any,
) -> None:
    """Solve SMODICE exactly on a finite MDP: the paper's gridworlds, your map or counts; draws a picture."""
    from smodice_cli.views.tabular import lines

    settings = {name: value for name, value in given.items() if value is not None}
    result = solve(source, out, settings, seed, Options(force=force, dry_run=dry_run))
    report(result, {}, [])
    for line in lines(result.path, result.header) if result.header else []:
        console.note(line)
