"""`run`, the whole chain of a recipe, and `select-f`, which chooses the divergence before it."""

import functools
import shlex
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from smodice_cli import artifacts, completion, interrupts, recipes
from smodice_cli import jobs as planning
from smodice_cli.cli import (
    LOOK,
    PIPELINE,
    START,
    DryRun,
    Force,
    Preset,
    Seed,
    Set,
    Source,
    Training,
    app,
    command,
    guard,
)
from smodice_cli.commands.stages import setting_options
from smodice_cli.config import merge
from smodice_cli.console import EVENT_EVERY, console, escape
from smodice_cli.engine import MAX_SEED, Options
from smodice_cli.errors import UsageError
from smodice_cli.parallel import cores
from smodice_cli.stages import DEFAULT
from smodice_cli.stages.build_dataset import Config as Dataset
from smodice_cli.views.diagnostics import LEVELS, WORDS

RECIPE = typer.Argument(
    help="A recipe: its name, as `smodice recipes` lists them, or a TOML file.", autocompletion=completion.recipe
)
RECIPES = typer.Argument(
    help="Recipes: names, as `smodice recipes` lists them, TOML files or patterns of them.",
    autocompletion=completion.recipe,
)

MOST_SEEDS = 10_000  # of a range: more is a slip
_where = functools.partial(typer.Option, rich_help_panel="Where")


@command(
    PIPELINE,
    "run",
    START,
    "smodice run pointmass-4direction --seeds 0,1,2 --set value.f=chi2 --out runs/chi2",
    "smodice run hopper --source d4rl  # downloads D4RL's files",
    "smodice run comparison-pointmass-4direction --algo smodice,oril --seeds 0,1,2",
    "smodice run hopper --variants ablation --seeds 0,1,2",
    "smodice run 'pipelines/observations/*.toml' --seeds 0-9 --on slurm:main --on-set time=1:00:00  # on a cluster",
    "smodice run --env data --offline arm.hdf5 --expert demo.hdf5#traj=0  # with recordings of yours",
    options=setting_options([Dataset], "Data: instead of a recipe, or of what it says"),
)
def run(
    recipe: Annotated[list[str] | None, RECIPES] = None,
    algo: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Algorithms, e.g. smodice,bc,oril; default: the recipe's.",
            autocompletion=completion.algorithms,
        ),
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Named changes (TOML), each run beside the recipe itself; e.g. ablation.",
            autocompletion=completion.variants,
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, e.g. 0,1,2 or 0-9; several run in parallel.")] = "0",
    out: Annotated[
        Path | None, typer.Option(help="Run folder, of several recipes the folder of theirs; default runs/<recipe>.")
    ] = None,
    on: Annotated[
        str, _where(metavar="ENGINE", help="local | slurm\\[:PARTITION] | ray\\[:ADDRESS]: where the chains run.")
    ] = "local",
    on_set: Annotated[
        list[str] | None, _where(metavar="KEY=VALUE", help="An option of the engine, e.g. time=1:00:00. Repeatable.")
    ] = None,
    wait: Annotated[bool, _where("--wait", help="Slurm: stay until all have ended.")] = False,
    jobs: Annotated[int | None, _where(min=1, help="Local: processes at once; default: the cores.")] = None,
    fail_fast: Annotated[bool, _where("--fail-fast", help="Start nothing more once a chain has failed.")] = False,
    source: Source = "",
    preset: Preset = "",
    set: Set = None,
    *,
    running: Training,
    **given: Any,
) -> None:
    """Run the whole chain, of recipes or of data of your own, for one or several seeds, here or on a cluster."""
    from smodice_cli import engines, execution, pipeline

    numbers = parse_seeds(seeds)
    flags = {name: value for name, value in given.items() if value is not None}
    chosen = merge(recipes.parse_set(set or []), {"dataset": flags} if flags else {})
    named = [name.strip() for name in algo.split(",")] if algo else []
    engine = engines.find(on, on_set or [])
    if jobs:
        engine.bound(jobs)
    if fail_fast and engine.detached and not wait:
        raise UsageError("--fail-fast needs somebody who watches", "add --wait")
    changes = recipes.locate_variants(variants) if variants else None
    words = recipes.find(recipe or []) or [""]  # none: data of one's own
    runs = []
    for word in words:
        found, folder = recipes.for_command(word, chosen, source, named, preset)
        folder = folder if not out else out if len(words) == 1 else out / folder.name
        runs.append(planning.plan(found, chosen, numbers, folder, changes))
    if len({one.folder for one in runs}) != len(runs):
        raise UsageError("two of these recipes have the same name, and with it the same run folder")
    options = replace(running.options(), owned=engine.owned)
    if options.dry_run:
        plan = [result for one in runs for result in pipeline.plan(one, options)]
        lines = [f"{escape(str(r.path))}: {r.status} ({escape(r.reason)})" for r in plan]
        console.result({"plan": [r.summary() for r in plan]}, lines)
        return
    with closing(engine):
        engine.check()
        done = execution.execute(runs, options, engine, execution.Given(on, cores(), wait, fail_fast))
    if done is None:
        tell_submitted([str(one.folder) for one in runs], on)
    else:
        show(done)


def tell_submitted(folders: list[str], on: str) -> None:
    """Say how to see and end what is in a cluster's queue now."""
    named = escape(shlex.join(folders))
    lines = [
        f"[bold]submitted[/]  to {escape(on)}",
        f"how far it is:  smodice status {named}",
        f"to end it:  smodice cancel {named}",
    ]
    console.result({"on": on, "folders": folders}, lines)


def parse_seeds(text: str) -> list[int]:
    """`0,1,2` or `0-9,20` as numbers."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        ends = [first, last] if dash else [first, first]
        if not all(end.isdecimal() and len(end) < 20 and int(end) <= MAX_SEED for end in ends):
            raise UsageError(f"--seeds {text}: expected whole numbers and ranges, e.g. 0,1,2 or 0-9")
        begin, end = map(int, ends)
        if not begin <= end < begin + MOST_SEEDS:
            raise UsageError(f"--seeds {text}: {part.strip()} must go upwards, over at most {MOST_SEEDS:,} seeds")
        numbers += range(begin, end + 1)
    if len({*numbers}) != len(numbers):
        raise UsageError(f"--seeds {text}: a seed is named twice")
    return numbers


def show(summaries: list[dict[str, Any]]) -> None:
    """The scores of one run, or of several side by side."""
    if len(summaries) == 1:
        recorded = "action_error_mean" in summaries[0]["methods"][0]
        (show_recorded if recorded else show_summary)(summaries[0])
        console.say(verdicts(summaries))
        return
    rows = [
        [summary["folder"], row["method"], str(len(row["per_seed"])), _spread(row)]
        for summary in summaries
        for row in summary["methods"]
    ]
    console.table("", ["run", "method", "seeds", "score"], rows)
    console.result({"runs": summaries}, [f"result: {escape(summary['folder'])}/summary.json" for summary in summaries])
    console.say(verdicts(summaries))


def verdicts(summaries: list[dict[str, Any]]) -> list[str]:
    """What a run ends with: whether the weights that its policies were trained on are healthy, the worst last."""
    found: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}  # by level, run and method: seeds
    for summary in summaries:
        for row in summary["methods"]:
            for seed, weights in row["weights"].items():
                where = (weights["level"], summary["folder"], row["method"])
                found.setdefault(where, {})[seed] = weights
    lines = []
    for level in (level for level in LEVELS if level != "green"):
        for (_, folder, method), seeds in ((where, seeds) for where, seeds in found.items() if where[0] == level):
            name = f"{Path(folder).name} {method}" if len(summaries) > 1 else method
            first = next(iter(seeds.values()))
            which = f"{name}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
            lines.append(f"[bold {level}]● weights {level}: {WORDS[level]}[/]  ({escape(which)})")
            lines += [f"  {escape(text)}" for text in first["findings"]]
            lines.append(f"  what to try:  smodice inspect {escape(shlex.quote(first['path']))}")
    return lines or (["[green]● weights green: healthy[/]"] if found else [])


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
        f'drive the robot, without torch:  action = smodice.load_policy("{policy}").act(state)',
        f"or elsewhere:  smodice export {policy} --to onnx",
    ]
    console.result(summary, lines)


def _spread(row: dict[str, Any]) -> str:
    figure, digits = ("normalized", 1) if "normalized_mean" in row else ("action_error", 4)
    std = f" ± {row[f'{figure}_std']:.{digits}f}" if len(row["per_seed"]) > 1 else ""
    return f"{row[f'{figure}_mean']:.{digits}f}{std}"


@app.command("work", hidden=True)
def work(
    order: Path, workers: int = 1, every: float = EVENT_EVERY, attached: bool = False, debug: bool = False
) -> None:
    """The worker of one order: reports events on stderr; `attached` ends when its standard input does."""
    from smodice_cli import orders, pipeline

    def begin() -> None:
        console.mode, console.event_every = "events", every
        found = orders.Order.read(order)
        orders.begin(found)
        pipeline.work(found, workers)

    if attached:
        interrupts.end_with_input()
    code = 0
    try:
        guard(begin, debug=debug)
    except typer.Exit as end:
        code = end.exit_code
        raise
    finally:
        console.event(kind="end", code=code)


@command(
    LOOK,
    "select-f",
    "smodice select-f pointmass-4direction",
    "smodice select-f hopper --steps 2000 --candidates kl,chi2 --json",
    "smodice run hopper --set value.f=auto",
)
def select_f(
    recipe: Annotated[str, RECIPE],
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
    place = recipes.locate(recipe)
    found = recipes.read_recipe(place, source, base=preset)
    configs = recipes.for_run(DEFAULT, [DEFAULT], found.settings, recipes.parse_set(set or []))
    folder = out or recipes.run_folder(place, source)
    brief = {"candidates": names, "steps": steps, "policy_steps": policy_steps}
    result = pipeline.select_f(folder, configs, seed, Options(force=force, dry_run=dry_run), cores(), **brief)
    if result.status == "would run":
        console.result(result.summary(), [f"[bold]would run[/]  {escape(str(result.path))}  ({escape(result.reason)})"])
        return
    payload = artifacts.read_payload(result.path)
    columns, rows = selection.table(payload)
    console.table("", columns, rows)
    best = f"recommended: [bold]{payload['recommended']}[/] ({escape(payload['why'])})"
    picture = f"evidence: {escape(str(result.path))}, {escape(str(result.path.with_suffix('.png')))}"
    console.result(result.summary() | payload, [best, picture])
