"""Data from the simulator: episodes in parallel processes, each seeded by its number, so that any number of workers
gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.data import ROW_COLUMNS, Transitions
from smodice_cli.envs import registry
from smodice_cli.errors import InputError, UsageError, nearest
from smodice_cli.parallel import ordered_map

BATCH = 8  # episodes a worker makes at a time
BUILT_IN = ("random", "demonstrator")  # who acts without a policy file
POLICIES = Path(__file__).parent / "policies"


def episodes(name: str, seed: int, workers: int, *, first: int = 0, limit: int | None = None) -> Iterator[Transitions]:
    """Blocks of episodes from number `first` on, `limit` of them or without end; `name` is as in `sim:NAME`."""
    check(name)  # fail here, before any process starts
    if limit is None:
        tasks: Iterator[tuple[int, int]] = ((number, BATCH) for number in count(first, BATCH))
    else:
        tasks = ((number, min(BATCH, first + limit - number)) for number in range(first, first + limit, BATCH))
        workers = min(workers, -(-limit // BATCH))
    yield from ordered_map(partial(_batch, name, seed), tasks, workers)


def behaviour(name: str) -> tuple[str, str]:
    """Split `hopper-random`, `hopper-expert`, `hopper-medium`, `pointmass-4direction` or `hopper@policy.safetensors`.

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
    stems = sorted(path.stem for path in POLICIES.glob("*.safetensors"))
    known = [f"{env}-random" for env in registry.SPECS]
    known += [f"{stem}-expert" if stem in registry.SPECS else stem for stem in stems]
    env, _, kind = name.rpartition("-")
    if registry.known(env) and kind == "random":
        registry.spec(env)
        return env, "random"
    if env in registry.SPECS and kind in ("expert", "medium"):
        shipped = POLICIES / f"{env if kind == 'expert' else name}.safetensors"
        if not shipped.is_file():
            raise InputError(
                f"there is no {kind} policy for {env}",
                f"train one: smodice train-expert {env}, then use sim:{env}@FILE",
            )
        return env, str(shipped)
    if name.startswith(registry.GYM):
        raise UsageError(f"who acts in {name}?", f"sim:{name}-random, or sim:{name}@FILE for a policy")
    raise UsageError(f"nothing to simulate under the name '{name}'", nearest(name, [*known, *registry.SPECS]))


def check(name: str) -> str:
    """Refuse a name that cannot be simulated, a policy for another body included; returns the environment."""
    env, who = behaviour(name)
    if who in BUILT_IN:
        return env
    spec = registry.spec(env)
    policy, absorbing, body = _policy(who)
    if body not in ("", env):
        raise InputError(f"policy {who} was trained for {body}, not for {env}")
    shape = (policy.obs_dim - absorbing, policy.act_dim)
    if shape != (spec.obs_dim, spec.act_dim):
        raise InputError(
            f"policy {who} takes {shape[0]} observations and gives {shape[1]} actions, "
            f"but {env} has {spec.obs_dim} and {spec.act_dim}"
        )
    return env


def _batch(name: str, seed: int, task: tuple[int, int]) -> Transitions:
    first, number = task
    parts = [_episode(name, seed, index) for index in range(first, first + number)]
    columns = {column: np.concatenate([part[column] for part in parts]) for column in ROW_COLUMNS}
    lengths = [len(part["observations"]) for part in parts]
    return Transitions(**columns, offsets=np.concatenate([[0], np.cumsum(lengths)]))


def _episode(name: str, seed: int, number: int) -> dict[str, np.ndarray]:
    env, who = behaviour(name)
    if who == "demonstrator":
        demonstrate = registry.demonstrator(env)
        assert demonstrate is not None
        return demonstrate(seed, number)
    policy, absorbing, _ = (None, False, "") if who == "random" else _policy(who)
    return rollout(_environment(env), policy, np.random.SeedSequence([seed, number]), absorbing=absorbing)


@cache
def _environment(env: str) -> Any:
    return registry.make(env)


@cache
def _policy(path: str) -> tuple[NumpyPolicy, bool, str]:
    """A policy, whether it expects the absorbing indicator, and its environment where the file says so."""
    policy = NumpyPolicy.load(path)
    try:
        metrics = artifacts.read_header(Path(path)).metrics
    except InputError:  # a policy from elsewhere: the tensors alone
        return policy, False, ""
    return policy, bool(metrics.get("absorbing", False)), str(metrics.get("env", ""))


def rollout(
    env: Any, policy: NumpyPolicy | None, seed: np.random.SeedSequence, *, absorbing: bool = False
) -> dict[str, np.ndarray]:
    """One episode of a sampled policy, or of uniform actions where the policy is None."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    low, high = env.action_space.low, env.action_space.high
    states, actions, rewards = [np.asarray(observation, np.float32)], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        if policy is None:
            action = rng.uniform(low, high)
        else:
            action = policy.act(np.append(states[-1], 0.0) if absorbing else states[-1], rng)
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
