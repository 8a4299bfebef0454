"""Commands that look at what runs left (status, inspect, report) and ahead of one (select-f)."""

from pathlib import Path
from typing import Annotated

import typer

from smodice_cli.cli import LOOK, MAX_SEED, Debug, DryRun, Force, Json, Preset, Quiet, Set, Source, command
from smodice_cli.console import console, escape
from smodice_cli.errors import UsageError

Overwrite = Annotated[
    bool, typer.Option("--force", help="Overwrite a file that smodice did not write.", rich_help_panel="Output")
]


@command(LOOK, "status", "smodice status runs/pointmass-4direction", "smodice status runs --json")
def status(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the artifacts of a run folder and whether each is whole and up to date."""
    from smodice_cli.stages import pipeline

    rows = pipeline.status(folder)
    columns = ["path", "kind", "seed", "seconds", "state"]
    console.table("", columns, [[str(row.get(column, "")) for column in columns] for row in rows])
    console.result({"folder": str(folder), "artifacts": rows})


@command(
    LOOK,
    "inspect",
    "smodice inspect runs/pointmass-4direction/seed0/weights.h5 --png weights.png",
    "smodice inspect runs/pointmass-4direction/seed0/weights.h5 --trajectory 12 --csv trajectory.csv",
    "smodice inspect runs/pm/weights.h5 --compare runs/pm/chi2.weights.h5 --json",
    "smodice inspect runs/pointmass-4direction/dataset.h5",
)
def inspect(
    file: Annotated[Path, typer.Argument(help="Any artifact.")],
    trajectory: Annotated[
        int | None, typer.Option(metavar="K", help="Weights: also show trajectory K along time.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights: compare with other weights of the same dataset.")
    ] = None,
    dims: Annotated[
        str, typer.Option(metavar="I,J", help="State dimensions to draw; default: the task's own, else PCA.")
    ] = "",
    top: Annotated[int, typer.Option(min=1, help="Weights: how many heaviest and lightest trajectories.")] = 5,
    frames: Annotated[
        bool, typer.Option("--frames", help="Weights: also draw the states where the trajectory's weight peaks.")
    ] = False,
    panels: Annotated[
        str, typer.Option(metavar="A,B", help="Draw only these views, e.g. weight-map,along; default: all.")
    ] = "",
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the trajectories (or episodes, curves) as CSV.",
            rich_help_panel="Output",
        ),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the views as one picture.", rich_help_panel="Output")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained page.", rich_help_panel="Output")
    ] = None,
    force: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """See what an artifact holds: for weights their health and what they chose, for the others what was learned."""
    from smodice_cli.inspect import output, subject, terminal, views

    wish = views.Wish(trajectory, compare, views.parse_plane(dims) if dims else None, top, frames)
    if (frames or panels) and not (png or html):
        raise UsageError("--frames and --panels are for pictures", "add --png FILE or --html FILE")
    for path, ending in ((csv, ".csv"), (png, ".png"), (html, ".html")):
        if path:
            output.check(path, ending, force)
    opened = subject.open_subject(file)
    view = views.describe(opened, wish)
    for number, block in enumerate(terminal.blocks(view)):
        if number:
            console.say([""])
        if isinstance(block, terminal.Table):
            console.table(*block)
        else:
            console.say(block)
    written = []
    if csv:
        written += output.write_csv(csv, opened, view, force)
    if png or html:
        from smodice_cli.inspect import figures, page

        drawn = figures.panels(opened, view, wish)
        if not drawn:
            raise UsageError(f"there is nothing to draw of a {opened.kind} artifact")
        drawn = figures.pick(drawn, panels) if panels else drawn
        if png:
            written.append(figures.save_png(png, drawn, view))
        if html:
            written.append(page.save_inspection(html, drawn, view))
    for place in written:
        console.note(f"written: {place}")
    console.result(view)


@command(
    LOOK,
    "report",
    "smodice report runs/pointmass-4direction --html report.html",
    "smodice report runs/hopper runs/walker2d runs/halfcheetah --html locomotion.html --json",
)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    force: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write finished runs as one self-contained page: scores beside the paper's, curves, weights, commands."""
    from smodice_cli.inspect import output
    from smodice_cli.stages import report as stage

    output.check(html, ".html", force)
    found = stage.report(runs, html)
    rows = [
        [r["run"], r["task"], r["method"], f"{len(r['seeds'])}", _score(r["score"]), r["steady"], r["paper_says"]]
        for r in found["runs"]
    ]
    console.table("", ["run", "task", "method", "seeds", "score", "steady", "paper"], rows)
    console.result(found, [f"[bold]written[/]  {escape(str(html))}  {found['bytes'] / 1e6:.2f} MB"])


@command(
    LOOK,
    "select-f",
    "smodice select-f pipelines/examples/pointmass-4direction.toml",
    "smodice select-f pipelines/observations/hopper.toml --steps 2000 --candidates kl,chi2 --json",
    "smodice run pipelines/observations/hopper.toml --set value.f=auto",
)
def select_f(
    recipe: Annotated[Path, typer.Argument(help="Recipe (TOML), e.g. one from pipelines/.")],
    candidates: Annotated[str, typer.Option(help="Divergences to compare.")] = "kl,chi2,soft-chi2",
    steps: Annotated[int | None, typer.Option(min=1, help="Gradient steps of V for each; default 1000.")] = None,
    policy_steps: Annotated[int | None, typer.Option(min=1, help="Steps of the policies; default 600.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<recipe>.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything random.")] = 0,
    source: Source = "",
    preset: Preset = "",
    set: Set = None,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Choose the divergence offline: train the candidates briefly, watch the policy loss and the weights' health."""
    from smodice_cli import artifacts, config, recipes
    from smodice_cli.stages import select_f as stage
    from smodice_cli.stages.runner import Options

    names = stage.parse_candidates(candidates)
    chosen = config.parse_assignments(set or [])
    shared = config.merge(config.preset(preset), recipes.read_recipe(recipe, source))
    settings = recipes.for_run("smodice", ["smodice"], shared, chosen)
    folder = out or recipes.run_folder(recipe, source)
    options = Options(force=force, dry_run=dry_run)
    brief = {"candidates": names, "steps": steps, "policy_steps": policy_steps}
    result = stage.for_recipe(folder, settings, seed, options, **brief)
    if result.status == "would run":
        console.result(result.summary(), [f"[bold]would run[/]  {escape(str(result.path))}  ({escape(result.reason)})"])
        return
    payload = artifacts.read_payload(result.path)
    columns, rows = stage.table(payload)
    console.table("", columns, rows)
    best = f"recommended: [bold]{payload['recommended']}[/] ({escape(payload['why'])})"
    picture = f"evidence: {escape(str(result.path))}, {escape(str(result.path.with_suffix('.png')))}"
    console.result(result.summary() | payload, [best, picture])


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.1f}"
