"""A plug-in with one of everything that can be added: what SMODICE_PLUGINS=toys adds to the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from smodice_cli import artifacts
from smodice_cli.algos import ALGORITHMS, PolicyLearner
from smodice_cli.algos.clone import BC, TrajectoryConfig, clone_rows
from smodice_cli.algos.divergences import DIVERGENCES, Divergence
from smodice_cli.artifacts import Artifact, Header
from smodice_cli.config import Config, setting
from smodice_cli.data import Dataset, Transitions
from smodice_cli.engine import Context, Output, Stage
from smodice_cli.envs import ENVIRONMENTS, Environment
from smodice_cli.sources.layouts import LAYOUTS, Layout
from smodice_cli.sources.source import EVERYTHING, Choice, Contents
from smodice_cli.stages import STAGES

# --- an environment: walk along a line to 1 ---------------------------------------------------------------------------


class Line(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point on a line: its action moves it; at 1 it has arrived."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-0.5, 0.5)
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.array([self.place, 1.0])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place += 0.2 * float(action[0])
        solved = self.place >= 1.0
        return self.seen(), float(solved), solved, False, {"success": solved}


def arrived(observations: np.ndarray) -> np.ndarray:
    return observations[:, 0] >= 1.0


def walk(seed: int, number: int) -> Transitions:
    """Every other episode goes the wrong way."""
    actions = np.full((10, 1), 1.0 if number % 2 == 0 else -1.0)
    start = np.random.default_rng([seed, number]).uniform(0.0, 0.2)
    states = [(start + 0.2 * action[0] * step, 1.0) for step, action in enumerate([*actions, actions[-1]])]
    return Transitions.episode(states, actions, [0.0] * 9 + [float(number % 2 == 0)], terminated=number % 2 == 0)


LINE = Environment("line", Line, obs_dim=2, act_dim=1, horizon=30, expert_score=1.0, success=arrived, demonstrator=walk)
ENVIRONMENTS.add("line", LINE)


# --- a layout: one step a line of text --------------------------------------------------------------------------------


class Steps(Layout):
    """Lines of `episode, x, y, action`; the last line of an episode is its final state."""

    format = "a file of steps"

    def __init__(self, path: Path, file: Any, choice: Choice = EVERYTHING) -> None:
        super().__init__(path, file, choice)
        self.numbers = np.loadtxt(path, delimiter=",", ndmin=2)

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return path.suffix == ".steps"

    def describe(self) -> Contents:
        return Contents(observations=2, actions=1, rewards=False)

    def episodes(self, horizon: int, *, states_only: bool = False) -> Iterator[Transitions]:
        for number in np.unique(self.numbers[:, 0]):
            lines = self.numbers[self.numbers[:, 0] == number]
            actions = lines[:-1, 3:]
            yield Transitions.episode(lines[:, 1:3], actions, np.zeros(len(actions)), terminated=False)


LAYOUTS.add("steps", Steps)


# --- a divergence: the squared Hellinger distance ---------------------------------------------------------------------

HELLINGER = Divergence(
    f=lambda package, x: 2 * (x**0.5 - 1) ** 2,
    slope=lambda package, x: 2 - 2 / x**0.5,
    curvature=lambda package, x: x**-1.5,
    inverse_slope=lambda package, y: (1 - package.clip(y, None, 1.99) / 2) ** -2,
)
DIVERGENCES.add("hellinger", HELLINGER)


# --- an algorithm: cloning without the beginning of each episode ------------------------------------------------------


@dataclass(frozen=True)
class LateConfig(TrajectoryConfig):
    """train-policy --algo bc-late."""

    skip: int = setting(3, "rows at the start of an episode that are not cloned", ge=0)


class LateBC(BC):
    """Behaviour cloning of what comes after the start."""

    Config = LateConfig

    def learner(self, data: Dataset, config: Any, upstream: Any, rng: Any, device: Any) -> PolicyLearner:
        return clone_rows(data, (data.time_of_row() >= config.skip).astype(float), config, rng, device)


ALGORITHMS.add("bc-late", LateBC)


# --- a stage: a mark for the scores -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradeConfig(Config):
    """grade: what it takes to pass."""

    needed: float = setting(50.0, "the normalized score that passes", flag="--needed")


class Grade(Stage):
    """eval.json -> grade.json."""

    name, kind, file, section = "grade", "grade", "grade.json", "grade"
    Config = GradeConfig
    help = "Say whether the policy passes."
    examples = ("smodice grade --eval runs/pm/eval.json", "smodice grade --eval runs/pm/eval.json --needed 90")

    def starts_from(self, algo: str) -> str:
        return "eval"

    def inputs(self, start: Path, config: Any) -> dict[str, Artifact]:
        return {"eval": artifacts.load(start, "eval")}

    def work(self, context: Context) -> list[Output]:
        score = context.inputs["eval"].header.metrics["normalized"]
        mark = {"passed": score >= context.config.needed, "score": score}
        return [Output(mark, mark)]

    def tell(self, header: Header) -> tuple[dict[str, Any], list[str]]:
        return {"passed": header.metrics["passed"]}, ["passed" if header.metrics["passed"] else "failed"]


STAGES.add("grade", Grade)


class Count(Stage):
    """dataset.h5 -> count.json, on request: no part of a run."""

    name, kind, file, section = "count", "count", "count.json", "count"
    Config = GradeConfig
    in_run = False
    help = "Count the rows."
    examples = ("smodice count --data runs/pm/dataset.h5", "smodice count --data runs/pm/dataset.h5 --needed 100")

    def starts_from(self, algo: str) -> str:
        return "dataset"

    def work(self, context: Context) -> list[Output]:
        rows = Dataset.of(context.inputs["dataset"]).rows
        return [Output({"rows": rows}, {"rows": rows, "enough": rows >= context.config.needed})]


STAGES.add("count", Count)
