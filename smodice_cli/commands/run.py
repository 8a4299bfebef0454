"""`run`, the whole chain of a recipe, and `select-f`, which chooses the divergence before it."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from smodice_cli import artifacts, recipes
from smodice_cli.cli import (
    LOOK,
    MAX_SEED,
    PIPELINE,
    DryRun,
    Force,
    Preset,
    Running,
    Seed,
    Set,
    Source,
    app,
    command,
    guard,
)
from smodice_cli.console import console, escape
from smodice_cli.engine import Options
from smodice_cli.errors import SmodiceError, UsageError
from smodice_cli.parallel import cores
from smodice_cli.stages import DEFAULT


@command(
    PIPELINE,
    "run",
    "smodice run pipelines/examples/pointmass-4direction.toml",
    "smodice run pipelines/examples/pointmass-4direction.toml --seeds 0,1,2 --set value.f=kl --out runs/pm-kl",
    "smodice run pipelines/observations/hopper.toml --source d4rl",
    "smodice run pipelines/comparison/comparison-pointmass-4direction.toml --algo smodice,oril --seeds 0,1,2",
    "smodice run pipelines/observations/hopper.toml --variants pipelines/ablation.toml --seeds 0,1,2",
)
def run(
    recipe: Annotated[Path, typer.Argument(help="Recipe (TOML), e.g. one from pipelines/.")],
    algo: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Algorithms, e.g. smodice,bc,oril; default: the recipe's.")
    ] = None,
    variants: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Named changes (TOML), each run beside the recipe itself.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, e.g. 0,1,2; several run in parallel processes.")] = "0",
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<recipe>.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at once; default: the cores.")] = None,
    source: Source = "",
    preset: Preset = "",
    set: Set = None,
    *,
    running: Running,
) -> None:
    """Run the whole chain of a recipe, for one or several seeds."""
    from smodice_cli import pipeline
    from smodice_cli.summary import summarise

    numbers = parse_seeds(seeds)
    chosen = recipes.parse_set(set or [])
    named = [name.strip() for name in algo.split(",")] if algo else []
    found = recipes.read_recipe(recipe, source, named, preset)
    planned = pipeline.hold_out_recordings(recipes.for_methods(found, chosen, variants))
    usual = recipes.configs(DEFAULT, recipes.for_algorithm(DEFAULT, found.settings, chosen))
    folder = out or recipes.run_folder(recipe, source)
    options = running.options()
    data = pipeline.build_data(folder, usual["dataset"], options)
    methods = pipeline.settle_f(folder, planned, usual, numbers[0], options)
    chains = pipeline.chains(folder, methods, numbers, usual)
    if options.dry_run:
        plan = [data]
        for chain in chains:
            plan += pipeline.run_chain(chain, options, 1, missing_input=data.status != "cached")
        lines = [f"{escape(str(r.path))}: {r.status} ({escape(r.reason)})" for r in plan]
        console.result({"plan": [r.summary() for r in plan]}, lines)
        return
    console.note(f"{data.path}: {data.status}")
    try:
        if len(chains) == 1:
            pipeline.run_chain(chains[0], options, workers=cores())
        else:
            pipeline.run_chains(chains, options, jobs or cores())
    except BaseException:
        with suppress(SmodiceError):
            summarise(folder, methods, numbers)  # the one that is there may hold scores of other settings
        raise
    summary = summarise(folder, methods, numbers)
    (show_recorded if "action_error_mean" in summary["methods"][0] else show_summary)(summary)


def parse_seeds(text: str) -> list[int]:
    """`0,1,2` as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 20 and int(part) <= MAX_SEED for part in parts):
        raise UsageError(f"--seeds {text}: expected whole numbers separated by commas, e.g. 0,1,2")
    numbers = [int(part) for part in parts]
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"--seeds {text}: a seed is named twice")
    return numbers


def show_summary(summary: dict[str, Any]) -> None:
    """Scores of every method; of a single one those of every seed, and their mean."""
    found = summary["methods"]
    seeds = len(summary["seeds"])
    if len(found) > 1:
        columns = ["method", f"score, {seeds} seed{'s' * (seeds > 1)}", "policy steps", "minutes"]
        rows = [[r["method"], _spread(r), f"{r['steps']:,}", f"{r['seconds'] / 60:.1f}"] for r in found]
        console.table("", columns, rows)
        console.result(summary, [f"result: {escape(summary['folder'])}/summary.json"])
        return
    rows = []
    for seed, score in summary["per_seed"].items():
        low, high = score["interval_95"]
        rows.append([seed, f"{score['normalized']:.1f}", f"{score['mean_return']:.2f}", f"{low:.2f} to {high:.2f}"])
    console.table("", ["seed", "score", "mean return", "95 % interval"], rows)
    many = f" over {seeds} seeds" if seeds > 1 else ""
    lines = [f"score [bold]{_spread(summary)}[/]{many}", f"result: {escape(summary['folder'])}/summary.json"]
    console.result(summary, lines)


def show_recorded(summary: dict[str, Any]) -> None:
    """The scores of policies that nobody simulates, and how to drive the robot with one."""
    from smodice_cli.stages import offline_score

    lines = []
    for row in summary["methods"]:
        lines += [f"{escape(row['method'])} seed {n}: {offline_score.line(s)}" for n, s in row["per_seed"].items()]
    policy = escape(summary["methods"][0]["policies"][0])
    lines += [
        f"result: {escape(summary['folder'])}/summary.json",
        "drive the robot, without torch:  from smodice_cli.algos.acting import NumpyPolicy",
        f'    action = NumpyPolicy.load("{policy}").act(state)',
        f"or elsewhere:  smodice export {policy} --to onnx",
    ]
    console.result(summary, lines)


def _spread(row: dict[str, Any]) -> str:
    std = f" ± {row['normalized_std']:.1f}" if len(row["per_seed"]) > 1 else ""
    return f"{row['normalized_mean']:.1f}{std}"


@app.command("run-seed", hidden=True)
def run_seed(debug: bool = False) -> None:
    """One seed of `run` in a process of its own: told on stdin what to do, reports events on stderr."""
    from smodice_cli import pipeline

    def work() -> None:
        console.mode = "events"
        pipeline.run_told(sys.stdin)

    guard(work, debug=debug)


@command(
    LOOK,
    "select-f",
    "smodice select-f pipelines/examples/pointmass-4direction.toml",
    "smodice select-f pipelines/observations/hopper.toml --steps 2000 --candidates kl,chi2 --json",
    "smodice run pipelines/observations/hopper.toml --set value.f=auto",
)
def select_f(
    recipe: Annotated[Path, typer.Argument(help="Recipe (TOML), e.g. one from pipelines/.")],
    candidates: Annotated[
        str, typer.Option(help="Divergences to compare, e.g. kl,chi2; default: all that truncate.")
    ] = "",
    steps: Annotated[int | None, typer.Option(min=1, help="Gradient steps of V for each; default 1000.")] = None,
    policy_steps: Annotated[int | None, typer.Option(min=1, help="Steps of the policies; default 600.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<recipe>.")] = None,
    seed: Seed = 0,
    source: Source = "",
    preset: Preset = "",
    set: Set = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Choose the divergence offline: train the candidates briefly, watch the policy loss and the weights' health."""
    from smodice_cli import pipeline
    from smodice_cli.stages.select_f import parse_candidates
    from smodice_cli.views import selection

    names = parse_candidates(candidates)
    found = recipes.read_recipe(recipe, source, base=preset)
    configs = recipes.for_run(DEFAULT, [DEFAULT], found.settings, recipes.parse_set(set or []))
    folder = out or recipes.run_folder(recipe, source)
    brief = {"candidates": names, "steps": steps, "policy_steps": policy_steps}
    result = pipeline.select_f(folder, configs, seed, Options(force=force, dry_run=dry_run), **brief)
    if result.status == "would run":
        console.result(result.summary(), [f"[bold]would run[/]  {escape(str(result.path))}  ({escape(result.reason)})"])
        return
    payload = artifacts.read_payload(result.path)
    columns, rows = selection.table(payload)
    console.table("", columns, rows)
    best = f"recommended: [bold]{payload['recommended']}[/] ({escape(payload['why'])})"
    picture = f"evidence: {escape(str(result.path))}, {escape(str(result.path.with_suffix('.png')))}"
    console.result(result.summary() | payload, [best, picture])
