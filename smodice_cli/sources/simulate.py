"""Data from the simulator: episodes in parallel processes, each seeded by its number, so that any number of workers
gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.data import ROW_COLUMNS, Transitions
from smodice_cli.envs import registry
from smodice_cli.errors import InputError, UsageError, nearest
from smodice_cli.parallel import ordered_map

BATCH = 16  # episodes a worker makes at a time
POLICIES = Path(__file__).parent / "policies"


def episodes(name: str, seed: int, workers: int) -> Iterator[Transitions]:
    """An endless stream of blocks of episodes; `name` is as in `sim:NAME`."""
    behaviour(name)  # fail here, before any process starts
    yield from ordered_map(partial(_batch, name, seed), count(0, BATCH), workers)


def behaviour(name: str) -> tuple[str, str]:
    """Split `hopper-random`, `hopper-expert`, `pointmass-4direction` or `hopper@my-policy.safetensors`.

    Returns the environment and who acts in it: `demonstrator`, `random` or the path of a policy file.
    """
    env, at, path = name.partition("@")
    if at:
        registry.spec(env)
        if not Path(path).is_file():
            raise InputError(f"policy {path} does not exist")
        return env, path
    if name in registry.SPECS and registry.SPECS[name].demonstrator:
        return name, "demonstrator"
    known = [f"{env}-{kind}" for env in registry.SPECS for kind in ("random", "expert")]
    env, _, kind = name.rpartition("-")
    if env in registry.SPECS and kind == "random":
        return env, "random"
    if env in registry.SPECS and kind == "expert":
        shipped = POLICIES / f"{env}.safetensors"
        if not shipped.is_file():
            raise InputError(f"there is no expert policy for {env}", f"train one: smodice train-expert {env}")
        return env, str(shipped)
    raise UsageError(f"nothing to simulate under the name '{name}'", nearest(name, [*known, *registry.SPECS]))


def _batch(name: str, seed: int, first: int) -> Transitions:
    parts = [_episode(name, seed, number) for number in range(first, first + BATCH)]
    columns = {column: np.concatenate([part[column] for part in parts]) for column in ROW_COLUMNS}
    lengths = [len(part["observations"]) for part in parts]
    return Transitions(**columns, offsets=np.concatenate([[0], np.cumsum(lengths)]))


def _episode(name: str, seed: int, number: int) -> dict[str, np.ndarray]:
    env, who = behaviour(name)
    if who == "demonstrator":
        demonstrate = registry.demonstrator(env)
        assert demonstrate is not None
        return demonstrate(seed, number)
    simulator = _environment(env)
    policy = None if who == "random" else _policy(who)
    return rollout(simulator, policy, np.random.SeedSequence([seed, number]))


@cache
def _environment(env: str) -> Any:
    return registry.make(env)


@cache
def _policy(path: str) -> NumpyPolicy:
    return NumpyPolicy.load(path)


def rollout(env: Any, policy: NumpyPolicy | None, seed: np.random.SeedSequence) -> dict[str, np.ndarray]:
    """One episode of a sampled policy, or of uniform actions where the policy is None."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    low, high = env.action_space.low, env.action_space.high
    states, actions, rewards = [np.asarray(observation, np.float32)], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = rng.uniform(low, high) if policy is None else policy.act(states[-1], rng)
        action = np.asarray(action, np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        states.append(np.asarray(observation, np.float32))
        actions.append(action)
        rewards.append(reward)
    last = np.arange(len(actions)) == len(actions) - 1
    return {
        "observations": np.asarray(states[:-1]),
        "actions": np.asarray(actions),
        "rewards": np.asarray(rewards, np.float32),
        "next_observations": np.asarray(states[1:]),
        "terminals": last & terminated,
        "timeouts": last & (not terminated),
    }
