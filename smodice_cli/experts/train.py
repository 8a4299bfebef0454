"""Train an expert, keep the best policy on the way, and export it as the project's policy file.

The data sets are sampled from the stochastic policy, as D4RL's were, so that is what is evaluated and selected; the
selection prefers policies that do well in every episode to ones that sometimes do better.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts, envs, rollout
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.artifacts import Header
from smodice_cli.experts import sac
from smodice_cli.experts.sac import Settings, Tensors
from smodice_cli.lazy import torch

STAGE = "train-expert"
Progress = Callable[[int, dict[str, float]], None]

SCREENING_EPISODES, SELECTION_EPISODES, FINAL_EPISODES = 4, 12, 20
SATURATED = 0.99  # of the action bound
# Seeds of evaluation episodes: the final figures come from episodes no selection has seen.
SCREENING_SEED, SELECTION_SEED, FINAL_SEED = 10_000, 20_000, 30_000


@dataclass(frozen=True)
class Evaluation:
    """Returns over episodes of the sampled policy, the mode's mean return, and how often actions are at a bound."""

    episodes: int
    mean: float
    std: float
    min: float
    max: float
    deterministic_mean: float
    mean_length: float
    saturated_share: float

    @property
    def score(self) -> float:
        """What selection maximises: one standard deviation below the mean."""
        return self.mean - self.std


def train_expert(
    env_name: str,
    out: Path,
    *,
    steps: int = 1_000_000,
    seed: int = 0,
    start: Path | None = None,
    settings: Settings = Settings(),
    progress: Progress = lambda step, figures: None,
) -> Evaluation:
    """Train on `env_name`, keep the best policy in `out`, and return its evaluation on fresh episodes.

    Beside `out` a `.state.safetensors` file holds the latest networks, critics included: `start` takes a policy file
    and uses the state beside it where there is one.
    """
    model = sac.new_model(env_name, steps, seed, settings)
    if start is not None:
        sac.restore(model, start)
    config = {
        "env": env_name,
        "algorithm": "SAC (sbx)",
        "command": _command(env_name, out, steps, seed, start, settings),
        **asdict(settings),
    }
    env, began = envs.make(env_name), time.monotonic()
    best: tuple[Tensors, int, Evaluation] | None = None

    def export(tensors: Tensors, step: int, evaluation: Evaluation) -> None:
        metrics = {"env": env_name, "absorbing": False, "steps": step, "evaluation": asdict(evaluation)}
        seconds = time.monotonic() - began
        _write(out, Header("policy", STAGE, config, seed, metrics=metrics, seconds=seconds), tensors)

    def visit(step: int) -> None:
        """Screen the policy on a few episodes and, if it may be the best, on enough to know."""
        nonlocal best
        tensors = sac.policy_tensors(model, settings.noise)
        policy = NumpyPolicy(tensors)
        screened = evaluate(env, policy, SCREENING_EPISODES, SCREENING_SEED)
        best_score = best[2].score if best else -np.inf
        if screened.score > best_score:
            full = evaluate(env, policy, SELECTION_EPISODES, SELECTION_SEED)
            if full.score > best_score:
                best = (tensors, step, full)
                export(*best)
        best_mean = best[2].mean if best else float("nan")
        progress(step, {"return": screened.mean, "mode": screened.deterministic_mean, "best": best_mean})
        _write(sac.state_path(out), Header("training-state", STAGE, config, seed), sac.state_tensors(model))

    model.learn(steps, callback=sac.callback(model, steps, settings, visit))
    if best is None:
        raise RuntimeError("no policy was evaluated")
    tensors, step, _ = best
    final = evaluate(env, NumpyPolicy(tensors), FINAL_EPISODES, FINAL_SEED)  # which had no part in choosing it
    export(tensors, step, final)
    return final


def evaluate(env: Any, policy: NumpyPolicy, episodes: int, seed: int) -> Evaluation:
    """Returns of the sampled policy over seeded episodes, and the mode's over a quarter as many."""
    rng = np.random.default_rng(seed)
    sampled = [_episode(env, policy, seed + index, rng) for index in range(episodes)]
    mode = [_episode(env, policy, seed + index, None) for index in range(max(1, episodes // 4))]
    returns, lengths, at_bound = np.array(sampled).T
    return Evaluation(
        episodes=episodes,
        mean=float(returns.mean()),
        std=float(returns.std()),
        min=float(returns.min()),
        max=float(returns.max()),
        deterministic_mean=float(np.mean([total for total, _, _ in mode])),
        mean_length=float(lengths.mean()),
        saturated_share=float(at_bound.sum() / lengths.sum() / policy.act_dim),
    )


def _episode(env: Any, policy: NumpyPolicy, seed: int, rng: np.random.Generator | None) -> tuple[float, int, int]:
    """Return, length and number of action coordinates at a bound of one episode."""
    bound = SATURATED * np.asarray(env.action_space.high)
    total, length, at_bound = 0.0, 0, 0
    for step in rollout.begin(env, policy, rng, seed)[1]:
        total += float(step.reward)
        length += 1
        at_bound += int(np.count_nonzero(np.abs(step.action) > bound))
    return total, length, at_bound


def _command(env_name: str, out: Path, steps: int, seed: int, start: Path | None, settings: Settings) -> str:
    """The command line that repeats this training; settings appear where they differ from the defaults."""
    words = [f"smodice {STAGE} {env_name} --out {out.name} --steps {steps} --seed {seed} --hidden {settings.hidden}"]
    words += [f"--from {start.name}"] if start else []
    defaults = asdict(Settings(hidden=settings.hidden))
    words += [f"--set {name}={value}" for name, value in asdict(settings).items() if value != defaults[name]]
    return " ".join(words)


def _write(path: Path, header: Header, tensors: Tensors) -> None:
    artifacts.write_safetensors(path, header, {name: torch.tensor(array) for name, array in tensors.items()})
