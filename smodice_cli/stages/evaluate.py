"""eval: episodes of the final policy in the simulator, in parallel processes, into eval.json."""

from __future__ import annotations

import time
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.artifacts import Header
from smodice_cli.config import EvalConfig
from smodice_cli.console import console
from smodice_cli.envs import registry
from smodice_cli.parallel import ordered_map
from smodice_cli.stages.runner import Job, Options, Result, run

STAGE = "eval"
BOOTSTRAP = 2000  # resamples for the interval of the mean


def evaluate(policy: Path, out: Path, config: EvalConfig, seed: int, options: Options) -> Result:
    """Score a policy artifact in the environment it was trained for."""
    inputs = {"policy": artifacts.load(policy, "policy")}
    return run(Job(STAGE, "eval", out, config, seed, inputs, options), _work)


def _work(job: Job, began: float) -> Header:
    config: EvalConfig = job.config
    artifact = job.inputs["policy"]
    env = registry.spec(artifact.header.metrics["env"])
    absorbing = artifact.header.metrics["absorbing"]
    who = (env.name, (artifact.path, artifact.header.digest), absorbing, config.stochastic, job.seed)
    tasks = [(*who, number) for number in range(config.episodes)]
    episodes: list[dict[str, Any]] = []
    with console.progress(STAGE, len(tasks)) as bar:
        for episode in ordered_map(_episode, tasks, min(job.options.threads, len(tasks))):
            episodes.append(episode)
            bar.update(len(episodes), mean_return=float(np.mean([e["return"] for e in episodes])))
    payload = summary(episodes, env, artifact.header.metrics.get("expert_return"))
    header = job.header(metrics=payload["score"], seconds=time.monotonic() - began)
    return artifacts.write_json(job.out, header, payload)


def _episode(task: tuple[str, tuple[Path, str], bool, bool, int, int]) -> dict[str, Any]:
    """One episode, seeded by its number, so that any number of processes gives the same scores."""
    name, which, absorbing, stochastic, seed, number = task
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
def _policy(path: Path, digest: str) -> NumpyPolicy:
    """The policy with this digest: the one at `path` may be another tomorrow."""
    return NumpyPolicy.load(path)


def summary(episodes: list[dict[str, Any]], env: registry.EnvSpec, expert_return: float | None) -> dict[str, Any]:
    """Mean, spread, a 95 % bootstrap interval of the mean, and the normalized scores."""
    returns = np.array([episode["return"] for episode in episodes])
    draws = np.random.default_rng(0).choice(returns, (BOOTSTRAP, len(returns))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    mean = float(returns.mean())
    score: dict[str, Any] = {
        "episodes": len(episodes),
        "mean_return": mean,
        "std_return": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        "interval_95": [float(low), float(high)],
        "normalized": env.normalized(mean),
    }
    if expert_return:
        score["of_expert"] = 100.0 * mean / expert_return
    if expert_return and expert_return > env.random_score:
        # The paper's scale with the dataset's own expert at 100, where D4RL's is another.
        score["normalized_expert"] = 100.0 * (mean - env.random_score) / (expert_return - env.random_score)
    if "success" in episodes[0]:
        score["success_rate"] = float(np.mean([episode["success"] for episode in episodes]))
    return {"env": env.name, "score": score, "per_episode": episodes}
