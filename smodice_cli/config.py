"""Configuration as data: one frozen dataclass per stage, presets, `--set`, and the check of every value.

A stage sees only its own section, so its cache key depends only on the settings it reads; of [policy], only on those
that its algorithm reads. `recipes` reads the TOML files that settings come from.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from smodice_cli.errors import ConfigError, nearest
from smodice_cli.methods import CLONING, METHODS, TD3, TRAJECTORIES, WEIGHTED, Algorithm


def setting(default: Any, help: str, *, algos: tuple[str, ...] = (), rare: bool = False, **limits: float) -> Any:
    """A field with its meaning and limits (`gt`, `ge`, `lt`, `le`), shown by `smodice settings`.

    `algos` names the algorithms that read it, where not all do; a `rare` one is stored only where it is not the
    default, so that it leaves the artifacts of everybody else alone.
    """
    return field(default=default, metadata={"help": help, "algos": algos, "rare": rare, **limits})


@dataclass(frozen=True)
class DatasetConfig:
    """build-dataset: which states and transitions."""

    env: str = setting("", "environment the policy is for: one that `smodice envs` lists, gym:ID or data")
    offline: tuple[str, ...] = setting((), "offline sources, e.g. sim:pointmass-4direction#50000")
    expert: tuple[str, ...] = setting((), "expert sources: states only, actions are not read")
    expert_dims: str = setting("", "state dimensions that expert and imitator share, e.g. 0:2 or 0,1,5")
    absorbing: bool = setting(False, "add an absorbing state (indicator dimension) that terminal rows lead to")
    expert_actions: bool = setting(
        False, "also read the expert's actions, which only demodice and bc-expert-only may see", rare=True
    )


@dataclass(frozen=True)
class DiscConfig:
    """train-disc: R(s) = log d^E/d^O by a classifier (Eq. 9)."""

    inputs: Literal["state", "state-action"] = setting(
        "state", "what is told apart: states, or states with actions (demodice)", rare=True
    )
    loss: Literal["cross-entropy", "wasserstein"] = setting(
        "cross-entropy", "Eq. 9, or the difference of means under the gradient penalty (sail)", rare=True
    )
    steps: int = setting(4000, "gradient steps", gt=0)
    batch: int = setting(256, "expert states and offline states per step", gt=0, le=1 << 20)
    lr: float = setting(3e-4, "Adam's learning rate", gt=0)
    hidden: int = setting(256, "units in each of the two hidden layers", gt=0, le=1 << 14)
    gradient_penalty: float = setting(10.0, "weight of (|grad logit| - 1)^2 on mixed states; 0 is the paper", ge=0)
    prior: float = setting(
        0.0, "share of expert-like states in the offline data for the nnPU loss; 0 is Eq. 9", ge=0, lt=1
    )
    holdout: float = setting(0.1, "share of the states kept out of training to measure the AUC on", ge=0, lt=1)
    freeze_first_layer: bool = setting(False, "leave the first layer as initialised (what the official code does)")


@dataclass(frozen=True)
class ValueConfig:
    """train-value: the Lagrangian value function on the Fenchel dual (Eq. 14) and its weights (Eq. 15)."""

    algo: Literal["smodice", "demodice", "demodice-sd"] = setting("smodice", "whose V it is", rare=True)
    estimator: Literal["dual", "returns"] = setting("dual", "V on the dual, or TAILO's value-free trajectory weights")
    f: Literal["kl", "chi2", "soft-chi2", "chi2-untruncated", "auto"] = setting(
        "kl", "the divergence D_f(d || d^O); auto asks select-f"
    )
    gamma: float = setting(0.99, "discount", gt=0, lt=1)
    alpha: float = setting(0.3, "strength of the regulariser per step; 1 is the paper", gt=0)
    cap: float = setting(10_000.0, "bound on the ratio xi; 0 means none", ge=0)
    normaliser: bool = setting(True, "learn the multiplier of E[xi] = 1 beside V")
    n_step: int = setting(50, "rows in a segment; 1 is the paper", gt=0)
    sampling: Literal["uniform", "discounted"] = setting("discounted", "rows uniformly, or in proportion to gamma^t")
    terminal: Literal["absorb", "zero", "bootstrap"] = setting(
        "absorb", "after a terminal row: its end state forever, nothing (V = 0), or V of the end state, a dead end"
    )
    timeout: Literal["bootstrap", "drop"] = setting(
        "bootstrap",
        "segments that end at a time limit: go on from V of their end state, or have no part and no weight",
    )
    steps: int = setting(3000, "gradient steps", gt=0)
    batch: int = setting(256, "segments per step", gt=0, le=1 << 20)
    initial_batch: int = setting(32, "initial states per step; the paper uses as many as transitions", gt=0, le=1 << 20)
    lr: float = setting(3e-4, "Adam's learning rate", gt=0)
    schedule: Literal["constant", "cosine"] = setting("cosine", "learning rate over the steps")
    weight_decay: float = setting(0.0, "L2 penalty on V's weights and the normaliser", ge=0)
    hidden: int = setting(256, "units in each of the two hidden layers", gt=0, le=1 << 14)
    scale: float = setting(10.0, "V = scale x network", gt=0)
    holdout: float = setting(0.1, "share of the trajectories kept out of training to watch the objective", ge=0, lt=1)
    patience: int = setting(0, "checks without a better held-out objective before stopping; 0 never stops", ge=0)


@dataclass(frozen=True)
class PolicyConfig:
    """train-policy: weighted behaviour cloning (Eq. 16), or one of the paper's baselines."""

    algo: Algorithm = setting("smodice", "how the policy is learned", rare=True)  # noqa: RUF009 (a field, as below)
    loss: Literal["nll", "mse"] = setting(
        "mse", "likelihood of the tanh-Gaussian, or squared error of tanh(mean)", algos=CLONING
    )
    sampling: Literal["weights", "uniform"] = setting(
        "weights", "draw rows from d* (in proportion to the weights), or uniformly and weight the loss", algos=WEIGHTED
    )
    steps: int = setting(30_000, "gradient steps", gt=0)
    batch: int = setting(256, "transitions per step", gt=0, le=1 << 20)
    lr: float = setting(1e-3, "Adam's learning rate; the TD3 algorithms have the paper's 3e-4", gt=0)
    schedule: Literal["constant", "cosine"] = setting("cosine", "learning rate over the steps", algos=CLONING)
    average: float = setting(
        0.999,
        "decay of the moving average of the weights that is kept; 0 keeps the last",
        algos=CLONING,
        ge=0,
        lt=1,
    )
    holdout: float = setting(
        0.0,
        "share of the trajectories kept out of training to watch the loss",
        algos=TRAJECTORIES,
        rare=True,
        ge=0,
        lt=1,
    )
    patience: int = setting(
        0, "checks without a lower held-out loss before stopping; 0 never stops", algos=TRAJECTORIES, rare=True, ge=0
    )
    hidden: int = setting(256, "units in each of the two hidden layers", gt=0, le=1 << 14)
    snapshots: int = setting(10, "policies kept over the training, for eval's return curve", ge=0)
    entropy: bool = setting(
        False, "keep the policy's entropy at -|A| with a learned temperature (loss nll only)", algos=CLONING
    )
    gamma: float = setting(0.99, "discount of the critics", algos=TD3, gt=0, lt=1)
    tau: float = setting(5e-3, "share of the networks that their targets take over", algos=TD3, gt=0, le=1)
    policy_noise: float = setting(0.2, "deviation of the noise on the target's action", algos=TD3, ge=0)
    noise_clip: float = setting(0.5, "bound on that noise", algos=TD3, ge=0)
    policy_every: int = setting(2, "critic steps for each step of the policy and the targets", algos=TD3, gt=0)
    bc_alpha: float = setting(2.5, "weight of the critic against cloning", algos=TD3, ge=0)
    terminal: Literal["absorb", "zero"] = setting(
        "absorb", "after a terminal row: the end state's reward forever, or nothing", algos=("oril", "sail")
    )
    prior: float = setting(
        10.0, "weight of the inverse model's actions on the expert's transitions", algos=("sail",), ge=0
    )


@dataclass(frozen=True)
class EvalConfig:
    """eval: episodes of the policy in the simulator."""

    episodes: int = setting(20, "episodes", gt=0)
    stochastic: bool = setting(False, "sample actions instead of taking tanh(mean)")
    curve_episodes: int = setting(10, "episodes of each of the policy's snapshots; 0 leaves the curve out", ge=0)


SECTIONS: dict[str, type] = {
    "dataset": DatasetConfig,
    "disc": DiscConfig,
    "value": ValueConfig,
    "policy": PolicyConfig,
    "eval": EvalConfig,
}

# Settings of the paper (its tables) and of its published code; everything not named keeps our default.
_PLAIN_DUAL: dict[str, Any] = {
    "estimator": "dual",
    "f": "chi2-untruncated",
    "alpha": 1.0,
    "cap": 0.0,
    "normaliser": False,
    "n_step": 1,
    "sampling": "uniform",
    "timeout": "bootstrap",
    "schedule": "constant",
    "scale": 1.0,
    "holdout": 0.0,
    "steps": 1_000_000,
}
_PLAIN_CLONING: dict[str, Any] = {
    "loss": "nll",
    "sampling": "uniform",
    "schedule": "constant",
    "average": 0.0,
    "steps": 1_000_000,
}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "disc": {"gradient_penalty": 0.0, "holdout": 0.0},
        "value": {**_PLAIN_DUAL, "initial_batch": 256, "terminal": "bootstrap"},
        "policy": {**_PLAIN_CLONING, "lr": 3e-5},
    },
    "official": {
        "disc": {"gradient_penalty": 10.0, "freeze_first_layer": True, "holdout": 0.0},
        "value": {**_PLAIN_DUAL, "batch": 512, "initial_batch": 512, "weight_decay": 1e-4, "terminal": "zero"},
        "policy": {**_PLAIN_CLONING, "batch": 512, "lr": 3e-4, "entropy": True},
    },
}

Settings = dict[str, dict[str, Any]]
BY_ALGORITHM = ("disc", "value", "policy")  # sections in which an algorithm may have its own


def refuse_unread(policy: Mapping[str, Any], algos: Sequence[str]) -> None:
    """Refuse a setting of [policy] that none of these algorithms reads."""
    for f in dataclasses.fields(PolicyConfig):
        readers = f.metadata["algos"]
        if f.name in policy and readers and not set(readers) & set(algos):
            raise ConfigError(f"policy.{f.name} is not read by {', '.join(algos)}", f"only by {', '.join(readers)}")


def preset(name: str) -> Settings:
    """A named set of settings; the empty name is our defaults."""
    if not isinstance(name, str) or (name and name not in PRESETS):
        raise ConfigError(f"unknown preset '{name}'", nearest(str(name), list(PRESETS)))
    return PRESETS[name] if name else {}


def merge(*layers: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Later layers win, key by key, in the subsections of algorithms too."""
    merged: Settings = {}
    for layer in layers:
        for section, values in layer.items():
            target = merged.setdefault(section, {})
            for key, value in values.items():
                target[key] = {**target.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


def parse_assignments(assignments: Sequence[str], section: str | None = None) -> Settings:
    """`value.gamma=0.98` (or `gamma=0.98` where one section is meant) as settings; values are TOML.

    `policy.td3bc.steps=1000` is for one algorithm.
    """
    settings: Settings = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected KEY=VALUE, e.g. --set value.gamma=0.98")
        where, dot, key = name.strip().rpartition(".")
        where, _, algo = (where if dot else (section or "")).partition(".")
        if where not in SECTIONS:
            raise ConfigError(f"--set {text}: unknown section '{where}'", nearest(where, list(SECTIONS)))
        if section and where != section:
            raise ConfigError(f"--set {text}: this stage reads only [{section}]")
        if algo:
            check_own_section(f"--set {text}", where, algo)
        if key in METHODS:
            raise ConfigError(f"--set {text}: {key} is an algorithm", f"a setting of it: {where}.{key}.SETTING=VALUE")
        target = settings.setdefault(where, {})
        (target.setdefault(algo, {}) if algo else target)[key] = found = _toml_value(value.strip())
        if isinstance(found, dict):
            raise ConfigError(f"--set {text}: expected a single value, not a table")
    return settings


def check_own_section(where: str, section: str, algo: str) -> None:
    """Refuse settings for one algorithm in a section that does not have them, or that it has no stage for."""
    if section not in BY_ALGORITHM:
        raise ConfigError(f"{where}: expected a single value, not a table")
    if algo not in METHODS:
        raise ConfigError(f"{where}: unknown algorithm '{algo}'", nearest(algo, list(METHODS)))
    if section not in (*METHODS[algo].stages, "policy"):
        raise ConfigError(f"{where}: {algo} has no train-{section}")


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word, e.g. --set value.f=kl


def build(section: str, values: Mapping[str, Any]) -> Any:
    """The frozen config of one section, every value checked for its type and range."""
    cls = SECTIONS[section]
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    checked = {}
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(f"unknown setting '{section}.{key}'", nearest(key, list(fields)))
        checked[key] = _check(f"{section}.{key}", value, hints[key], fields[key].metadata)
    if section == "policy":
        refuse_unread(checked, [checked.get("algo", "smodice")])
    return cls(**checked)


def check_together(config: Any) -> None:
    """Refuse settings that only contradict each other."""
    if isinstance(config, DiscConfig):
        bounded = config.gradient_penalty > 0 and not config.prior
        if config.loss == "wasserstein" and not bounded:
            raise ConfigError("disc.loss = wasserstein needs disc.gradient_penalty above 0 and disc.prior = 0")
    if isinstance(config, ValueConfig):
        if 0 < config.cap <= 1:
            raise ConfigError(f"value.cap must be above 1 (the mean ratio is one), or 0 for none, got {config.cap}")
        if config.patience and not config.holdout:
            raise ConfigError("value.patience needs value.holdout: it stops on the objective of trajectories held out")
    if isinstance(config, PolicyConfig):
        if config.entropy and config.loss != "nll":
            raise ConfigError("policy.entropy needs policy.loss = nll: squared error has no spread to constrain")
        if config.patience and not config.holdout:
            raise ConfigError("policy.patience needs policy.holdout: it stops on the loss of trajectories held out")


def check_ends(value: ValueConfig) -> None:
    """Refuse a V that asks a discriminator of states with actions for the reward of an end."""
    if value.terminal == "absorb" or value.estimator == "returns":
        raise ConfigError(
            "a discriminator of states with actions gives an end state, where nobody acts, no reward",
            "--set value.terminal=zero with the dual",
        )


def _check(name: str, value: Any, hint: Any, limits: Mapping[str, Any]) -> Any:
    origin = typing.get_origin(hint)
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            raise ConfigError(f"{name} = {value!r} is not one of {', '.join(map(str, allowed))}")
        return value
    if origin is tuple:
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
            raise ConfigError(f"{name} must be a list of strings, not {json.dumps(value, default=str)}")
        return tuple(items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise ConfigError(f"{name} = {value!r} must be of type {hint.__name__}")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{name} = {value} is out of range: it must be finite")
    tests = {"gt": ("above", value.__gt__), "ge": ("at least", value.__ge__)} if hint in (int, float) else {}
    tests |= {"lt": ("below", value.__lt__), "le": ("at most", value.__le__)} if hint in (int, float) else {}
    for limit, (words, holds) in tests.items():
        if limit in limits and not holds(limits[limit]):
            raise ConfigError(f"{name} = {value} is out of range: it must be {words} {limits[limit]:g}")
    return value


def as_dict(config: Any) -> dict[str, Any]:
    """A config as plain JSON values, as it is stored in headers: without what its algorithm does not read."""
    values = json.loads(json.dumps(dataclasses.asdict(config)))
    for f in dataclasses.fields(config):
        readers, rare = f.metadata.get("algos"), f.metadata.get("rare")
        if (readers and config.algo not in readers) or (rare and values[f.name] == f.default):
            del values[f.name]
    return values


def describe(section: str) -> list[tuple[str, str, str]]:
    """(setting, default, meaning) of a section, for `smodice settings`."""
    rows = []
    for f in dataclasses.fields(SECTIONS[section]):
        default = json.dumps(f.default) if not isinstance(f.default, tuple) else "[]"
        hint = typing.get_type_hints(SECTIONS[section])[f.name]
        choices = f" ({' | '.join(typing.get_args(hint))})" if typing.get_origin(hint) is Literal else ""
        readers = f"; {', '.join(f.metadata['algos'])} only" if f.metadata["algos"] else ""
        rows.append((f"{section}.{f.name}", default, f.metadata["help"] + choices + readers))
    return rows
