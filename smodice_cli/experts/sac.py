"""SBX's soft actor-critic: its settings, its model, and its networks as the project's tensors and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from smodice_cli import artifacts, envs
from smodice_cli.algos.acting import LOG_STD_RANGE
from smodice_cli.errors import ConfigError, InputError, UsageError, nearest

Tensors = dict[str, np.ndarray]
ACTOR_LAYERS = ("body.0", "body.2", "mean", "log_std")  # SBX's Dense_0 to Dense_3


@dataclass(frozen=True)
class Settings:
    """Soft actor-critic's settings, chosen for the return reached per minute of one core."""

    hidden: int = 64  # units of each of the actor's two hidden layers
    critic_hidden: int = 128
    learning_rate: float = 1e-3
    batch_size: int = 128
    environments: int = 8  # stepped together, which shares the cost of asking the actor
    updates_per_step: float = 0.5  # more data is cheaper than more updates: a step costs a fifth of one
    policy_delay: int = 2  # critic updates per actor update, the more expensive of the two
    random_steps: int = 5_000
    anneal_from: float = 0.7  # of the run; from there the learning rate falls to a twentieth
    entropy_per_action: float = -1.0
    final_entropy_per_action: float = -1.5  # reached at the end: the data's policy needs less noise than exploration
    noise: float = 1.0  # factor on the exported policy's standard deviation
    evaluations: int = 30


def parse_settings(hidden: int, assignments: Sequence[str]) -> Settings:
    """`learning_rate=7e-4` and the like over the defaults."""
    known = get_type_hints(Settings)
    values: dict[str, Any] = {"hidden": hidden}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise ConfigError(f"--set {text}: expected KEY=VALUE with a known key", nearest(name, list(known)))
        try:
            values[name] = known[name](value)
        except ValueError as error:
            raise ConfigError(f"--set {text}: {value} is not {known[name].__name__}") from error
    return Settings(**values)


def new_model(env_name: str, steps: int, seed: int, settings: Settings) -> Any:
    """A new SBX model on float32 observations, its actor clamped as the policy file is read."""
    from gymnasium.wrappers import DtypeObservation

    try:
        from sbx import SAC
        from sbx.common.policies import SquashedGaussianActor
        from stable_baselines3.common.vec_env import DummyVecEnv
    except ImportError as error:
        raise UsageError("training experts needs SBX", "pip install smodice[experts]") from error

    low, high = LOG_STD_RANGE
    environments = DummyVecEnv([lambda: DtypeObservation(envs.make(env_name), np.float32)] * settings.environments)
    rounds = max(1, 32 // settings.environments)
    return SAC(
        "MlpPolicy",
        environments,
        learning_rate=lambda remaining: settings.learning_rate * (1.0 - 0.95 * _late(settings, remaining)),
        buffer_size=min(steps, 1_000_000),
        learning_starts=settings.random_steps,
        batch_size=settings.batch_size,
        # Many updates in one call cost far less than one by one; 32 steps between updates do no harm.
        train_freq=rounds,
        gradient_steps=max(1, round(rounds * settings.environments * settings.updates_per_step)),
        policy_delay=settings.policy_delay,
        seed=seed,
        policy_kwargs={
            "net_arch": {"pi": [settings.hidden] * 2, "qf": [settings.critic_hidden] * 2},
            "actor_class": partial(SquashedGaussianActor, log_std_min=low, log_std_max=high),
        },
    )


def _late(settings: Settings, remaining: float) -> float:
    """How far the final phase has come, 0 before it and 1 at the end."""
    return min(1.0, max(0.0, (1.0 - remaining - settings.anneal_from) / (1.0 - settings.anneal_from)))


def callback(model: Any, steps: int, settings: Settings, visit: Callable[[int], None]) -> Callable[..., bool]:
    """SBX's callback: anneals the entropy target and calls `visit` at evenly spaced steps and at the end."""
    every = max(1, steps // settings.evaluations)
    actions = model.env.action_space.shape[0]
    upcoming: float = min(settings.random_steps + every, steps)

    def each_step(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        nonlocal upcoming
        done = model.num_timesteps
        late = _late(settings, 1.0 - done / steps)
        per_action = (1.0 - late) * settings.entropy_per_action + late * settings.final_entropy_per_action
        model.target_entropy = actions * per_action
        if done >= upcoming:
            upcoming = min(upcoming + every, steps) if done < steps else float("inf")
            visit(done)
        return True

    return each_step


def policy_tensors(model: Any, noise: float = 1.0) -> Tensors:
    """The actor of an SBX model as the project's policy tensors, its standard deviation times `noise`."""
    layers = model.policy.actor_state.params["params"]
    space = model.env.action_space
    obs_dim = model.env.observation_space.shape[0]
    tensors = {
        "normaliser.mean": np.zeros(obs_dim),
        "normaliser.std": np.ones(obs_dim),
        "action_low": space.low,
        "action_high": space.high,
    }
    for index, name in enumerate(ACTOR_LAYERS):
        layer = layers[f"Dense_{index}"]
        tensors[f"{name}.weight"] = np.asarray(layer["kernel"]).T
        tensors[f"{name}.bias"] = np.asarray(layer["bias"])
    tensors["log_std.bias"] = tensors["log_std.bias"] + np.log(noise)
    return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}


def state_tensors(model: Any) -> Tensors:
    """Everything a later training starts from: the policy, both critics, their targets and the temperature."""
    from flax.traverse_util import flatten_dict

    critic = model.policy.qf_state
    trees = {"critic": critic.params, "target": critic.target_params, "temperature": model.ent_coef_state.params}
    return policy_tensors(model) | {name: np.array(leaf) for name, leaf in flatten_dict(trees, sep="/").items()}


def restore(model: Any, policy_file: Path) -> None:
    """Start from a policy file, and from the critics in the training state beside it where there is one.

    Critics that start from nothing spoil a good policy before they learn to judge it, so the state is worth keeping.
    """
    import jax.numpy as jnp
    from flax.traverse_util import unflatten_dict

    beside = state_path(policy_file)
    source = beside if beside.exists() else policy_file
    tensors = artifacts.read_any(source).arrays
    expected = state_tensors(model)
    for name, tensor in tensors.items():
        if name not in expected or expected[name].shape != tensor.shape:
            raise InputError(f"{source} does not fit: {name} is {tensor.shape}", "use the sizes it was trained with")
    # A policy with a normaliser is the same policy on raw observations once its first layer absorbs it.
    first = tensors["body.0.weight"] / tensors["normaliser.std"]
    bias = tensors["body.0.bias"] - first @ tensors["normaliser.mean"]
    folded = {**tensors, "body.0.weight": first, "body.0.bias": bias}
    layers = {
        f"Dense_{index}": {
            "kernel": jnp.asarray(folded[f"{name}.weight"].T),
            "bias": jnp.asarray(folded[f"{name}.bias"]),
        }
        for index, name in enumerate(ACTOR_LAYERS)
    }
    policy = model.policy
    policy.actor_state = policy.actor_state.replace(params={"params": layers})
    if source == beside:
        flat = {name: jnp.asarray(tensor) for name, tensor in tensors.items() if "/" in name}
        trees = unflatten_dict(flat, sep="/")
        policy.qf_state = policy.qf_state.replace(params=trees["critic"], target_params=trees["target"])
        model.ent_coef_state = model.ent_coef_state.replace(params=trees["temperature"])


def state_path(policy_file: Path) -> Path:
    """Where the training state of a policy file lies."""
    return policy_file.with_suffix(".state.safetensors")
