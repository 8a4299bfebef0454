"""What the commands share: the typer app, flags, and the only place where an error becomes an exit code."""

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from smodice_cli import __version__, completion, interrupts, tracking
from smodice_cli.algos import ALGORITHMS
from smodice_cli.console import console, escape
from smodice_cli.engine import MAX_SEED, Options, Result, check_seed
from smodice_cli.errors import Interrupted, SmodiceError, from_outside
from smodice_cli.recipes import PRESETS
from smodice_cli.tracking import TRACKERS

START = "smodice run pointmass-4direction"  # minutes
DEMO = f"{START} --out runs/pm"  # which makes what the examples of other commands take

app = typer.Typer(
    name="smodice",
    help="Offline imitation from observations, mismatched experts and success examples, stage by stage.",
    epilog=f"Start here:  {START}",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PIPELINE, LOOK, TOOLS = "Pipeline", "Look", "Tools"


# --- flags that commands share --------------------------------------------------------------------------------------

_running = functools.partial(typer.Option, rich_help_panel="Running")


def _seed(given: str | int) -> int:
    try:
        return check_seed(int(given))
    except (ValueError, SmodiceError) as error:
        raise typer.BadParameter(f"{given} is no whole number from 0 to {MAX_SEED}.") from error


seed_option = functools.partial(typer.Option, parser=_seed, metavar="N")
Seed = Annotated[int, seed_option(help="Seed of everything random.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change any setting; `smodice settings` lists them. Repeatable.",
        autocompletion=completion.assignments,
    ),
]
Algo = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help=f"{' | '.join(ALGORITHMS)}; default smodice.", autocompletion=completion.algorithm
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        metavar="NAME", help=f"Start from the settings of: {' | '.join(PRESETS)}.", autocompletion=completion.presets
    ),
]
Steps = Annotated[int | None, typer.Option(help="Gradient steps.")]
Source = Annotated[
    str, typer.Option(metavar="NAME", help="Take the recipe's data of this name, \\[dataset.NAME], e.g. d4rl.")
]
Force = Annotated[bool, _running("--force", help="Run even if the artifact is there.")]
DryRun = Annotated[bool, _running("--dry-run", help="Say what would run and why; write nothing.")]


def flag(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """An option of a command that is not written among its parameters."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shown(name: str, words: str, *short: str) -> inspect.Parameter:
    option = typer.Option(f"--{name}", *short, help=words, rich_help_panel="Output")
    return flag(name, Annotated[bool, option], False)


SHOWN = (  # the flags of every command, which `guard` reads
    _shown("json", "Print the result as JSON on stdout."),
    _shown("quiet", "Print errors only.", "-q"),
    _shown("debug", "Show the traceback of an error."),
)


@dataclass(frozen=True)
class Doing:
    """The flags of everything that makes artifacts."""

    force: Force = False
    dry_run: DryRun = False

    def options(self, threads: int = 1) -> Options:
        return Options(threads=threads, **asdict(self))


@dataclass(frozen=True)
class Training(Doing):
    """The flags of every training: a stage's, or a whole run's."""

    device: Annotated[
        str,
        _running(
            help="Where to train: cpu, cuda, cuda:1, or auto (cuda where there is one).",
            autocompletion=completion.one_of(lambda: ("auto", "cpu", "cuda")),
        ),
    ] = "cpu"
    resume: Annotated[bool, _running("--resume/--no-resume", help="Go on from a checkpoint.")] = True
    checkpoint_every: Annotated[float, _running(min=0.0, metavar="SECONDS", help="Time between checkpoints.")] = 20.0
    track: Annotated[
        str,
        _running(
            metavar="NAMES",
            help=f"Send the figures also to: {' | '.join(TRACKERS)}.",
            autocompletion=completion.one_of(lambda: TRACKERS),
        ),
    ] = ""

    def options(self, threads: int = 1) -> Options:
        tracking.named(self.track)  # refused before any work
        return super().options(threads)


@dataclass(frozen=True)
class Common:
    """The flags every stage shares, as one object."""

    out: Annotated[Path | None, typer.Option(help="Where to write the artifact; default: beside its input.")] = None
    seed: Annotated[int, seed_option(help="Seed of everything random in this stage.")] = 0
    config: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="A recipe, by name or path; this stage reads its own section.",
            autocompletion=completion.recipe,
        ),
    ] = None
    preset: Preset = ""
    set: Set = None


class Command(typer.core.TyperCommand):
    """A command that knows a setting, `--steps`, by its name, and says how it is written: `--set policy.steps=`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            wanted = f".{getattr(error, 'option_name', '').lstrip('-').replace('-', '_')}="
            settings = [f"--set {key}" for key in completion.assignments("") if key.endswith(wanted)]
            if settings and any(parameter.name == "set" for parameter in self.params):
                error.possibilities = settings  # type: ignore[attr-defined]
            raise


def command(
    panel: str,
    name: str,
    *lines: str,
    options: Iterable[inspect.Parameter] = (),
    quiet: bool = True,
    after_demo: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command: expands its parameters of the classes above into flags and turns errors into exit codes.

    `lines` are examples: they run in an empty folder (`after_demo`: in one where DEMO has run), or say after a # what
    they need. `options` are further ones, whose values reach the function as keyword arguments; `quiet` is left out of
    a command that would then say nothing.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(function).parameters.values())
        groups: dict[str, Any] = {p.name: p.annotation for p in parameters if is_dataclass(p.annotation)}
        named = [p for p in parameters if p.name not in groups and p.kind is not inspect.Parameter.VAR_KEYWORD]
        grouped = [p for group in groups.values() for p in inspect.signature(group).parameters.values()]
        shown = [p for p in SHOWN if quiet or p.name != "quiet"]

        @functools.wraps(function)
        def wrapper(**arguments: Any) -> None:
            flags = {parameter.name: arguments.pop(parameter.name) for parameter in shown}
            for name, group in groups.items():
                arguments[name] = group(**{field.name: arguments.pop(field.name) for field in fields(group)})
            guard(lambda: function(**arguments), **flags)

        keyword = inspect.Parameter.KEYWORD_ONLY
        merged = [parameter.replace(kind=keyword) for parameter in (*options, *named, *grouped, *shown)]
        wrapper.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in merged}
        heading = f"[bold]Examples[/]{f', after: {DEMO}' if after_demo else ''}"
        examples = "\n\n".join([heading, *(f"  {_dimmed(line)}" for line in lines)])
        app.command(name, cls=Command, rich_help_panel=panel, epilog=examples)(wrapper)
        return function

    return decorate


def _dimmed(example: str) -> str:
    """An example with what it needs, after a #, in a lighter colour."""
    line, mark, needs = example.partition("  # ")
    return f"{line}  [dim]# {needs}[/]" if mark else line


def guard(work: Callable[[], None], *, json: bool = False, quiet: bool = False, debug: bool = False) -> None:
    """Do the work of a command; an error of any kind becomes a sentence and an exit code."""
    console.mode, console.quiet, console.debug = "json" if json else "human", quiet, debug
    with interrupts.raised():
        try:
            work()
            sys.stdout.flush()  # while a failure can still be told
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                console.traceback()
            message, hint, code = explain(error)
            console.error(message, hint)
            raise typer.Exit(code) from error


def explain(error: BaseException) -> tuple[str, str, int]:
    """An error as a sentence, a hint and an exit code."""
    if isinstance(error, Interrupted):
        return error.message, f"go on with: {this_command()}", error.exit_code
    if isinstance(error, SmodiceError):
        return error.message, error.hint, error.exit_code
    if isinstance(error, KeyboardInterrupt) or interrupts.requested:  # a library may have made another error of it
        return "interrupted", f"finished stages are kept; go on with: {this_command()}", Interrupted.exit_code
    if found := from_outside(error):
        return found.message, found.hint, found.exit_code
    return f"internal error: {type(error).__name__}: {error}", "run again with --debug for the traceback", 1


def this_command() -> str:
    """The command line that goes on where this one stopped; `run --force` would begin its finished stages again."""
    again = ("--no-resume", "--force") if sys.argv[1:2] == ["run"] else ("--no-resume",)
    return shlex.join(["smodice", *(argument for argument in sys.argv[1:] if argument not in again)])


def report(result: Result, members: dict[str, Any], more: list[str], next_step: str = "") -> None:
    """What a stage did, for people and for programs, with further members of the JSON and further lines."""
    lines = [f"[bold]{result.status}[/]  {escape(str(result.path))}"]
    if result.status == "would run":
        lines[0] += f"  ({escape(result.reason)})"
    elif result.header and result.status == "done":
        lines[0] += f"  {result.header.seconds:.1f} s"
    console.result(result.summary() | members, [*lines, *more])
    if next_step and console.mode == "human" and result.status != "would run":
        console.note(f"next: {next_step}")


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        console.mode, console.quiet = "human", False
        console.say([f"smodice {__version__}"])
        raise typer.Exit()
