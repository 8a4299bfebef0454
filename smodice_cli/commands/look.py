"""Commands that look at what runs left: status, inspect, report; each imports its views when it runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from smodice_cli.cli import LOOK, command
from smodice_cli.console import console, escape
from smodice_cli.errors import UsageError

Overwrite = Annotated[
    bool, typer.Option("--force", help="Overwrite a file that smodice did not write.", rich_help_panel="Output")
]


def _file(does: str) -> Any:
    return typer.Option(metavar="FILE", help=does, rich_help_panel="Output")


@command(LOOK, "status", "smodice status runs/pointmass-4direction", "smodice status runs --clean", quiet=False)
def status(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove, instead, what killed processes left: temporary files and locks.")
    ] = False,
) -> None:
    """List the artifacts of a run folder and whether each is whole and up to date."""
    from smodice_cli.views import runs

    if clean:
        removed = runs.clean(folder)
        lines = [f"removed  {escape(path)}" for path in removed] or ["nothing was left behind"]
        console.result({"folder": str(folder), "removed": removed}, lines)
        return
    rows = runs.status(folder)
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
    "smodice inspect demo.hdf5",
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
    png: Annotated[Path | None, _file("Draw the views as one picture.")] = None,
    html: Annotated[Path | None, _file("Write one self-contained page.")] = None,
    force: Overwrite = False,
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
    for path, ending in ((csv, ".csv"), (png, ".png"), (html, ".html")):
        if path:
            output.check(path, ending, force)
    if recording.is_one(file):
        if csv or png or html or compare or trajectory is not None:
            raise UsageError(f"{file} is a recording: there are pictures and tables of the dataset made from it")
        facts = recording.describe(file)
        terminal.show(recording.show(facts))
        console.result(facts)
        return
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
        drawn = pictures.pick(drawn, panels) if panels else drawn
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
    "smodice report runs/pointmass-4direction --html report.html",
    "smodice report runs/hopper runs/walker2d runs/halfcheetah --html locomotion.html --json",
)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    force: Overwrite = False,
) -> None:
    """Write finished runs as one self-contained page: scores beside the paper's, curves, weights, commands."""
    from smodice_cli.views import report as reports
    from smodice_cli.views.render import output, terminal

    output.check(html, ".html", force)
    found = reports.report(runs, html)
    rows = [
        {**run, "seeds": len(run["seeds"]), "score": "" if run["score"] is None else f"{run['score']:.1f}"}
        for run in found["runs"]
    ]
    console.table(*terminal.records("", terminal.columns("runs"), rows))
    console.result(found, [f"[bold]written[/]  {escape(str(html))}  {found['bytes'] / 1e6:.2f} MB"])
