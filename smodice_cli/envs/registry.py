"""What the tool knows about each environment, as data: no other module asks for an environment by name.

Importing this module loads neither gymnasium nor mujoco; `make`, `success` and what is asked of Gymnasium's own do.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from smodice_cli.envs import d4rl_tables
from smodice_cli.errors import ConfigError, nearest

if TYPE_CHECKING:
    import gymnasium

GYM = "gym:"
DATA = "data"
UNLIMITED = 1 << 40  # steps of an episode where nothing says how many there can be


@dataclass(frozen=True)
class EnvSpec:
    """One environment: how to build it, its shapes, and how its scores are read."""

    name: str
    entry_point: str  # "package.module:Class", a gymnasium environment
    obs_dim: int
    act_dim: int
    horizon: int
    random_score: float  # the return that counts as 0
    expert_score: float  # the return that counts as 100
    plot_dims: tuple[int, int] | None = None  # state coordinates worth drawing
    success: str | None = None  # "package.module:function", observations (N, d) -> bool (N,)
    demonstrator: str | None = None  # "package.module:function", (seed, episode) -> columns of one scripted episode
    action_range: tuple[Any, Any] = (-1.0, 1.0)  # least and largest action, of all dimensions or of each
    observation_parts: tuple[str, ...] = ("observation",)  # of a recorded dictionary observation, joined in this order
    kwargs: dict[str, Any] = field(default_factory=dict)

    def normalized(self, score: float) -> float:
        """The D4RL normalized score: 0 is the random, 100 the expert reference."""
        return 100.0 * (score - self.random_score) / (self.expert_score - self.random_score)


def _locomotion(name: str, cls: str, obs: int, act: int, velocity: int) -> EnvSpec:
    """A walking body; `velocity` is the coordinate of its forward speed, drawn against its height (0)."""
    entry = f"smodice_cli.envs.locomotion:{cls}"
    parent = name.partition("-")[0]  # the mismatched bodies share their parents' reference scores
    low, high = d4rl_tables.reference_scores(f"{parent}-expert-v2")
    return EnvSpec(name, entry, obs, act, 1000, low, high, plot_dims=(velocity, 0))


SPECS: dict[str, EnvSpec] = {
    spec.name: spec
    for spec in (
        EnvSpec(
            "pointmass-4direction",
            "smodice_cli.envs.pointmass:PointMass4Direction",
            obs_dim=4,
            act_dim=2,
            horizon=200,
            random_score=0.0,
            expert_score=1.0,
            plot_dims=(0, 1),
            success="smodice_cli.envs.pointmass:success",
            demonstrator="smodice_cli.envs.pointmass:demonstrate",
        ),
        _locomotion("hopper", "Hopper", 11, 3, velocity=5),
        _locomotion("walker2d", "Walker2d", 17, 6, velocity=8),
        _locomotion("halfcheetah", "HalfCheetah", 17, 6, velocity=8),
        _locomotion("ant", "Ant", 27, 8, velocity=13),
        _locomotion("halfcheetah-short", "HalfCheetahShort", 17, 6, velocity=8),
        _locomotion("ant-disabled", "AntDisabled", 27, 8, velocity=13),
    )
}


@cache
def spec(name: str) -> EnvSpec:
    """The environment of that name: one of ours, `gym:ID` of Gymnasium's, or `data:17x6`, recordings without any."""
    if name in SPECS:
        return SPECS[name]
    if name.startswith(GYM):
        return _of_gymnasium(name)
    if sizes := re.fullmatch(rf"{DATA}:([0-9]+)x([0-9]+)", name):
        return EnvSpec(
            name, "", int(sizes[1]), int(sizes[2]), UNLIMITED, 0.0, 100.0, action_range=(-math.inf, math.inf)
        )
    others = f"{GYM}ID is one of Gymnasium's, {DATA} stands for recordings without a simulator"
    raise ConfigError(f"unknown environment '{name}'", f"{nearest(name, list(SPECS))} ({others})")


def known(name: str) -> bool:
    """Whether something can be simulated under this name."""
    return name in SPECS or name.startswith(GYM)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """What Gymnasium says of an environment that cannot be made or drawn, as a sentence."""
    import gymnasium

    try:
        yield
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"{name}: {str(error).splitlines()[0]}") from error


def _of_gymnasium(name: str) -> EnvSpec:
    """Whatever Gymnasium makes of the id, with its own time limit; its score is the return itself."""
    import gymnasium
    from gymnasium.spaces import Box

    with explained(name):
        env = gymnasium.make(name.removeprefix(GYM))
    observed, acted = env.observation_space, env.action_space
    horizon = env.spec.max_episode_steps if env.spec else None
    env.close()
    if not isinstance(observed, Box) or not isinstance(acted, Box) or len(observed.shape) != 1 or len(acted.shape) != 1:
        raise ConfigError(f"{name}: states and actions must be vectors of numbers, not {observed} and {acted}")
    if not acted.is_bounded():
        raise ConfigError(f"{name}: its actions must have bounds, not {acted}")
    if not horizon:
        raise ConfigError(f"{name} has no time limit: its episodes may never end", "register it with max_episode_steps")
    return EnvSpec(
        name,
        "gymnasium:make",
        observed.shape[0],
        acted.shape[0],
        horizon,
        random_score=0.0,
        expert_score=100.0,
        action_range=(acted.low.astype(np.float32), acted.high.astype(np.float32)),
        kwargs={"id": name.removeprefix(GYM)},
    )


def _load(reference: str) -> Any:
    module, attribute = reference.split(":")
    return getattr(importlib.import_module(module), attribute)


def make(name: str, **kwargs: Any) -> gymnasium.Env:
    """A new environment with its time limit, e.g. `make("hopper", render_mode="rgb_array")`."""
    from gymnasium.wrappers import TimeLimit

    refuse_without_simulator(name)
    entry = spec(name)
    return TimeLimit(_load(entry.entry_point)(**entry.kwargs, **kwargs), entry.horizon)


def refuse_without_simulator(name: str) -> None:
    """Refuse what only recordings are known of."""
    if not spec(name).entry_point:
        raise ConfigError(f"there is no simulator of {name}: its data are recordings alone")


def demonstrator(name: str) -> Callable[[int, int], dict[str, np.ndarray]] | None:
    """The task's scripted controller, one whole episode a call, or None where the task has none."""
    reference = spec(name).demonstrator
    return _load(reference) if reference else None


def success(name: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """The task's own success test on raw observations, or None where the task has none."""
    reference = spec(name).success
    return _load(reference) if reference else None
