"""`export`: weights and policies for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from smodice_cli import completion
from smodice_cli.cli import TOOLS, command
from smodice_cli.console import console, escape
from smodice_cli.errors import InputError, UsageError
from smodice_cli.exports import EXPORTS

TOP = 10  # trajectories


@command(
    TOOLS,
    "export",
    "smodice export runs/pm/seed0/weights.h5 --to csv",
    "smodice export runs/pm/seed0/weights.h5 --to episodes --top 20 --out top.json",
    "smodice export runs/pm/seed0/policy.safetensors --to onnx  # needs pip install 'smodice\\[onnx]'",
    "smodice export runs/arm/weights.h5 --to filter-key --top 20 --out top.hdf5  # of a robomimic recording",
    after_demo=True,
)
def export(
    file: Annotated[
        Path,
        typer.Argument(
            help="Weights, or for onnx a policy.", autocompletion=completion.files_like(".h5", ".safetensors")
        ),
    ],
    to: Annotated[
        str,
        typer.Option(metavar="FORM", help=f"{' | '.join(EXPORTS)}.", autocompletion=completion.one_of(lambda: EXPORTS)),
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; default: beside the file.")] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help=f"filter-key, episodes: how many of the heaviest trajectories ({TOP}).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Hand weights to somebody else's training, by the recording's own numbers, or a policy to a robot."""
    from smodice_cli import artifacts, files
    from smodice_cli.errors import ForeignFileError

    EXPORTS.check(to, "--to", UsageError)
    form = EXPORTS[to]
    if top is not None and not form.chooses:
        raise UsageError(f"--top chooses trajectories, which --to {to} does not")
    kind = artifacts.read_header(file).kind
    if kind != form.kind:
        forms = ", ".join(name for name, other in EXPORTS.items() if other.kind == kind)
        hint = f"its own are: --to {forms}" if forms else ""
        raise InputError(f"--to {to} is a form of {form.kind}, and {file} holds {kind}", hint)
    out = out or file.with_suffix(form.ending)
    if out.suffix != form.ending:
        raise UsageError(f"--out {out}: the name of a {to} file ends in {form.ending}")
    if out.exists() and not force:
        raise ForeignFileError(f"{out} exists", "choose another --out, or overwrite it with --force")
    _check_extra(to, *form.extra)
    with files.atomic(out) as temporary:
        told = form.write(file, temporary, top or TOP)
    console.result({"path": str(out), "form": to, **told}, [f"[bold]written[/]  {escape(str(out))}"])


def _check_extra(form: str, package: str, extra: str) -> None:
    try:
        if package:
            __import__(package)
    except ImportError as error:
        raise InputError(f"--to {form} needs the {package} package", f"pip install 'smodice[{extra}]'") from error
