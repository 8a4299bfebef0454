"""What people see of artifacts and runs: `View` shows any kind of artifact, VIEWS names those that show more of theirs.

An artifact is opened (`open_artifact`), described as plain data (`describe`: what `inspect --json` prints), and from
that shown: as blocks of text (`show`), pictures (`View.panels`) and tables (`View.tables`); `render` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from smodice_cli import artifacts
from smodice_cli.console import escape
from smodice_cli.data import Dataset
from smodice_cli.errors import SmodiceError, UsageError
from smodice_cli.registry import Registry
from smodice_cli.views.opened import NEED_DATASET, Facts, Opened, Records, Request, curves, provenance, read_log
from smodice_cli.views.plots import curves_panel
from smodice_cli.views.render import terminal
from smodice_cli.views.render.terminal import Block, Table, figures, records
from smodice_cli.views.render.theme import Panel

# what a view is written with
__all__ = ["VIEWS", "Block", "Facts", "Opened", "Panel", "Records", "Request", "Table", "View", "figures", "records"]


class View:
    """How an artifact of any kind is shown; a kind with more to show has a subclass of its own, named in VIEWS."""

    lost = "all that looks at the data"  # where the dataset is not there
    logged: Mapping[str, str] = {}  # figures of the training log that are called otherwise here

    def check(self, opened: Opened, request: Request) -> None:
        """Refuse a request that this kind cannot meet."""
        if request.compare or request.trajectory is not None or request.frames:
            asked = "--compare, --trajectory and --frames look at weights"
            raise UsageError(f"{opened.artifact.path} is an artifact of the kind {opened.kind}: {asked}")

    def log_path(self, path: Path) -> Path:
        """Where the training log of the artifact at `path` lies."""
        return path.with_suffix(".log.jsonl")

    def figures(self, opened: Opened, request: Request) -> Facts:
        """What this kind adds to the facts."""
        return {}

    def blocks(self, facts: Facts) -> list[Block]:
        """... and to what a terminal shows."""
        rows = [[name, terminal.short(value)] for name, value in facts["metrics"].items()]
        return [Table("figures", ["", ""], rows)] if rows else []

    def heading(self, facts: Facts) -> list[str]:
        """The lines below the name in a picture, the first one quieter than the others."""
        return [f"{_maker(facts)}, seed {facts['seed']}, digest {facts['digest'][:12]}"]

    def panels(self, opened: Opened, facts: Facts, request: Request) -> list[Panel]:
        """Every picture that the artifact allows."""
        return [curves_panel(facts["curves"], "Over training")] if facts.get("curves") else []

    def tables(self, opened: Opened, facts: Facts) -> dict[str, Records]:
        """The records for a spreadsheet, by how the names of their files end."""
        if opened.log:
            return {".csv": opened.log}
        raise UsageError(f"{facts['path']}: there is no table to write: its dataset and its training log are not there")


VIEWS: Registry[View] = Registry(
    "kind of artifact",
    {
        "dataset": "smodice_cli.views.dataset:DatasetView",
        "disc": "smodice_cli.views.disc:DiscView",
        "value": "smodice_cli.views.value:ValueView",
        "weights": "smodice_cli.views.weights:WeightsView",
        "policy": "smodice_cli.views.policy:PolicyView",
        "eval": "smodice_cli.views.scores:ScoresView",
    },
    singletons=True,
)


def view_of(kind: str) -> View:
    """How artifacts of this kind are shown."""
    return VIEWS[kind] if kind in VIEWS else View()


def open_artifact(path: Path) -> Opened:
    """Open any artifact and, where it can be found unchanged, its dataset."""
    artifact = artifacts.read_any(path)
    log = read_log(view_of(artifact.header.kind).log_path(path))
    if artifact.header.kind == "dataset":
        return Opened(artifact, Dataset.of(artifact), log=log)
    if "dataset" not in artifact.header.inputs:
        return Opened(artifact, None, log=log)
    try:
        return Opened(artifact, Dataset.of(artifacts.follow(artifact, "dataset", "dataset")), log=log)
    except SmodiceError as error:
        return Opened(artifact, None, error.message, log)


def describe(opened: Opened, request: Request | None = None) -> Facts:
    """Everything about one artifact as plain data."""
    view, request = view_of(opened.kind), request or Request()
    view.check(opened, request)
    opened.check(request)
    header = opened.artifact.header
    first = ("kind", "stage", "seed", "digest", "key", "seconds", "config", "versions", "notes")
    facts: Facts = {"path": str(opened.artifact.path)} | {name: getattr(header, name) for name in first}
    with artifacts.as_expected(opened.artifact):
        return _facts(opened, view, request, facts)


def _facts(opened: Opened, view: View, request: Request, facts: Facts) -> Facts:
    header = opened.artifact.header
    facts["arrays"] = {name: [list(array.shape), array.dtype.name] for name, array in opened.artifact.arrays.items()}
    facts |= {"provenance": provenance(opened.artifact), "metrics": header.metrics}
    if opened.log:
        facts["curves"] = {view.logged.get(name, name): line for name, line in curves(opened.log).items()}
    if opened.missing:
        facts["without_dataset"] = {"why": opened.missing, "views": list(NEED_DATASET)}
    return facts | view.figures(opened, request)


def show(facts: Facts) -> list[Block]:
    """Everything about an artifact for a terminal, in reading order: what matters most last, where the eye is."""
    view = view_of(facts["kind"])
    made = f"seed {facts['seed']}, made in {facts['seconds']:.1f} s, digest {facts['digest'][:12]}"
    shown: list[Block] = [[f"[bold]{escape(facts['path'])}[/]", f"{_maker(facts)}, {made}"]]
    if facts["config"]:
        shown.append(terminal.settings(facts["config"]))
    if facts["provenance"]:
        shown.append(records("made from", terminal.columns("made-from"), facts["provenance"]))
    if facts["notes"]:
        shown.append([f"[yellow]note[/]  {escape(note)}" for note in facts["notes"]])
    if "curves" in facts:
        shown.append(terminal.curves(facts["curves"]))
    shown += view.blocks(facts)
    if "without_dataset" in facts:
        why = escape(facts["without_dataset"]["why"])
        shown.append([f"[yellow]without its dataset[/] ({why}) there is no: {view.lost}"])
    return shown


def _maker(facts: Facts) -> str:
    return f"{facts['kind']} artifact of smodice {facts['stage']}"
