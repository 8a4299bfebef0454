"""Tools beside the pipeline: train an expert, list the recipes, the settings and the environments."""

from pathlib import Path
from typing import Annotated

import typer

from smodice_cli import completion, recipes
from smodice_cli.algos import ALGORITHMS
from smodice_cli.cli import TOOLS, command, seed_option
from smodice_cli.config import describe
from smodice_cli.console import console, escape
from smodice_cli.errors import InputError, UsageError, nearest
from smodice_cli.stages import has, sections


@command(
    TOOLS,
    "train-expert",
    "smodice train-expert hopper --steps 1000000  # hours; needs pip install 'smodice\\[experts]'",
    "smodice build-dataset --env hopper --offline sim:hopper-random#100000 "
    "--expert sim:hopper@experts/hopper.safetensors#traj=0  # with the expert that it made",
)
def train_expert(
    env: Annotated[
        str,
        typer.Argument(help="Environment: as `smodice envs` lists, or gym:ID.", autocompletion=completion.environments),
    ],
    out: Annotated[Path | None, typer.Option(help="Policy file; default experts/ENV.safetensors.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Environment steps.")] = 1_000_000,
    seed: Annotated[int, seed_option(help="Seed of the training.")] = 0,
    hidden: Annotated[int, typer.Option(min=1, help="Units in each of the actor's two hidden layers.")] = 64,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="POLICY", help="Go on from this policy, of the same sizes.")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Soft actor-critic's settings, e.g. learning_rate=7e-4."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the policy file.")] = False,
) -> None:
    """Train an expert with soft actor-critic (needs the extra [bold]experts[/]) for [bold]sim:ENV@FILE[/]."""
    from dataclasses import asdict

    from smodice_cli import envs, files
    from smodice_cli.errors import ForeignFileError, Interrupted, SmodiceError
    from smodice_cli.experts import sac
    from smodice_cli.experts import train as trainer

    envs.find(env)
    out = out or Path("experts") / f"{env}.safetensors"
    if out.exists() and not force:
        raise ForeignFileError(f"{out} exists", "choose another --out, or overwrite it with --force")
    if start is not None and not start.is_file():
        raise InputError(f"{start} does not exist")
    chosen = sac.parse_settings(hidden, set or [])
    waiting = f"{out} is being made by another process: waiting"
    try:
        with files.locked(out, lambda _: console.note(waiting)), console.progress(f"train-expert {env}", steps) as bar:
            evaluation = trainer.train_expert(
                env,
                out,
                steps=steps,
                seed=seed,
                start=start,
                settings=chosen,
                progress=lambda step, figures: bar.update(step, **figures),
            )
    except KeyboardInterrupt as error:
        best = f"the best policy so far is {out}: go on from it with --from {out} --force" if out.exists() else ""
        stopped = SmodiceError("interrupted", best)
        stopped.exit_code = Interrupted.exit_code
        raise stopped from error
    figures = asdict(evaluation)
    line = f"[bold]done[/]  {escape(str(out))}  return {evaluation.mean:.0f} ± {evaluation.std:.0f}"
    console.result({"path": str(out), "evaluation": figures}, [f"{line} over {evaluation.episodes} episodes"])


@command(TOOLS, "recipes", "smodice recipes", "smodice recipes hopper", quiet=False)
def list_recipes(
    name: Annotated[
        str, typer.Argument(help="Print this recipe, to begin one of your own.", autocompletion=completion.recipe)
    ] = "",
) -> None:
    """List the recipes that come with the tool: `smodice run NAME` runs one.

    `smodice recipes NAME > mine.toml` begins one of your own.
    """
    if name:
        path = recipes.locate(name)
        text = recipes.written(path)
        console.result({"name": path.stem, "path": str(path), "recipe": text}, [escape(text.rstrip("\n"))])
        return
    found = recipes.shipped()
    minutes = ["" if recipe.minutes is None else f"{recipe.minutes:g}" for recipe in found]
    rows = [[one.name, one.task, one.paper, time] for one, time in zip(found, minutes, strict=True)]
    console.table("", ["recipe", "task", "paper", "minutes"], rows, text=("task", "paper"), whole=("recipe",))
    console.say(["minutes: one seed, data included, on two cores", "smodice run NAME runs one"])
    facts = ("name", "task", "paper", "minutes", "path")
    console.result({one.name: {fact: getattr(one, fact) for fact in facts} for one in found})


@command(TOOLS, "settings", "smodice settings", "smodice settings value --json", quiet=False)
def settings(
    section: Annotated[
        str,
        typer.Argument(
            help=f"{' | '.join(sections())}; default: all.", autocompletion=completion.one_of(lambda: sections())
        ),
    ] = "",
) -> None:
    """List every setting with its default and meaning, as used by recipes and --set."""
    if section and section not in sections():
        raise UsageError(f"unknown section '{section}'", nearest(section, list(sections())))
    rows = []
    for name in [section] if section else sections():
        classes = {algo: sections()[name].config_of(algo) for algo in ALGORITHMS if has(algo, name)}
        rows += describe(classes, name)
    console.table("", ["setting", "default", "meaning"], rows, text=("default", "meaning"), whole=("setting",))
    console.result({key: {"default": default, "meaning": meaning} for key, default, meaning in rows})


@command(TOOLS, "envs", "smodice envs", "smodice envs --json", quiet=False)
def envs() -> None:
    """List the environments with their sizes and reference scores."""
    from smodice_cli.envs import ENVIRONMENTS

    rows = [
        [name, str(env.obs_dim), str(env.act_dim), str(env.horizon), f"{env.random_score:g}", f"{env.expert_score:g}"]
        for name, env in ENVIRONMENTS.items()
    ]
    console.table("", ["environment", "state", "action", "horizon", "score 0", "score 100"], rows)
    console.result({name: env.as_json() for name, env in ENVIRONMENTS.items()})
