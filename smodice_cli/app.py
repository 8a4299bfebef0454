"""The command line: the pipeline; `commands_look` adds what looks at results, `commands_tools` the tools.

Each command imports what it needs when it runs, so that `smodice --help` answers at once.
"""

import shlex
import signal
import sys
import typing
from pathlib import Path
from typing import Annotated, Any

import typer

from smodice_cli import __version__
from smodice_cli.cli import (
    MAX_SEED,
    PIPELINE,
    Algo,
    CheckpointEvery,
    Common,
    Debug,
    Device,
    DryRun,
    Force,
    Json,
    Preset,
    Quiet,
    Resume,
    Set,
    Source,
    app,
    command,
    guard,
    home,
    report,
)
from smodice_cli.console import console, escape
from smodice_cli.errors import UsageError

# --- the pipeline ---------------------------------------------------------------------------------------------------


@command(
    PIPELINE,
    "build-dataset",
    "smodice build-dataset --env pointmass-4direction --offline sim:pointmass-4direction#50000 "
    "--expert sim:pointmass-4direction#success=300 --out runs/pm/dataset.h5",
    "smodice build-dataset --env hopper --offline hopper-expert-v2#200 --offline hopper-random-v2 "
    "--expert hopper-expert-v2#traj=0",
    "smodice build-dataset --config pipelines/observations/hopper.toml --source d4rl --dry-run",
)
def build_dataset(
    common: Common,
    env: Annotated[
        str | None, typer.Option(help="Environment: as `smodice envs` lists, gym:ID, or data (no simulator).")
    ] = None,
    offline: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE", help="Offline data: sim:NAME#N, d4rl:ID, minari:ID or file:PATH#N. Repeatable."),
    ] = None,
    expert: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE", help="Expert states: as above, with #traj=K, #states=N, #success[=N]. Repeatable."
        ),
    ] = None,
    expert_dims: Annotated[
        str | None, typer.Option(metavar="DIMS", help="State dimensions both share, e.g. 0:2 or 0,1,5.")
    ] = None,
    absorbing: Annotated[
        bool | None, typer.Option("--absorbing/--no-absorbing", help="Add an absorbing state after terminal rows.")
    ] = None,
    source: Source = "",
) -> None:
    """Collect offline transitions and expert states into [bold]dataset.h5[/]."""
    from smodice_cli.parallel import cores
    from smodice_cli.stages import build_dataset as stage

    if common.steps is not None:
        raise UsageError("build-dataset has no gradient steps; sizes are part of a source, e.g. sim:NAME#50000")
    config = common.build(
        "dataset",
        source,
        env=env,
        offline=tuple(offline or ()),
        expert=tuple(expert or ()),
        expert_dims=expert_dims,
        absorbing=absorbing,
    )
    out = common.out or Path("runs") / (config.env.rpartition(":")[2] or "unnamed") / "dataset.h5"
    result = stage.build_dataset(out, config, common.seed, common.options(default_threads=cores()))
    report(result, shlex.join(["smodice", "train-disc", "--data", str(out)]))


@command(
    PIPELINE,
    "train-disc",
    "smodice train-disc --data runs/pm/dataset.h5 --out runs/pm/disc.safetensors",
    "smodice train-disc --data runs/pm/dataset.h5 --set gradient_penalty=0 --seed 1",
    "smodice train-disc --data runs/pm/dataset.h5 --algo sail --out runs/pm/sail/disc.safetensors",
)
def train_disc(
    common: Common,
    data: Annotated[Path, typer.Option(help="Dataset artifact from build-dataset.")],
    algo: Algo = None,
) -> None:
    """Train the state discriminator, whose logit is R(s) = log d^E/d^O (with --algo, another algorithm's)."""
    from smodice_cli.stages import train_disc as stage

    config = common.build("disc", algo=algo)
    out = common.out or home(data, stage.owner(config)) / "disc.safetensors"
    result = stage.train_disc(data, out, config, common.seed, common.options())
    following = "train-policy" if algo in ("oril", "sail") else "train-value"
    report(result, shlex.join(["smodice", following, "--disc", str(out), *(["--algo", algo] if algo else [])]))


@command(
    PIPELINE,
    "train-value",
    "smodice train-value --disc runs/pm/disc.safetensors",
    "smodice train-value --disc runs/pm/disc.safetensors --f kl --set value.gamma=0.98 --out runs/pm/kl.safetensors",
)
def train_value(
    common: Common,
    disc: Annotated[Path, typer.Option(help="Discriminator artifact; it names its dataset.")],
    algo: Algo = None,
    f: Annotated[str | None, typer.Option(help="Divergence: kl | chi2 | soft-chi2 | chi2-untruncated | auto.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Discount, in (0, 1).")] = None,
    alpha: Annotated[float | None, typer.Option(help="Strength of the regulariser per step; 1 is the paper.")] = None,
) -> None:
    """Train the value function on the Fenchel dual; writes [bold]value.safetensors[/] and [bold]weights.h5[/]."""
    from smodice_cli.stages import train_value as stage

    config = common.build("value", algo=algo, f=f, gamma=gamma, alpha=alpha)
    out = common.out or home(disc, config.algo) / "value.safetensors"
    result = stage.train_value(disc, out, config, common.seed, common.options())
    look = shlex.join(["smodice", "inspect", str(stage.weights_path(out))])
    following = ["smodice", "train-policy", "--value", str(out), *(["--algo", algo] if algo else [])]
    report(result, f"{look} ; {shlex.join(following)}")


@command(
    PIPELINE,
    "train-policy",
    "smodice train-policy --value runs/pm/value.safetensors",
    "smodice train-policy --value runs/pm/value.safetensors --loss nll --sampling uniform",
    "smodice train-policy --algo bc --data runs/pm/dataset.h5 --out runs/pm/bc.safetensors",
    "smodice train-policy --algo oril --disc runs/pm/disc.safetensors --out runs/pm/oril.safetensors",
)
def train_policy(
    common: Common,
    algo: Algo = None,
    value: Annotated[
        Path | None, typer.Option(help="Value artifact, for smodice, demodice and demodice-sd; it names its weights.")
    ] = None,
    disc: Annotated[Path | None, typer.Option(help="Discriminator artifact, for oril and sail.")] = None,
    data: Annotated[Path | None, typer.Option(help="Dataset artifact, for bc, bc-expert-only, td3bc and rce.")] = None,
    loss: Annotated[str | None, typer.Option(help="nll | mse.")] = None,
    sampling: Annotated[str | None, typer.Option(help="weights (rows drawn from d*) | uniform.")] = None,
    entropy: Annotated[
        bool | None, typer.Option("--entropy/--no-entropy", help="Constrain the policy's entropy to -|A|.")
    ] = None,
) -> None:
    """Clone the offline actions, weighted by the importance weights; with --algo, learn as a baseline does."""
    from smodice_cli.envs import registry
    from smodice_cli.stages import train_policy as stage

    config = common.build("policy", algo=algo, loss=loss, sampling=sampling, entropy=entropy)
    given = {"value": value, "disc": disc, "data": data}
    out = common.out or home(stage.starting_point(config.algo, given), config.algo) / "policy.safetensors"
    result = stage.train_policy(given, out, config, common.seed, common.options())
    scored = result.header is not None and registry.known(result.header.metrics["env"])
    report(result, shlex.join(["smodice", "eval", "--policy", str(out)]) if scored else "")


@command(
    PIPELINE,
    "eval",
    "smodice eval --policy runs/pm/policy.safetensors --episodes 100 --json",
    "smodice eval --policy runs/pm/policy.safetensors --stochastic --out runs/pm/eval-sampled.json",
    "smodice eval --policy runs/pm/policy.safetensors --video runs/pm/episode.gif",
)
def evaluate(
    common: Common,
    policy: Annotated[Path, typer.Option(help="Policy artifact; it names its environment.")],
    episodes: Annotated[int | None, typer.Option(help="Number of episodes.")] = None,
    stochastic: Annotated[
        bool | None, typer.Option("--stochastic/--deterministic", help="Sample actions instead of the mode.")
    ] = None,
    video: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also film the first episode, as .gif or .mp4.")
    ] = None,
) -> None:
    """Score the policy in the simulator; writes [bold]eval.json[/] (x.eval.json for x.safetensors)."""
    from smodice_cli import artifacts
    from smodice_cli.parallel import cores
    from smodice_cli.stages import evaluate as stage
    from smodice_cli.stages import video as films

    if common.steps is not None:
        raise UsageError("eval has no gradient steps; use --episodes")
    if video:
        films.check(video, common.force)
    out = common.out or stage.scores_path(policy)
    config = common.build("eval", episodes=episodes, stochastic=stochastic)
    result = stage.evaluate(policy, out, config, common.seed, common.options(default_threads=cores()))
    if result.status == "would run":
        report(result)
        return
    if video:
        films.record(policy, video, config, common.seed)
    score = artifacts.read_payload(out)["score"]
    lines = [f"[bold]{result.status}[/]  {escape(str(out))}", score_line(score)]
    console.result(result.summary() | {"score": score}, lines)


def score_line(score: dict[str, Any]) -> str:
    """One line for people: success or return, with its interval."""
    low, high = score["interval_95"]
    text = f"score [bold]{score['normalized']:.1f}[/]  return {score['mean_return']:.2f} (95 % {low:.2f} to {high:.2f})"
    if "success_rate" in score:
        text += f"  success {100 * score['success_rate']:.0f} %"
    if "of_expert" in score:
        text += f"  {score['of_expert']:.0f} % of the expert's return"
    return f"{text}  over {score['episodes']} episodes"


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
    device: Device = "cpu",
    resume: Resume = True,
    checkpoint_every: CheckpointEvery = 20.0,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run the whole chain of a recipe, for one or several seeds."""
    from smodice_cli import config, recipes
    from smodice_cli.methods import METHODS
    from smodice_cli.parallel import cores
    from smodice_cli.stages import pipeline
    from smodice_cli.stages.runner import Options

    numbers = parse_seeds(seeds)
    chosen = config.parse_assignments(set or [])
    named = [name.strip() for name in algo.split(",")] if algo else []
    shared = config.merge(config.preset(preset), recipes.read_recipe(recipe, source, named))
    algos = shared[recipes.RUN]["algo"]
    settings = recipes.for_methods(shared, chosen, algos, variants)
    usual = recipes.for_algorithm("smodice", shared, chosen)
    folder = out or recipes.run_folder(recipe, source)
    options = Options(force, resume, dry_run, 1, device, checkpoint_every)
    data = pipeline.build_data(folder, usual, 0, options)
    undecided = [
        name
        for name, own in settings.items()
        if own.get("value", {}).get("f") == "auto" and METHODS[own["policy"]["algo"]].needs == "value"
    ]
    if undecided:
        from smodice_cli.stages import select_f

        found = select_f.decide(folder, usual, numbers[0], options)
        settings |= {name: config.merge(settings[name], {"value": {"f": found}}) for name in undecided}
    chains = pipeline.chains(folder, settings, numbers, config.build("disc", usual.get("disc", {})))
    if dry_run:
        planned = [data]
        for chain in chains:
            planned += pipeline.run_chain(chain, options, 1, missing_input=data.status != "cached")
        lines = [f"{escape(str(r.path))}: {r.status} ({escape(r.reason)})" for r in planned]
        console.result({"plan": [r.summary() for r in planned]}, lines)
        return
    console.note(f"{data.path}: {data.status}")
    if len(chains) == 1:
        pipeline.run_chain(chains[0], options, eval_workers=cores())
    else:
        pipeline.run_chains(chains, options, jobs or cores(), debug=debug)
    if pipeline.has_simulator(usual):
        show_summary(pipeline.summarise(folder, list(settings), numbers))
    else:
        policies = [str(chain.home / "policy.safetensors") for chain in chains]
        console.result({"folder": str(folder), "policies": policies}, [f"policy: {escape(path)}" for path in policies])


def parse_seeds(text: str) -> list[int]:
    """`0,1,2` as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) <= MAX_SEED for part in parts):
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
        console.table(
            "", columns, [[r["method"], _spread(r), f"{r['steps']:,}", f"{r['seconds'] / 60:.1f}"] for r in found]
        )
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


def _spread(row: dict[str, Any]) -> str:
    std = f" ± {row['normalized_std']:.1f}" if len(row["per_seed"]) > 1 else ""
    return f"{row['normalized_mean']:.1f}{std}"


@command(
    PIPELINE,
    "tabular",
    "smodice tabular mismatched --out runs/tabular/mismatched.h5",
    "smodice tabular example --f kl --seed 3 --json",
)
def tabular(
    source: Annotated[
        str, typer.Argument(metavar="TASK", help="mismatched | example | a text map of # S G . | an HDF5 of counts.")
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; the picture lies beside it.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the random policy's data.")] = 0,
    size: Annotated[int | None, typer.Option(help="Cells along a side; the paper has 9.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Discount, in (0, 1); default 0.99.")] = None,
    episodes: Annotated[int | None, typer.Option(help="Episodes of data; default 10000.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Steps in an episode; default 50.")] = None,
    noise: Annotated[float | None, typer.Option(help="Probability of a random move; default 0.1.")] = None,
    starts: Annotated[str | None, typer.Option(help="Where episodes begin: start | anywhere | auto.")] = None,
    expert: Annotated[str | None, typer.Option(help="On a map: goal | diagonal (a mismatched mover).")] = None,
    torus: Annotated[bool | None, typer.Option("--torus/--no-torus", help="On a map: moves wrap around.")] = None,
    f: Annotated[str | None, typer.Option(help="Divergence: chi2 | kl | soft-chi2 | chi2-untruncated.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Strength of the regulariser per step; 1 is the paper.")] = None,
    cap: Annotated[float | None, typer.Option(help="Bound on the ratio xi; 0 means none.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="Added to both occupancies in the log ratio.")] = None,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Solve SMODICE exactly on a finite MDP: the paper's gridworlds, your map or counts; draws a picture."""
    from smodice_cli.stages import tabular as stage
    from smodice_cli.stages.runner import Options

    given = {"size": size, "gamma": gamma, "episodes": episodes, "horizon": horizon, "noise": noise, "starts": starts}
    given |= {"expert": expert, "torus": torus, "f": f, "alpha": alpha, "cap": cap, "smoothing": smoothing}
    result = stage.tabular(source, out, given, seed, Options(force=force, dry_run=dry_run))
    report(result)
    for line in stage.lines(result):
        console.note(line)


# The help lists commands in the order in which they are made: these come after the pipeline.
from smodice_cli import commands_look, commands_tools  # noqa: E402, F401


@app.command("run-seed", hidden=True)
def run_seed(debug: Debug = False) -> None:
    """One seed of `run` in a process of its own: told on stdin what to do, reports events on stderr."""
    from smodice_cli.stages import pipeline

    def work(debug: bool) -> None:  # which guard reads
        console.mode = "events"
        pipeline.follow_order(sys.stdin)

    guard(work, {"debug": debug}, set())


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"smodice {__version__}")
        raise typer.Exit()


def main() -> None:
    """Entry point; a termination request is treated like Ctrl-C."""

    def interrupt(number: int, frame: Any) -> typing.NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    app(prog_name="smodice")


if __name__ == "__main__":
    main()
