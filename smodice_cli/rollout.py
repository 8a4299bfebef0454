"""The one episode loop: simulated data, scores, films and the training of experts all act through it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from smodice_cli import envs
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.lazy import np

DRAWN = 32  # uniform actions at a time


class Step(NamedTuple):
    """One action and what came of it; observations are float32, which is what data hold and policies read."""

    action: np.ndarray
    observation: np.ndarray
    reward: float
    terminated: bool  # the task ended here
    over: bool  # the episode did, by that or by the time limit
    info: dict[str, Any]


@cache
def environment(name: str) -> Any:
    """The one environment of that name that the episodes of this process share."""
    return envs.make(name)


def seeded(seed: int, number: int) -> tuple[np.random.Generator, int]:
    """The generator of episode `number` and the environment's own seed, drawn from it.

    Any number of processes gives the same episodes, since nothing but these two numbers enters.
    """
    rng = np.random.default_rng([seed, number])
    return rng, int(rng.integers(2**31))


def begin(
    env: Any, policy: NumpyPolicy | None, rng: np.random.Generator | None, seed: int, *, absorbing: bool = False
) -> tuple[np.ndarray, Iterator[Step]]:
    """Reset the environment; returns its first observation and the steps of the episode, made as they are asked for.

    Without a policy, actions are uniform; without a generator, the policy's mode. A policy that knows the `absorbing`
    state expects its indicator, which is 0 all through an episode.
    """
    observation, _ = env.reset(seed=seed)
    first = np.array(observation, np.float32)
    return first, _steps(env, first, policy, rng, absorbing)


def _steps(
    env: Any, observation: np.ndarray, policy: NumpyPolicy | None, rng: np.random.Generator | None, absorbing: bool
) -> Iterator[Step]:
    drawn, over = _uniform_actions(env.action_space, rng), False
    while not over:
        if policy is not None:
            action = policy.act(np.append(observation, 0.0) if absorbing else observation, rng)
        else:
            action = next(drawn)
        observation, reward, terminated, truncated, info = env.step(action)
        observation, over = np.array(observation, np.float32), terminated or truncated
        yield Step(action, observation, reward, terminated, over, info)


def _uniform_actions(space: Any, rng: np.random.Generator | None) -> Iterator[np.ndarray]:
    """Actions without end, drawn many at a time."""
    assert rng is not None, "uniform actions are drawn"
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    while True:
        yield from (low + (high - low) * rng.random((DRAWN, len(low)))).astype(np.float32)
