"""eval: episodes of the final policy in the simulator, in parallel processes, into eval.json."""

from __future__ import annotations

import time
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.algos.acting import SNAPSHOT_STEPS, NumpyPolicy
from smodice_cli.artifacts import Header
from smodice_cli.config import EvalConfig
from smodice_cli.console import console
from smodice_cli.envs import registry
from smodice_cli.errors import InputError
from smodice_cli.parallel import ordered_map
from smodice_cli.stages.runner import Job, Options, Result, run

STAGE = "eval"
BOOTSTRAP = 2000  # resamples for the interval of the mean
# Environment, absorbing, stochastic, seed, episode number; policy file, its digest, which of its snapshots.
Task = tuple[str, bool, bool, int, int, Path, str, int | None]


def scores_path(policy: Path) -> Path:
    """Where the scores of a policy lie: policy.safetensors -> eval.json, x.safetensors -> x.eval.json."""
    return policy.with_name("eval.json" if policy.stem == "policy" else f"{policy.stem}.eval.json")


def evaluate(policy: Path, out: Path, config: EvalConfig, seed: int, options: Options) -> Result:
    """Score a policy artifact in the environment it was trained for."""
    inputs = {"policy": artifacts.load(policy, "policy")}
    registry.refuse_without_simulator(inputs["policy"].header.metrics["env"])
    if config.curve_episodes and "snapshots" in inputs["policy"].header.outputs:
        try:
            inputs["snapshots"] = artifacts.follow(inputs["policy"], "snapshots", "snapshots")
        except InputError as error:
            console.warn(f"no curve over training: {error.message}")
    return run(Job(STAGE, "eval", out, config, seed, inputs, options), _work)


def _work(job: Job, began: float) -> Header:
    config: EvalConfig = job.config
    artifact = job.inputs["policy"]
    env = registry.spec(artifact.header.metrics["env"])
    absorbing = artifact.header.metrics["absorbing"]
    snapshots = job.inputs.get("snapshots")
    steps = snapshots.arrays[SNAPSHOT_STEPS].tolist() if snapshots else []
    who = (env.name, absorbing, config.stochastic, job.seed)
    tasks: list[Task] = [
        (*who, number, artifact.path, artifact.header.digest, None) for number in range(config.episodes)
    ]
    if snapshots:
        source = (snapshots.path, snapshots.header.digest)
        tasks += [(*who, number, *source, at) for at in range(len(steps)) for number in range(config.curve_episodes)]
    found: list[dict[str, Any]] = []
    with console.progress(STAGE, len(tasks)) as bar:
        for episode in ordered_map(_episode, tasks, min(job.options.threads, len(tasks))):
            found.append(episode)
            bar.update(len(found), mean_return=float(np.mean([e["return"] for e in found[: config.episodes]])))
    episodes, rest = found[: config.episodes], found[config.episodes :]
    payload = summary(episodes, env, artifact.header.metrics.get("expert_return"))
    per_point = config.curve_episodes
    payload["curve"] = [
        {"step": step} | _point(rest[i * per_point : (i + 1) * per_point], env) for i, step in enumerate(steps)
    ]
    header = job.header(metrics=payload["score"], seconds=time.monotonic() - began)
    return artifacts.write_json(job.out, header, payload)


def _episode(task: Task) -> dict[str, Any]:
    """One episode, seeded by its number, so that any number of processes gives the same scores."""
    name, absorbing, stochastic, seed, number, *which = task
    env, policy = _environment(name), _policy(*which)
    rng = np.random.default_rng([seed, number])
    observation, info = env.reset(seed=int(rng.integers(2**31)))
    total, length, terminated, truncated = 0.0, 0, False, False
    while not (terminated or truncated):
        state = np.append(observation, 0.0) if absorbing else observation
        observation, reward, terminated, truncated, info = env.step(policy.act(state, rng if stochastic else None))
        total += float(reward)
        length += 1
    ended = "terminated" if terminated else "time limit"
    outcome = {"return": total, "length": length, "ended": ended}
    return outcome | ({"success": bool(info["success"])} if "success" in info else {})


@cache
def _environment(name: str) -> Any:
    return registry.make(name)


@lru_cache(1)
def _policy(path: Path, digest: str, index: int | None) -> NumpyPolicy:
    """The policy (of snapshots, the one at `index`) with this digest, and no other that has taken its place since."""
    found = artifacts.read_any(path)
    if found.header.digest != digest:
        raise InputError(f"{path} was replaced while it was being evaluated", "run smodice eval again")
    return NumpyPolicy(
        found.arrays if index is None else {name: tensor[index] for name, tensor in found.arrays.items()}
    )


def summary(episodes: list[dict[str, Any]], env: registry.EnvSpec, expert_return: float | None) -> dict[str, Any]:
    """Mean, spread, a 95 % bootstrap interval of the mean, and the normalized scores."""
    score = _point(episodes, env)
    returns = np.array([episode["return"] for episode in episodes])
    draws = np.random.default_rng(0).choice(returns, (BOOTSTRAP, len(returns))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    score["interval_95"] = [float(low), float(high)]
    mean = score["mean_return"]
    if expert_return and expert_return > 0:
        score["of_expert"] = 100.0 * mean / expert_return
    if expert_return and expert_return > env.random_score:
        # The paper's scale with the dataset's own expert at 100, where D4RL's is another.
        score["normalized_expert"] = 100.0 * (mean - env.random_score) / (expert_return - env.random_score)
    return {"env": env.name, "score": score, "per_episode": episodes}


def _point(episodes: list[dict[str, Any]], env: registry.EnvSpec) -> dict[str, Any]:
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
