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

from smodice_cli import jobs, recipes
from smodice_cli.algos import ALGORITHMS
from smodice_cli.cli import (
    PIPELINE,
    Algo,
    Common,
    Doing,
    DryRun,
    Force,
    Source,
    Steps,
    Training,
    command,
    flag,
    report,
    seed_option,
)
from smodice_cli.completion import artifacts_of, environments, of_setting
from smodice_cli.config import Config, choices_of, merge
from smodice_cli.console import console
from smodice_cli.engine import MAX_THREADS, Options, Stage
from smodice_cli.errors import UsageError
from smodice_cli.parallel import cores
from smodice_cli.stages import STAGES, chain, flag_of, maker
from smodice_cli.stages.tabular import Config as TabularConfig
from smodice_cli.stages.tabular import tabular as solve

Sums = Annotated[
    list[str] | None,
    typer.Option("--sha256", metavar="NAME=SUM", help="The SHA-256 that the file of a source must have, by its name."),
]
NamedEnv = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The policy's environment: needed where it imports a module, gym:MODULE:ID.",
        autocompletion=environments,
    ),
]
Video = Annotated[Path | None, typer.Option(metavar="FILE", help="Also film the first episodes, as .gif or .mp4.")]
Filmed = Annotated[int | None, typer.Option(metavar="N", min=1, help="How many episodes the film shows; default 1.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=MAX_THREADS, help="Torch threads; default 1.", rich_help_panel="Running")
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_THREADS, help="Processes to simulate with; default: all.", rich_help_panel="Running"),
]


# --- options ---------------------------------------------------------------------------------------------------------


def setting_options(classes: Iterable[type[Config]], panel: str | None = None) -> list[inspect.Parameter]:
    """The settings of these configs that have a flag, as options of a command, in a panel of its help."""
    found: dict[str, inspect.Parameter] = {}
    for cls in dict.fromkeys(classes):
        hints = typing.get_type_hints(cls)
        for f in dataclasses.fields(cls):
            if f.metadata.get("flag"):
                kind = list[str] if typing.get_origin(hints[f.name]) is tuple else hints[f.name]
                words = f.metadata["help"][0].upper() + f.metadata["help"][1:]
                words += f": {' | '.join(choices_of(f))}." if choices_of(f) else "."
                written = [f.metadata["flag"]] if isinstance(f.metadata["flag"], str) else []
                more: Any = {"metavar": f.metadata.get("metavar"), "rich_help_panel": panel}
                option = typer.Option(*written, help=words, autocompletion=of_setting(f), **more)
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
            option = typer.Option(help=f"{words}.", autocompletion=artifacts_of(kind))
            found[kind] = flag(flag_of(kind), Annotated[Path, option], inspect.Parameter.empty)
        else:
            words += f", for {' and '.join([', '.join(algos[:-1]), algos[-1]] if algos[1:] else algos)}."
            option = typer.Option(help=words, autocompletion=artifacts_of(kind))
            found[kind] = flag(flag_of(kind), Annotated[Path | None, option], None)
    return found


# --- the commands ----------------------------------------------------------------------------------------------------


def add(stage: Stage) -> None:
    """Register the command of a stage, with the flags that it reads."""
    trains = any("steps" in stage.config_of(algo).__dataclass_fields__ for algo in ALGORITHMS)
    further = [
        *([flag("algo", Algo, None)] if stage.by_algorithm else []),
        *([flag("steps", Steps, None)] if trains else []),
        *([flag("source", Source, ""), flag("sha256", Sums, None)] if stage.per_run else []),
        *([flag("video", Video, None), flag("video_episodes", Filmed, None)] if stage.films else []),
        *([flag("env", NamedEnv, "")] if stage.films else []),
        *([flag("threads", Processes if stage.simulates else Threads, None)] if trains or stage.simulates else []),
    ]
    kind: Any = Training if trains else Doing

    def perform(common: Common, running: kind, **given: Any) -> None:
        perform_stage(stage, common, running, given)

    perform.__doc__ = stage.help
    settings = setting_options(stage.config_of(algo) for algo in ALGORITHMS)
    options = [*start_options(stage).values(), *further, *settings]
    command(PIPELINE, stage.name, *stage.examples, options=options, after_demo=not stage.per_run)(perform)


def perform_stage(stage: Stage, common: Common, running: Doing, given: dict[str, Any]) -> None:
    """What the command of a stage does; `given` are its options: the first artifacts, and settings that have a flag."""
    places = {kind: given.pop(flag_of(kind)) for kind in start_options(stage)}
    algo, source, threads = (given.pop(name, None) for name in ("algo", "source", "threads"))
    video, filmed = given.pop("video", None), given.pop("video_episodes", None)
    named, sums = given.pop("env") if stage.films else "", tuple(given.pop("sha256", None) or ())
    if filmed and not video:
        raise UsageError("--video-episodes goes with --video FILE")
    if source and not common.config:
        raise UsageError("--source chooses among the data of a recipe: name it with --config")
    recipe = recipes.Recipe(recipes.preset(common.preset), [])
    if common.config:
        place = recipes.locate(common.config)
        recipe = recipes.read_recipe(place, source or "", [algo] if algo else [], common.preset)
    flags = {name: value for name, value in given.items() if value is not None}
    chosen = merge(recipes.parse_set(common.set or [], stage.section), {stage.section: flags})
    job = jobs.job(stage, places, chosen, algo=algo or "", recipe=recipe, out=common.out)
    if video:
        from smodice_cli.views import video as films

        films.check(video, job.start, job.config, running.force)
    options = replace(running.options(threads or (cores() if stage.simulates else 1)), env=named, sha256=sums)
    result = job.make(common.seed, options)
    if result.header is None:
        report(result, {}, [])
        return
    members, lines = stage.tell(result.header)
    if video and job.start:
        told = films.record(job.start, video, job.config, common.seed, filmed or 1)
        members, lines = members | {"video": str(video)}, [*lines, told]
    report(result, members, lines, next_step(stage, job.algo, job.out, named=bool(algo)))


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
    seed: Annotated[int, seed_option(help="Seed of the random policy's data.")] = 0,
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
