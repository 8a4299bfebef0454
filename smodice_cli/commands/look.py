"""Commands that look at what runs left: status, inspect, report; each imports its views when it runs."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from smodice_cli.cli import LOOK, command
from smodice_cli.commands.stages import setting_options
from smodice_cli.console import console, escape
from smodice_cli.errors import SmodiceError, UsageError
from smodice_cli.stages.build_dataset import Config as Dataset

Records = list[dict[str, Any]]
READING = ("keys", "obs_keys", "state_columns", "action_columns", "episode_column")  # what build-dataset is told, too
Overwrite = Annotated[
    bool, typer.Option("--force", help="Overwrite a file that smodice did not write.", rich_help_panel="Output")
]


def _file(does: str) -> Any:
    return typer.Option(metavar="FILE", help=does, rich_help_panel="Output")


Picture = Annotated[Path | None, _file("Draw the views as one picture: a name in .png, or .svg or .pdf for a paper.")]


@command(
    LOOK,
    "status",
    "smodice status runs/pm",
    "smodice status runs --clean",
    quiet=False,
    after_demo=True,
)
def status(
    folder: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Remove, instead, what killed processes left; without it that is only listed."),
    ] = False,
) -> None:
    """List what a run still has to do and how far that is, and its artifacts, and whether each is whole and current.

    When the last job of a cluster has ended, it also writes the run's summary.json.
    """
    from smodice_cli.views import runs

    if clean:
        removed = {str(one): runs.clean(one) for one in folder}
        lines = [f"removed  {escape(path)}" for paths in removed.values() for path in paths]
        told: Records = [{"folder": one, "removed": paths} for one, paths in removed.items()]
        console.result(told[0] if len(told) == 1 else {"runs": told}, lines or ["nothing was left behind"])
        return
    found: Records = []
    for one in folder:
        rows = runs.status(one)
        given = show_orders(one)
        columns = ["path", "kind", "seed", "seconds", "state"]
        if rows:
            console.table("", columns, [[str(row.get(column, "")) for column in columns] for row in rows])
        left = runs.left_behind(one)
        if left:
            console.say([f"left behind by killed processes (--clean removes it):  {escape(', '.join(left))}"])
        more = {"orders": given} if given else {}
        found.append({"folder": str(one), **more, "artifacts": rows, "left_behind": left})
    console.result(found[0] if len(found) == 1 else {"runs": found})


def show_orders(folder: Path) -> Records:
    """Where the orders below a folder are: a line of numbers, and a table of those that neither wait nor are done."""
    from smodice_cli import orders, pipeline, schedule
    from smodice_cli.summary import summarise

    rows: Records = []
    for run in orders.runs_below(folder):
        found = schedule.states(run)
        rows += [{"run": str(run), **schedule.describe(*one)} for one in found]
        if not found or not schedule.is_over(found):
            continue
        with suppress(SmodiceError):  # without data, or orders that make sense, there is nothing to sum up
            if belongs := pipeline.run_of([order for order, _, _ in found]):
                summarise(pipeline.settled(belongs))
                console.note(f"summed up: {run}/summary.json")
    columns = ["run", "order", "state", "where", "stage", "done", "figures"]
    open_rows = [[str(row[column]) for column in columns] for row in rows if row["state"] not in ("done", "queued")]
    if open_rows:
        console.table("", columns, open_rows)
    for row in rows:
        if row["why"]:
            console.warn(f"{row['order']}: {row['why']}")
    if rows:
        console.say([f"orders: {schedule.counts([row['state'] for row in rows])}"])
    return rows


@command(
    LOOK,
    "cancel",
    "smodice cancel runs/pm",
    "smodice cancel runs/hopper runs/walker2d --json  # while those are queued or running",
    after_demo=True,
)
def cancel(folder: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")]) -> None:
    """End what a run has queued and running, wherever that is; the same `smodice run` goes on from the checkpoints."""
    from smodice_cli import orders, schedule
    from smodice_cli.views import runs

    ended: dict[str, int] = {}
    for one in folder:
        runs.check_folder(one)
        ended |= {str(run): schedule.cancel(run) for run in orders.runs_below(one)}
    lines = [f"[bold]cancelled[/]  {escape(run)}  {number} orders" for run, number in ended.items()]
    console.result({"cancelled": ended}, lines or ["nothing was ordered there"])


@command(
    LOOK,
    "inspect",
    "smodice inspect runs/pm/seed0/weights.h5 --png weights.png",
    "smodice inspect runs/pm/seed0/weights.h5 --trajectory 3 --csv trajectory.csv",
    "smodice inspect runs/pm/dataset.h5",
    "smodice inspect runs/pm/seed0/weights.h5 --compare runs/pm/chi2.weights.h5  # of train-value's second example",
    "smodice inspect demo.hdf5  # a recording of yours",
    options=[option for option in setting_options([Dataset], "Of a recording") if option.name in READING],
    after_demo=True,
)
def inspect(
    file: Annotated[Path, typer.Argument(help="Any artifact, or a recording: a file, a folder or a pattern.")],
    trajectory: Annotated[
        int | None, typer.Option(metavar="K", help="Weights: also show trajectory K along time.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights: compare with other weights of the same dataset.")
    ] = None,
    dims: Annotated[
        str,
        typer.Option(
            metavar="I,J", help="State dimensions to draw, numbers or names; default: the task's own, else PCA."
        ),
    ] = "",
    top: Annotated[int, typer.Option(min=1, help="Weights: how many heaviest and lightest trajectories.")] = 5,
    frames: Annotated[
        bool, typer.Option("--frames", help="Weights: also draw the states where the trajectory's weight peaks.")
    ] = False,
    panels: Annotated[
        str, typer.Option(metavar="A,B", help="Draw only these views, e.g. weight-map,along; default: all.")
    ] = "",
    csv: Annotated[Path | None, _file("Write the trajectories (or episodes, curves) as CSV.")] = None,
    png: Picture = None,
    html: Annotated[Path | None, _file("Write one self-contained page.")] = None,
    force: Overwrite = False,
    **given: Any,
) -> None:
    """See what an artifact holds: for weights their health and what they chose, for the others what was learned.

    Of a recording: what lies in it, and the command that would load it.
    """
    from smodice_cli import artifacts, views
    from smodice_cli.views import recording
    from smodice_cli.views.opened import Request, parse_plane
    from smodice_cli.views.render import html as pages
    from smodice_cli.views.render import output, terminal
    from smodice_cli.views.render import png as pictures

    request = Request(trajectory, compare, parse_plane(dims) if dims else None, top, frames)
    if (frames or panels) and not (png or html):
        raise UsageError("--frames and --panels are for pictures", "add --png FILE or --html FILE")
    for path, endings in ((csv, (".csv",)), (png, pictures.ENDINGS), (html, (".html",))):
        if path:
            output.check(path, endings, force)
    reading = {name: text for name, text in given.items() if text}
    if recording.is_one(file):
        if csv or png or html or compare or trajectory is not None:
            raise UsageError(f"{file} is a recording: there are pictures and tables of the dataset made from it")
        facts = recording.describe(file, {f"--{name.replace('_', '-')}": text for name, text in reading.items()})
        terminal.show(recording.show(facts))
        console.result(facts)
        return
    if reading:
        raise UsageError(f"{file} is no recording: --{next(iter(reading)).replace('_', '-')} is for those")
    opened = views.open_artifact(file)
    facts, view = views.describe(opened, request), views.view_of(opened.kind)
    with artifacts.as_expected(opened.artifact):
        blocks = views.show(facts)
    terminal.show(blocks)
    written = []
    if csv:
        origin = f"{facts['path']} ({facts['digest'][:12]})"
        written += output.write_tables(csv, view.tables(opened, facts), origin, force)
    if png or html:
        drawn = view.panels(opened, facts, request)
        if not drawn:
            raise UsageError(f"there is nothing to draw of a {opened.kind} artifact")
        drawn = pictures.pick(drawn, panels)
        name = "/".join(Path(facts["path"]).parts[-3:])
        if png:
            written.append(pictures.save(png, drawn, name, view.heading(facts)))
        if html:
            written.append(pages.save_inspection(html, name, drawn, facts, blocks))
    for place in written:
        console.note(f"written: {place}")
    console.result(facts)


@command(
    LOOK,
    "report",
    "smodice report runs/pm --html report.html",
    "smodice report runs/pm --png returns.pdf --panels returns --csv report.csv",
    "smodice report runs/hopper runs/walker2d runs/halfcheetah --html locomotion.html  # once those have run",
    after_demo=True,
)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    html: Annotated[
        Path | None, _file("Write one self-contained page; report.html where nothing else is asked for.")
    ] = None,
    png: Picture = None,
    panels: Annotated[
        str, typer.Option(metavar="A,B", help="Draw only these, of returns,iqm,profiles; default: all.")
    ] = "",
    csv: Annotated[
        Path | None, _file("Write the tables: x.csv, x.methods.csv, x.improvement.csv, x.profiles.csv.")
    ] = None,
    force: Overwrite = False,
) -> None:
    """Compare runs, as a page, a picture or tables: scores beside the paper's and over tasks, curves, weights."""
    from smodice_cli.views import aggregate
    from smodice_cli.views import report as reports
    from smodice_cli.views.render import output, terminal
    from smodice_cli.views.render import png as pictures

    if panels and not png:
        raise UsageError("--panels is for pictures", "add --png FILE")
    html = html if html or png or csv else Path("report.html")
    for path, endings in ((html, (".html",)), (png, pictures.ENDINGS), (csv, (".csv",))):
        if path:
            output.check(path, endings, force)
    found, written = reports.report(runs, html, png, panels, csv, force)
    rows = [{**run, "seeds": len(run["seeds"]), "score": reports.score_in_words(run)} for run in found["runs"]]
    console.table(*terminal.records("", terminal.columns("runs"), rows))
    for run in found["runs"]:
        console.say([f"[yellow]{escape(run['run'])}[/] seed {n}: {how}" for n, how in run["unfinished"].items()])
    if found["over_tasks"] and len(found["over_tasks"]["methods"]) > 1:
        lines = aggregate.rows(found["over_tasks"])
        console.say([""])
        console.table(*terminal.records("over all tasks and seeds", terminal.columns("methods"), lines))
    console.result(found, [f"[bold]written[/]  {escape(str(p))}  {p.stat().st_size / 1e6:.2f} MB" for p in written])
