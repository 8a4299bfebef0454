"""eval: episodes of the final policy in the simulator, in parallel processes, into eval.json.

Without a simulator, the error of its actions on recordings (`offline_score`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from smodice_cli import artifacts, envs, rollout
from smodice_cli.algos.acting import POLICY_TENSORS, SNAPSHOT_STEPS, NumpyPolicy
from smodice_cli.artifacts import Arrays, Artifact, Header
from smodice_cli.config import Config as BaseConfig
from smodice_cli.config import setting
from smodice_cli.console import console
from smodice_cli.engine import Context, Options, Output, Stage, beside
from smodice_cli.envs import Environment
from smodice_cli.errors import ConfigError, InputError, SmodiceError
from smodice_cli.lazy import np
from smodice_cli.parallel import Beside, ordered_map
from smodice_cli.stages import offline_score

BOOTSTRAP = 2000  # resamples for the interval of the mean
COMPLETED = "completed"  # where an environment of several tasks tells whether each has been done


Rules = tuple[str, bool, bool, int]  # of an episode: environment, absorbing state, stochastic actions, seed


@dataclass(frozen=True)
class Config(BaseConfig):
    """eval: episodes of the policy in the simulator."""

    episodes: int = setting(20, "number of episodes", flag="--episodes", gt=0)
    stochastic: bool = setting(False, "sample actions instead of taking tanh(mean)", flag="--stochastic")
    env: str = setting("", "another environment with the same states and actions to score in; its own by default")
    curve_episodes: int = setting(10, "episodes of each of the policy's snapshots; 0 leaves the curve out", ge=0)


class Evaluate(Stage):
    """policy.safetensors -> eval.json."""

    name, kind, file, section = "eval", "eval", "eval.json", "eval"
    Config = Config
    simulates = films = True
    help = (
        "Score the policy in the simulator, or without one on recordings; writes [bold]eval.json[/] "
        "(x.eval.json for x.safetensors)."
    )
    examples = (
        "smodice eval --policy runs/pm/seed0/policy.safetensors --episodes 100 --json",
        "smodice eval --policy runs/pm/seed0/policy.safetensors --stochastic --out runs/sampled.json",
        "smodice eval --policy runs/pm/seed0/policy.safetensors --video episodes.gif --video-episodes 3",
        "smodice eval --policy runs/am/policy.safetensors --set env=antmaze-umaze-random-goal  # of AntMaze",
    )

    def starts_from(self, algo: str) -> str:
        return "policy"

    def place(self, start: Path | None, config: Any, folder: Path) -> Path:
        assert start is not None
        return beside(start, "policy.safetensors", self.file)

    def inputs(self, start: Path, config: Any) -> dict[str, Artifact]:
        found = {"policy": artifacts.load(start, "policy")}
        with artifacts.as_expected(found["policy"]):
            simulated = envs.can_simulate(found["policy"].header.metrics["env"])
        if not simulated:
            return offline_score.inputs(found["policy"])
        if config.curve_episodes and "snapshots" in found["policy"].header.outputs:
            try:
                found["snapshots"] = artifacts.follow(found["policy"], "snapshots", "snapshots")
            except InputError as error:
                console.warn(f"no curve over training: {error.message}")
        return found

    def check_inputs(self, found: Mapping[str, Artifact], options: Options) -> None:
        policy = found["policy"]
        if "dataset" in found:  # recordings, and no simulator
            return
        with artifacts.as_expected(policy):
            name, absorbing = policy.header.metrics["env"], bool(policy.header.metrics["absorbing"])
            float(policy.header.metrics.get("expert_return") or 0.0)
            env = envs.find_in_file(name, options.env)
        envs.check_simulator(name)
        actor = NumpyPolicy(policy.arrays)
        if (actor.obs_dim - absorbing, actor.act_dim) != (env.obs_dim, env.act_dim):
            raise InputError(f"{policy.path} is no policy for {name}: its states or actions have other dimensions")

    def work(self, context: Context) -> list[Output]:
        config, policy = context.config, context.inputs["policy"]
        if "dataset" in context.inputs:  # recordings, and no simulator
            payload = offline_score.score(dict(context.inputs), context.seed)
            return [Output(payload, payload["score"])]
        env = scored_in(policy.header.metrics["env"], config)
        actors: list[tuple[Artifact, int | None, int]] = [(policy, None, config.episodes)]  # with their episodes
        steps: list[int] = []
        if snapshots := context.inputs.get("snapshots"):
            steps = snapshots.arrays[SNAPSHOT_STEPS].tolist()
            actors += [(snapshots, index, config.curve_episodes) for index in range(len(steps))]
        rules = (env.name, bool(policy.header.metrics["absorbing"]), config.stochastic, context.seed)
        asked = [_keys(rules, _one(who.arrays, index), size) for who, index, size in actors]
        tasks = {  # the last snapshot is the policy itself, and its episodes are played once
            key: (who.path, who.header.digest, index, number)
            for (who, index, _), keys in zip(actors, asked, strict=True)
            for number, key in enumerate(keys)
        }
        before = context.ahead.finish() if context.ahead else {}
        found = {key: before[key] for key in tasks if key in before}
        left = {key: task for key, task in tasks.items() if key not in found}
        with console.progress(self.name, len(tasks), len(found)) as bar:
            episodes_left = ordered_map(partial(_stored, rules), left.values(), min(context.options.threads, len(left)))
            for key, episode in zip(left, episodes_left, strict=True):
                found[key] = episode
                returns = [found[own]["return"] for own in asked[0] if own in found]
                bar.update(len(found), mean_return=float(np.mean(returns)))
        episodes, *parts = [[found[key] for key in keys] for keys in asked]
        payload = summary(episodes, env, policy.header.metrics.get("expert_return"))
        payload["curve"] = [{"step": step} | _point(part, env) for step, part in zip(steps, parts, strict=True)]
        return [Output(payload, payload["score"])]

    def tell(self, header: Header) -> tuple[dict[str, Any], list[str]]:
        offline = "action_error" in header.metrics
        return {"score": header.metrics}, [(offline_score.line if offline else score_line)(header.metrics)]


def scored_in(own: str, config: Config) -> Environment:
    """The environment that a policy is scored in: its `own`, or the one that the settings name."""
    env, trained = envs.find(config.env or own), envs.find(own)
    if (env.obs_dim, env.act_dim) != (trained.obs_dim, trained.act_dim):
        raise ConfigError(f"eval.env: the policy is for {own}, and {env.name} has other states or actions")
    envs.check_simulator(env.name)
    return env


def _episode(rules: Rules, policy: NumpyPolicy, number: int) -> dict[str, Any]:
    """One episode of a policy, for a process of its own."""
    name, absorbing, stochastic, seed = rules
    rng, reset_seed = rollout.seeded(seed, number)
    sampling = rng if stochastic else None
    _, steps = rollout.begin(rollout.environment(name), policy, sampling, reset_seed, absorbing=absorbing)
    total, length = 0.0, 0
    completed: dict[str, int] = {}  # tasks, and in which step
    for step in steps:
        total += float(step.reward)
        length += 1
        for goal, done in step.info.get(COMPLETED, {}).items():
            if done:
                completed.setdefault(goal, length)
    outcome: dict[str, Any] = {
        "return": total,
        "length": length,
        "ended": "terminated" if step.terminated else "time limit",
    }
    if COMPLETED in step.info:
        outcome[COMPLETED] = {goal: completed.get(goal) for goal in step.info[COMPLETED]}
    return outcome | ({"success": bool(step.info["success"])} if "success" in step.info else {})


def _stored(rules: Rules, task: tuple[Path, str, int | None, int]) -> dict[str, Any]:
    """One episode of a policy in a file (see `_policy`; last its number)."""
    *which, number = task
    return _episode(rules, _policy(*which), number)


@lru_cache(1)
def _policy(path: Path, digest: str, index: int | None) -> NumpyPolicy:
    """The policy (of snapshots, the one at `index`) with this digest, and no other that has taken its place since."""
    found = artifacts.read_any(path)
    if found.header.digest != digest:
        raise InputError(f"{path} was replaced while it was being evaluated", "run smodice eval again")
    return NumpyPolicy(_one(found.arrays, index))


def _one(arrays: Arrays, index: int | None) -> Arrays:
    """The tensors of a policy, of snapshots those of the one at `index`."""
    return arrays if index is None else {name: tensors[index] for name, tensors in arrays.items()}


def _keys(rules: Rules, tensors: Arrays, episodes: int) -> list[str]:
    """What each of a policy's first episodes is known by: the hash of all that determines it."""
    sha = hashlib.sha256(repr(rules).encode())
    for name in POLICY_TENSORS:
        sha.update(np.ascontiguousarray(tensors[name]).data)
    return [f"{sha.hexdigest()} {number}" for number in range(episodes)]


class Ahead(Beside):
    """Plays the curve's episodes of each snapshot in another process while the policy still trains."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__()
        self.config, self.seed = config, seed

    def take(self, env: str, absorbing: bool, tensors: Arrays) -> None:
        """A snapshot of a policy for this environment."""
        with suppress(SmodiceError):  # eval will say what is wrong
            rules = (scored_in(env, self.config).name, absorbing, self.config.stochastic, self.seed)
            policy, keys = NumpyPolicy(tensors), _keys(rules, tensors, self.config.curve_episodes)
            self.add({key: partial(_episode, rules, policy, number) for number, key in enumerate(keys)})


def summary(episodes: list[dict[str, Any]], env: Environment, expert_return: float | None) -> dict[str, Any]:
    """Mean, spread, a 95 % bootstrap interval of the mean, and the normalized scores."""
    score = _point(episodes, env)
    returns = np.array([episode["return"] for episode in episodes])
    # Two lines of numpy: scipy.stats takes a second to import, and its interval of equal returns is not a number.
    draws = np.random.default_rng(0).choice(returns, (BOOTSTRAP, len(returns))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    score["interval_95"] = [float(low), float(high)]
    mean = score["mean_return"]
    if expert_return and expert_return > 0:
        score["of_expert"] = 100.0 * mean / expert_return
    if expert_return and expert_return > env.random_score:
        # The paper's scale with the dataset's own expert at 100, where D4RL's is another.
        score["normalized_expert"] = 100.0 * (mean - env.random_score) / (expert_return - env.random_score)
    if COMPLETED in episodes[0]:  # the share of the episodes that complete each task
        done = [episode[COMPLETED] for episode in episodes]
        score[COMPLETED] = {task: float(np.mean([one[task] is not None for one in done])) for task in done[0]}
    return {"env": env.name, "score": score, "per_episode": episodes}


def _point(episodes: list[dict[str, Any]], env: Environment) -> dict[str, Any]:
    """The figures that a score and a point of the curve share."""
    returns = np.array([episode["return"] for episode in episodes])
    point = {
        "episodes": len(episodes),
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        "normalized": env.normalized(float(returns.mean())),
    }
    if "success" in episodes[0]:
        point["success_rate"] = float(np.mean([episode["success"] for episode in episodes]))
    return point


def score_line(score: dict[str, Any]) -> str:
    """One line for people: success or return, with its interval."""
    low, high = score["interval_95"]
    text = f"score [bold]{score['normalized']:.1f}[/]  return {score['mean_return']:.2f} (95 % {low:.2f} to {high:.2f})"
    if "success_rate" in score:
        text += f"  success {100 * score['success_rate']:.0f} %"
    if "of_expert" in score:
        text += f"  {score['of_expert']:.0f} % of the expert's return"
    return f"{text}  over {score['episodes']} episodes"
