"""What the commands share: the typer app, flags, and the only place where an error becomes an exit code."""

import functools
import inspect as python_inspect
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from smodice_cli.console import console, escape
from smodice_cli.errors import InputError, Interrupted, SmodiceError, UsageError
from smodice_cli.methods import METHODS

app = typer.Typer(
    name="smodice",
    help="Offline imitation from observations, mismatched experts and success examples, stage by stage.",
    epilog="Start here:  smodice run pipelines/examples/pointmass-4direction.toml",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PIPELINE, LOOK, TOOLS = "Pipeline", "Look", "Tools"
MAX_SEED = 2**32 - 1  # what every generator takes
MAX_THREADS = 256  # torch takes any number, and crashes


def examples(*lines: str) -> str:
    """A help epilog of runnable commands."""
    return "[bold]Examples[/]\n\n" + "\n\n".join(f"  {line}" for line in lines)


# --- flags that commands share --------------------------------------------------------------------------------------

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.", rich_help_panel="Output")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel="Output")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel="Output")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change any setting; `smodice settings` lists them. Repeatable."),
]
Algo = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="smodice | bc | bc-expert-only | td3bc | oril | sail | rce | demodice | demodice-sd; default smodice.",
    ),
]
Preset = Annotated[str, typer.Option(help="Start from the settings of: paper | official.")]
Source = Annotated[
    str, typer.Option(metavar="NAME", help="Take the recipe's data of this name, \\[dataset.NAME], e.g. d4rl.")
]
Force = Annotated[bool, typer.Option("--force", help="Run even if the artifact is there.", rich_help_panel="Running")]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Training: go on from its checkpoint.", rich_help_panel="Running")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would run and why; write nothing.", rich_help_panel="Running")
]
Device = Annotated[str, typer.Option(help="Training: torch device, e.g. cpu or cuda.", rich_help_panel="Running")]
CheckpointEvery = Annotated[
    float,
    typer.Option(min=0.0, metavar="SECONDS", help="Training: time between checkpoints.", rich_help_panel="Running"),
]


@dataclass(frozen=True)
class Common:
    """The flags every stage shares, as one object."""

    out: Annotated[Path | None, typer.Option(help="Where to write the artifact; default: beside its input.")] = None
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything random in this stage.")] = 0
    steps: Annotated[int | None, typer.Option(help="Gradient steps; eval and build-dataset have none.")] = None
    config: Annotated[Path | None, typer.Option(help="Recipe (TOML); this stage reads its own section.")] = None
    preset: Preset = ""
    set: Set = None
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_THREADS,
            help="Training: torch threads (default 1). Simulation: processes (default: all).",
            rich_help_panel="Running",
        ),
    ] = None
    device: Device = "cpu"
    resume: Resume = True
    checkpoint_every: CheckpointEvery = 20.0
    force: Force = False
    dry_run: DryRun = False
    json: Json = False
    quiet: Quiet = False
    debug: Debug = False

    def options(self, default_threads: int = 1) -> Any:
        from smodice_cli.stages.runner import Options

        return Options(
            force=self.force,
            resume=self.resume,
            dry_run=self.dry_run,
            threads=self.threads or default_threads,
            device=self.device,
            checkpoint_every=self.checkpoint_every,
        )

    def build(self, section: str, source: str = "", algo: str | None = None, **flags: Any) -> Any:
        """The stage's config: defaults < preset < recipe < what defines the algorithm < --set < flags."""
        from smodice_cli import config, recipes

        if source and not self.config:
            raise UsageError("--source chooses among the data of a recipe: name it with --config")
        recipe = recipes.read_recipe(self.config, source, algo or "") if self.config else {}
        given = {name: value for name, value in flags.items() if value is not None and value != ()}
        if self.steps is not None:
            given["steps"] = self.steps
        chosen = config.merge(config.parse_assignments(self.set or [], section), {section: given})
        named = recipe.get(recipes.RUN, {}).get("algo", [])
        if algo and chosen[section].get("algo", algo) != algo:
            raise UsageError(f"--algo {algo} and --set algo={chosen[section]['algo']} are two answers to one question")
        asked = algo or chosen[section].get("algo") or (named[0] if len(named) == 1 else "smodice")
        algo, *others = recipes.check_algorithms(asked, "--algo")
        if others:
            raise UsageError("--algo: a stage trains one algorithm", "smodice run compares several")
        if section in ("disc", "value") and section not in METHODS[algo].stages:
            raise UsageError(f"{algo} has no train-{section}: it starts from --{METHODS[algo].needs}")
        recipes.refuse_idle(chosen, [algo])
        if section == "policy":
            config.refuse_unread(chosen[section], [algo])
        merged = recipes.for_algorithm(algo, config.merge(config.preset(self.preset), recipe), chosen)
        return config.build(section, merged.get(section, {}))


def home(start: Path, algo: str) -> Path:
    """Where an algorithm's artifacts lie unless another place is named: as in `run`, beside smodice's in a folder."""
    folder = start.parent
    return folder if algo in ("smodice", folder.name) else folder / algo


def command(panel: str, name: str, *lines: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command: expands a `common: Common` parameter into flags and turns errors into exit codes."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = list(python_inspect.signature(function).parameters.values())
        own = [parameter for parameter in parameters if parameter.name != "common"]
        shared = list(python_inspect.signature(Common).parameters.values()) if len(own) < len(parameters) else []

        @functools.wraps(function)
        def wrapper(**arguments: Any) -> None:
            guard(function, arguments, {parameter.name for parameter in shared})

        keyword = python_inspect.Parameter.KEYWORD_ONLY
        merged = [parameter.replace(kind=keyword) for parameter in (*own, *shared)]
        wrapper.__signature__ = python_inspect.Signature(merged)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in merged}
        app.command(name, rich_help_panel=panel, epilog=examples(*lines))(wrapper)
        return function

    return decorate


def guard(function: Callable[..., None], arguments: dict[str, Any], shared: set[str]) -> None:
    console.mode = "json" if arguments.get("json") else "human"
    console.quiet = bool(arguments.get("quiet"))
    own = {name: value for name, value in arguments.items() if name not in shared}
    if shared:
        own["common"] = Common(**{name: arguments[name] for name in shared})
    try:
        function(**own)
    except BrokenPipeError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (whoever read our output has gone; so has the exit's flush)
        raise typer.Exit(0) from error
    except (Exception, KeyboardInterrupt) as error:
        if arguments.get("debug"):
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
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", f"finished stages are kept; go on with: {this_command()}", Interrupted.exit_code
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's is a RuntimeError
        return "there is not enough memory for this", "fewer units, a smaller batch or less data", InputError.exit_code
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", "", InputError.exit_code
    return f"internal error: {type(error).__name__}: {error}", "run again with --debug for the traceback", 1


def this_command() -> str:
    """The command line that goes on where this one stopped; `run --force` would begin its finished stages again."""
    again = ("--no-resume", "--force") if sys.argv[1:2] == ["run"] else ("--no-resume",)
    return shlex.join(["smodice", *(argument for argument in sys.argv[1:] if argument not in again)])


def report(result: Any, next_step: str = "") -> None:
    """What a stage did, for people and for programs."""
    lines = [f"[bold]{result.status}[/]  {escape(str(result.path))}"]
    if result.status == "would run":
        lines[0] += f"  ({escape(result.reason)})"
    elif result.header and result.status == "done":
        lines[0] += f"  {result.header.seconds:.1f} s"
    console.result(result.summary(), lines)
    if next_step and console.mode == "human" and result.status != "would run":
        console.note(f"next: {next_step}")
