"""Offline imitation when all you have of the expert is observations: SMODICE (Ma et al., ICML 2022), stage by stage.

From arrays to weights and a policy, each step a file that is reused when nothing changed:

    import smodice

    data = smodice.build_dataset(offline, expert, out="runs/mine/dataset.h5")
    value = smodice.train_value(smodice.train_disc(data))
    policy = smodice.train_policy(value)
    weights = smodice.load_weights(value)["w"]          # one a row of the data, 1 on average
    action = smodice.load_policy(policy).act(state)     # without torch

Nothing is printed: what needs a look is a `SmodiceWarning`, what went wrong a `SmodiceError`, and `verbose()` shows
progress as the command line does. Public and stable are the names in `__all__`, the commands and their flags, and the
files that stages write; everything below `smodice_cli` may change.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from smodice import _arguments
from smodice_cli import __version__
from smodice_cli import recipes as _recipes
from smodice_cli.algos.acting import NumpyPolicy as Policy
from smodice_cli.console import SmodiceWarning
from smodice_cli.console import console as _console
from smodice_cli.engine import Options, Result
from smodice_cli.errors import SmodiceError
from smodice_cli.errors import UsageError as _UsageError
from smodice_cli.errors import from_outside as _from_outside
from smodice_cli.recipes import Shipped as RecipeInfo
from smodice_cli.steering import RowWeights

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Options",
    "Policy",
    "RecipeInfo",
    "Result",
    "RowWeights",
    "SmodiceError",
    "SmodiceWarning",
    "__version__",
    "build_dataset",
    "evaluate",
    "load_policy",
    "load_weights",
    "recipes",
    "run",
    "train_disc",
    "train_policy",
    "train_value",
    "verbose",
]

PathLike: TypeAlias = str | os.PathLike[str]
Recording: TypeAlias = Any  # source texts, a dictionary of columns, a list of episodes, or a matrix of states
_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")
_shown = False


def verbose(on: bool = True) -> None:
    """Show progress and notes on stderr, as the command line does, or no longer."""
    global _shown
    _shown = on


def _quietly(function: Callable[_Parameters, _Returned]) -> Callable[_Parameters, _Returned]:
    """Whatever the console is set to, a function of ours speaks as a library does."""

    @functools.wraps(function)
    def wrapper(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Returned:
        before = _console.mode, _console.quiet
        _console.mode, _console.quiet = "human" if _shown else "library", False
        try:
            return function(*args, **kwargs)
        except (OSError, MemoryError, RuntimeError) as error:
            if found := _from_outside(error):
                raise found from error
            raise
        finally:
            _console.mode, _console.quiet = before

    return wrapper


# --- stages ----------------------------------------------------------------------------------------------------------


@_quietly
def build_dataset(
    offline: Recording,
    expert: Recording,
    *,
    env: str = "data",
    out: PathLike | None = None,
    seed: int = 0,
    preset: str = "",
    options: Options | None = None,
    **settings: Any,
) -> Result:
    """Collect offline transitions and the expert's states into `dataset.h5`.

    Args:
        offline: What the imitator may learn actions from. Source texts as on the command line ("arm.hdf5",
            "sim:hopper-random#100000", or several), or arrays: a dictionary of columns with a row a step
            (`observations`, `actions`, and where you have them `next_observations`, `rewards`, `terminals`,
            `timeouts`), or a list of episodes, dictionaries with `observations` (T rows, or T + 1 with the final
            state), `actions` (T rows) and perhaps `rewards` and `terminated`. Say where the task was over, as after a
            success (`terminated`, `terminals`): an episode that was merely cut is taken to go on as its last states
            were.
        expert: What to imitate, states only. The same forms, and a matrix, the states of one trajectory in order, or
            `{"states": matrix}`, single states such as examples of success.
        env: The environment the policy is for, one that `smodice envs` lists or `gym:ID`; "data" for a robot that
            nobody simulates.
        out: Where to write; by default `runs/ENV/dataset.h5`. Arrays are kept beside it, as HDF5 recordings.
        seed: Of what is simulated or drawn.
        preset: "paper" or "official": start from those settings.
        options: How to run it; nothing in them changes the result. `threads` are processes that simulate.
        **settings: Any of `smodice settings dataset`.

    Returns:
        Where the dataset is, and what is in it. The same data again is "cached".
    """
    from smodice_cli.sources import memory

    folder = Path("runs") / _arguments.text(env, "env").rpartition(":")[2]
    target = _arguments.path(out or folder / "dataset.h5", "out")
    kept = [target.with_suffix(f".{name}.hdf5") for name in ("offline", "expert")]
    with memory.withdrawn(*kept):
        texts = [list(memory.source_texts(given, place)) for given, place in zip((offline, expert), kept, strict=True)]
        given = {"env": env, "offline": texts[0], "expert": texts[1]}
        return _make("build-dataset", None, target, "", seed, preset, options, settings | given)


@_quietly
def train_disc(
    data: PathLike,
    *,
    out: PathLike | None = None,
    algo: str = "",
    seed: int = 0,
    preset: str = "",
    options: Options | None = None,
    **settings: Any,
) -> Result:
    """Train the state discriminator, whose logit is the reward R(s) = log d^E(s)/d^O(s).

    Args:
        data: The dataset.
        out: Where to write; by default `disc.safetensors` beside the dataset.
        algo: Another algorithm's discriminator, e.g. "sail".
        seed: Of everything random.
        preset: "paper" or "official": start from those settings.
        options: How to run it; nothing in them changes the result.
        **settings: Any of `smodice settings disc`, e.g. `steps=2000`.
    """
    return _make("train-disc", data, out, algo, seed, preset, options, settings)


@_quietly
def train_value(
    disc: PathLike,
    *,
    out: PathLike | None = None,
    algo: str = "",
    seed: int = 0,
    preset: str = "",
    options: Options | None = None,
    **settings: Any,
) -> Result:
    """Train the value function on the Fenchel dual and compute the importance weight of every row.

    Args:
        disc: The discriminator.
        out: Where to write; by default `value.safetensors` beside it, with `weights.h5`.
        algo: Another algorithm's dual: "demodice" or "demodice-sd".
        seed: Of everything random.
        preset: "paper" or "official": start from those settings.
        options: How to run it; nothing in them changes the result.
        **settings: Any of `smodice settings value`, e.g. `f="chi2"`, `gamma=0.98`.

    Returns:
        Where V is; `load_weights` takes it, and `metrics` say how healthy the weights are.
    """
    return _make("train-value", disc, out, algo, seed, preset, options, settings)


@_quietly
def train_policy(
    start: PathLike,
    *,
    out: PathLike | None = None,
    algo: str = "",
    seed: int = 0,
    preset: str = "",
    options: Options | None = None,
    **settings: Any,
) -> Result:
    """Clone the offline actions under the importance weights, or learn as a baseline does.

    Args:
        start: The value function; for a baseline what it starts from, e.g. the dataset for "bc".
        out: Where to write; by default `policy.safetensors` beside it.
        algo: A baseline: "bc", "bc-expert-only", "td3bc", "oril", "sail", "rce", "demodice", "demodice-sd".
        seed: Of everything random.
        preset: "paper" or "official": start from those settings.
        options: How to run it; nothing in them changes the result.
        **settings: Any of `smodice settings policy`, e.g. `steps=5000`.
    """
    return _make("train-policy", start, out, algo, seed, preset, options, settings)


@_quietly
def evaluate(
    policy: PathLike,
    *,
    out: PathLike | None = None,
    env: str = "",
    seed: int = 0,
    options: Options | None = None,
    **settings: Any,
) -> Result:
    """Score a policy in its simulator or, where there is none, by the error of its actions on recordings.

    Args:
        policy: The policy.
        out: Where to write; by default `eval.json` beside it.
        env: The policy's environment, needed only where it imports a module: "gym:MODULE:ID".
        seed: Of the episodes.
        options: How to run it; `threads` are processes that simulate.
        **settings: Any of `smodice settings eval`, e.g. `episodes=100`.

    Returns:
        Where the score is; `metrics` hold it: `mean_return`, `normalized`, `interval_95`, or `action_error`.
    """
    from dataclasses import replace

    options = replace(_arguments.options(options), env=_arguments.text(env, "env"))
    return _make("eval", policy, out, "", seed, "", options, settings)


def _make(
    name: str,
    start: PathLike | None,
    out: PathLike | None,
    algo: str,
    seed: int,
    preset: str,
    options: Options | None,
    settings: dict[str, Any],
) -> Result:
    from smodice_cli import jobs
    from smodice_cli.algos import ALGORITHMS
    from smodice_cli.stages import DEFAULT, STAGES

    stage, options = STAGES[name], _arguments.options(options)
    recipe = _recipes.Recipe(_recipes.preset(preset), [])
    if _arguments.text(algo, "algo"):
        ALGORITHMS.check(algo, "algo", _UsageError)
    kind = stage.starts_from(algo or DEFAULT)
    places: Mapping[str, Path] = {kind: _arguments.path(start, f"the {kind}")} if kind else {}
    chosen = _recipes.chosen({f"{stage.section}.{key}": value for key, value in settings.items()})
    job = jobs.job(stage, places, chosen, algo=algo, recipe=recipe, out=_arguments.path(out, "out") if out else None)
    return job.make(_arguments.seed(seed), options)


# --- a whole run -----------------------------------------------------------------------------------------------------


@_quietly
def run(
    recipe: PathLike = "",
    *,
    env: str = "data",
    offline: Recording = None,
    expert: Recording = None,
    seeds: Sequence[int] = (0,),
    algos: str | Sequence[str] = (),
    variants: str = "",
    source: str = "",
    preset: str = "",
    settings: Mapping[str, Any] | None = None,
    out: PathLike | None = None,
    jobs: int | None = None,
    options: Options | None = None,
) -> dict[str, Any]:
    """Run the whole chain, of a recipe or of data of your own, for one or several seeds.

    Args:
        recipe: A shipped recipe's name (see `recipes`), or a TOML file; none where data are given.
        env: Without a recipe, the environment; see `build_dataset`.
        offline: Without a recipe, the offline data; see `build_dataset`.
        expert: Without a recipe, the expert; see `build_dataset`.
        seeds: Several run in processes of their own.
        algos: Algorithms to compare, e.g. `("smodice", "bc")`; by default the recipe's.
        variants: Named changes to run beside it: "ablation", "divergences", or a TOML file.
        source: The recipe's data of this name, e.g. "d4rl".
        preset: "paper" or "official": start from those settings.
        settings: What to change, by dotted name: `{"value.f": "chi2", "policy.steps": 5000}`.
        out: The run folder; by default `runs/RECIPE`, or `runs/ENV` without one.
        jobs: How many seeds and algorithms at once; by default as many as there are cores.
        options: How to run it. `threads` are the processes that simulate data, 1 by default: a script that asks for
            more must run under `if __name__ == "__main__":`, as with all of Python's processes.

    Returns:
        The content of the run's `summary.json`: for each method the scores of every seed, their mean and spread.
    """
    from contextlib import closing
    from dataclasses import replace

    from smodice_cli import engines, execution
    from smodice_cli import jobs as work
    from smodice_cli.parallel import cores
    from smodice_cli.sources import memory

    numbers, options = _arguments.seeds(seeds), _arguments.options(options)
    named = [_arguments.text(algo, "algos") for algo in _arguments.several(algos, "algos")]
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise _UsageError(f"jobs = {jobs!r} must be a whole number above 0")
    if settings is not None and not isinstance(settings, Mapping):
        raise _UsageError(f"settings must be a dictionary, not {type(settings).__name__}")
    chosen = _recipes.chosen(settings or {})
    folder = Path("runs") / _arguments.text(env, "env").rpartition(":")[2]
    place = _arguments.path(out or folder, "out")
    given = {} if recipe else {"offline": offline, "expert": expert}
    if any(data is None for data in given.values()):
        raise SmodiceError("which recipe? smodice.recipes() lists them", "or give offline= and expert=")
    kept = {name: place / f"dataset.{name}.hdf5" for name in given}
    with memory.withdrawn(*kept.values()):
        if given:
            texts = {name: list(memory.source_texts(data, kept[name])) for name, data in given.items()}
            chosen.setdefault("dataset", {}).update(texts, env=env)
        name = str(_arguments.path(recipe, "recipe")) if recipe else ""
        found, usual = _recipes.for_command(name, chosen, _arguments.text(source, "source"), named, preset)
        changes = _recipes.locate_variants(_arguments.text(variants, "variants")) if variants else None
        planned = work.plan(found, chosen, numbers, place if out else usual, changes)
    one_thread = replace(options, threads=1)  # of torch; processes simulate
    engine = engines.find("local", [])
    engine.bound(jobs or cores())
    with closing(engine):
        (summary,) = execution.execute([planned], one_thread, engine, execution.Given("local", options.threads)) or []
    return summary


@_quietly
def recipes() -> list[RecipeInfo]:
    """The recipes that come with the tool: name, task, section of the paper, minutes, and where each lies."""
    return _recipes.shipped()


# --- what was made ---------------------------------------------------------------------------------------------------


@_quietly
def load_weights(path: PathLike) -> dict[str, np.ndarray]:
    """The importance weights in a `weights.h5`, or those made with a value function, column by column.

    Every column has one number a row of the dataset, in its order: `w` (1 on average), `log_w`, `reward` (R), `v`,
    `v_next`, `residual`, `episode`, `t` (the step within it) and `source`. `pandas.DataFrame(load_weights(path))` is
    the table. By the recordings' own file, episode and frame numbers, they are in `RowWeights.load(path)`.
    """
    import numpy as np

    from smodice_cli.steering import weights_at

    return {name: np.asarray(column) for name, column in weights_at(_arguments.path(path, "path")).arrays.items()}


@_quietly
def load_policy(path: PathLike) -> Policy:
    """A trained policy in plain numpy, for a robot: `load_policy(path).act(state)`, one state or many; no torch.

    With a generator, `act(state, rng)`, actions are sampled, without one they are the mode.
    """
    from smodice_cli import artifacts

    place = _arguments.path(path, "path")
    policy = Policy.load(place)
    try:
        kind = artifacts.read_header(place).kind
    except SmodiceError:
        return policy  # from elsewhere: the tensors alone
    absorbing = artifacts.load(place, kind).header.metrics.get("absorbing", False)
    return policy.without_indicator() if absorbing else policy
