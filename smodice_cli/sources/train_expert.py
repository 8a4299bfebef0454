"""Train an expert with SBX's soft actor-critic and export it as the project's policy file.

The data sets are sampled from the stochastic policy, as D4RL's were, so that is what is evaluated and selected; the
selection prefers policies that do well in every episode to ones that sometimes do better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.algos.acting import LOG_STD_RANGE, NumpyPolicy
from smodice_cli.artifacts import Header
from smodice_cli.envs import registry
from smodice_cli.errors import ConfigError, InputError, UsageError, nearest

if TYPE_CHECKING:
    import gymnasium

STAGE = "train-expert"
Tensors = dict[str, np.ndarray]
Progress = Callable[[int, dict[str, float]], None]

ACTOR_LAYERS = ("body.0", "body.2", "mean", "log_std")  # SBX's Dense_0 to Dense_3
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
    kinds = {"int": int, "float": float}
    known = {field.name: kinds[str(field.type)] for field in fields(Settings)}
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


def train_expert(
    env_name: str,
    out: Path,
    *,
    steps: int = 1_000_000,
    seed: int = 0,
    start: Path | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Train on `env_name`, keep the best policy in `out`, and return its evaluation on fresh episodes.

    Beside `out` a `.state.safetensors` file holds the latest networks, critics included: `start` takes a policy file
    and uses the state beside it where there is one.
    """
    settings = settings or Settings()
    model = _model(env_name, steps, seed, settings)
    if start is not None:
        restore(model, start)
    config = {
        "env": env_name,
        "algorithm": "SAC (sbx)",
        "command": _command(env_name, out, steps, seed, start, settings),
        **asdict(settings),
    }
    keeper = _Keeper(env_name, out, Header("policy", STAGE, config, seed), progress)
    state_header = Header("training-state", STAGE, config, seed)

    def visit(step: int) -> None:
        keeper.consider(policy_tensors(model, settings.noise), step)
        _write(state_path(out), state_header, state_tensors(model))

    model.learn(steps, callback=_each_step(model, steps, settings, visit))
    return keeper.finish()


class _Keeper:
    """Keeps the best policy so far in a file that is complete at any moment."""

    def __init__(self, env_name: str, out: Path, header: Header, progress: Progress | None) -> None:
        self.env = registry.make(env_name)
        self.out, self.header, self.progress = out, header, progress
        self.best: tuple[Tensors, int, Evaluation] | None = None
        self.began = time.monotonic()

    def consider(self, tensors: Tensors, step: int) -> None:
        """Screen the policy on a few episodes and, if it may be the best, on enough to know."""
        policy = NumpyPolicy(tensors)
        screened = evaluate(self.env, policy, SCREENING_EPISODES, SCREENING_SEED)
        best_score = self.best[2].score if self.best else -np.inf
        if screened.score > best_score:
            full = evaluate(self.env, policy, SELECTION_EPISODES, SELECTION_SEED)
            if full.score > best_score:
                self.best = (tensors, step, full)
                self._export(full)
        if self.progress:
            best_mean = self.best[2].mean if self.best else float("nan")
            self.progress(step, {"return": screened.mean, "mode": screened.deterministic_mean, "best": best_mean})

    def finish(self) -> Evaluation:
        """Evaluate the best policy on episodes that had no part in choosing it and store those figures."""
        if self.best is None:
            raise RuntimeError("no policy was evaluated")
        final = evaluate(self.env, NumpyPolicy(self.best[0]), FINAL_EPISODES, FINAL_SEED)
        self._export(final)
        return final

    def _export(self, evaluation: Evaluation) -> None:
        assert self.best is not None
        tensors, step, _ = self.best
        env = self.header.config["env"]
        metrics = {"env": env, "absorbing": False, "steps": step, "evaluation": asdict(evaluation)}
        seconds = time.monotonic() - self.began
        _write(self.out, replace(self.header, metrics=metrics, seconds=seconds), tensors)


def evaluate(env: gymnasium.Env, policy: NumpyPolicy, episodes: int, seed: int) -> Evaluation:
    """Returns of the sampled policy over seeded episodes, and the mode's over a quarter as many."""
    rng = np.random.default_rng(seed)
    sampled = [_episode(env, policy, seed + index, rng) for index in range(episodes)]
    mode = [_episode(env, policy, seed + index, None) for index in range(max(1, episodes // 4))]
    returns = np.array([total for total, _, _ in sampled])
    lengths = np.array([length for _, length, _ in sampled])
    return Evaluation(
        episodes=episodes,
        mean=float(returns.mean()),
        std=float(returns.std()),
        min=float(returns.min()),
        max=float(returns.max()),
        deterministic_mean=float(np.mean([total for total, _, _ in mode])),
        mean_length=float(lengths.mean()),
        saturated_share=float(sum(at_bound for _, _, at_bound in sampled) / lengths.sum() / policy.act_dim),
    )


def _episode(
    env: gymnasium.Env, policy: NumpyPolicy, seed: int, rng: np.random.Generator | None
) -> tuple[float, int, int]:
    """Return, length and number of action coordinates at a bound of one episode."""
    bound = SATURATED * np.asarray(env.action_space.high)  # type: ignore[attr-defined]
    obs, _ = env.reset(seed=seed)
    total, length, at_bound, over = 0.0, 0, 0, False
    while not over:
        action = policy.act(obs, rng)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        length += 1
        at_bound += int(np.count_nonzero(np.abs(action) > bound))
        over = terminated or truncated
    return total, length, at_bound


def _model(env_name: str, steps: int, seed: int, settings: Settings) -> Any:
    """A new SBX model on float32 observations, its actor clamped as the policy file is read."""
    try:
        from sbx import SAC
        from sbx.common.policies import SquashedGaussianActor
        from stable_baselines3.common.vec_env import DummyVecEnv
    except ImportError as error:
        raise UsageError("training experts needs SBX", "pip install smodice[experts]") from error

    low, high = LOG_STD_RANGE
    environments = DummyVecEnv([partial(_float32_env, env_name)] * settings.environments)
    rounds = max(1, 32 // settings.environments)
    return SAC(
        "MlpPolicy",
        environments,
        learning_rate=partial(_learning_rate, settings),
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


def _float32_env(env_name: str) -> gymnasium.Env:
    from gymnasium.wrappers import DtypeObservation

    return DtypeObservation(registry.make(env_name), np.float32)


def _late(settings: Settings, remaining: float) -> float:
    """How far the final phase has come, 0 before it and 1 at the end."""
    return min(1.0, max(0.0, (1.0 - remaining - settings.anneal_from) / (1.0 - settings.anneal_from)))


def _learning_rate(settings: Settings, remaining: float) -> float:
    return settings.learning_rate * (1.0 - 0.95 * _late(settings, remaining))


def _each_step(model: Any, steps: int, settings: Settings, visit: Callable[[int], None]) -> Callable[..., bool]:
    """SBX's callback: anneals the entropy target and calls `visit` at evenly spaced steps and at the end."""
    every = max(1, steps // settings.evaluations)
    actions = model.env.action_space.shape[0]
    upcoming: float = min(settings.random_steps + every, steps)

    def callback(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        nonlocal upcoming
        done = model.num_timesteps
        late = _late(settings, 1.0 - done / steps)
        per_action = (1.0 - late) * settings.entropy_per_action + late * settings.final_entropy_per_action
        model.target_entropy = actions * per_action
        if done >= upcoming:
            upcoming = min(upcoming + every, steps) if done < steps else float("inf")
            visit(done)
        return True

    return callback


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
    trees = {
        "critic": critic.params,
        "target": critic.target_params,
        "temperature": model.ent_coef_state.params,
    }
    flat = {
        f"{group}/{name}": np.array(leaf)
        for group, tree in trees.items()
        for name, leaf in flatten_dict(tree, sep="/").items()
    }
    return {**policy_tensors(model), **flat}


def restore(model: Any, policy_file: Path) -> None:
    """Start from a policy file, and from the critics in the training state beside it where there is one.

    Critics that start from nothing spoil a good policy before they learn to judge it, so the state is worth keeping.
    """
    beside = state_path(policy_file)
    source = beside if beside.exists() else policy_file
    tensors = artifacts.read_any(source).arrays
    expected = state_tensors(model)
    for name, tensor in tensors.items():
        if name not in expected or expected[name].shape != tensor.shape:
            raise InputError(f"{source} does not fit: {name} is {tensor.shape}", "use the sizes it was trained with")
    _restore_actor(model, tensors)
    if source == beside:
        _restore_critics(model, tensors)


def _restore_actor(model: Any, tensors: Tensors) -> None:
    import jax.numpy as jnp

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
    model.policy.actor_state = model.policy.actor_state.replace(params={"params": layers})


def _restore_critics(model: Any, tensors: Tensors) -> None:
    import jax.numpy as jnp
    from flax.traverse_util import unflatten_dict

    def tree(group: str) -> Any:
        prefix = f"{group}/"
        flat = {name.removeprefix(prefix): jnp.asarray(t) for name, t in tensors.items() if name.startswith(prefix)}
        return unflatten_dict(flat, sep="/")

    model.policy.qf_state = model.policy.qf_state.replace(params=tree("critic"), target_params=tree("target"))
    model.ent_coef_state = model.ent_coef_state.replace(params=tree("temperature"))


def state_path(policy_file: Path) -> Path:
    """Where the training state of a policy file lies."""
    return policy_file.with_suffix(".state.safetensors")


def _command(env_name: str, out: Path, steps: int, seed: int, start: Path | None, settings: Settings) -> str:
    """The command line that repeats this training; settings appear where they differ from the defaults."""
    words = [f"smodice {STAGE} {env_name} --out {out.name} --steps {steps} --seed {seed} --hidden {settings.hidden}"]
    words += [f"--from {start.name}"] if start else []
    defaults = asdict(Settings(hidden=settings.hidden))
    words += [f"--set {name}={value}" for name, value in asdict(settings).items() if value != defaults[name]]
    return " ".join(words)


def _write(path: Path, header: Header, tensors: Tensors) -> None:
    import torch

    artifacts.write_safetensors(path, header, {name: torch.tensor(array) for name, array in tensors.items()})
