"""Acting with a stored policy in plain numpy: quick for one observation at a time, and no torch to import."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path

from smodice_cli.errors import InputError
from smodice_cli.lazy import np

LOG_STD_RANGE = (-5.0, 2.0)
SNAPSHOT_STEPS = "steps"  # the tensor in a file of stacked snapshots that tells after which step each was taken

POLICY_TENSORS = (
    "normaliser.mean",
    "normaliser.std",
    "body.0.weight",
    "body.0.bias",
    "body.2.weight",
    "body.2.bias",
    "mean.weight",
    "mean.bias",
    "log_std.weight",
    "log_std.bias",
    "action_low",
    "action_high",
)


class NumpyPolicy:
    """A tanh-Gaussian policy with two hidden ReLU layers, or several of them; torch's names and layout of tensors."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        missing = [name for name in POLICY_TENSORS if name not in tensors]
        if missing:
            raise InputError(f"not a policy: it has no {', '.join(missing)}")
        if np.ndim(tensors["action_low"]) > 1:
            raise InputError("not a policy: it holds the snapshots of one")
        t = {name: np.asarray(tensors[name], np.float64) for name in POLICY_TENSORS}
        self._members, t = joined(t)
        # The normaliser is folded into the first layer and both heads are one product: fewer small calls.
        first = t["body.0.weight"] / t["normaliser.std"]
        head = np.concatenate([t["mean.weight"], t["log_std.weight"]])
        self._w1 = _input_major(first)
        self._b1 = (t["body.0.bias"] - first @ t["normaliser.mean"]).astype(np.float32)
        self._w2 = _input_major(t["body.2.weight"])
        self._b2 = t["body.2.bias"].astype(np.float32)
        self._w3 = _input_major(head)
        self._b3 = np.concatenate([t["mean.bias"], t["log_std.bias"]]).astype(np.float32)
        self._half_range = ((t["action_high"] - t["action_low"]) / 2).astype(np.float32)
        self._middle = ((t["action_high"] + t["action_low"]) / 2).astype(np.float32)
        self.obs_dim = len(t["normaliser.mean"])
        self.act_dim = len(t["action_low"])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NumpyPolicy:
        """The policy stored in a safetensors file."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        if not Path(path).is_file():
            raise InputError(f"{path} does not exist, or is no file")
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise InputError(f"{path} is not a safetensors file: {error}") from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:  # numpy has no bfloat16
            raise InputError(f"{path} holds numbers of a type that cannot be read ({error})") from error
        if others := {str(tensor.dtype) for tensor in tensors.values() if tensor.dtype.kind not in "biuf"}:
            raise InputError(f"{path} holds numbers of the type {others.pop()}", "save them as float32")
        try:
            return cls(tensors)
        except InputError as error:
            raise InputError(f"{path}: {error.message}") from error

    def without_indicator(self) -> NumpyPolicy:
        """The same policy for states without their last dimension, which is 0 (the mark of the absorbing state)."""
        found = copy.copy(self)
        found._w1, found.obs_dim = self._w1[:-1], self.obs_dim - 1
        return found

    def _side_by_side(self, x: np.ndarray) -> np.ndarray:
        """The second layer of several members: each sees its own units."""
        found = x.reshape(-1, self._members, x.shape[-1] // self._members).swapaxes(0, 1) @ self._w2
        return found.swapaxes(0, 1).reshape(*x.shape[:-1], -1)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """Actions for one observation (d,) or many (n, d): sampled with a generator, the mode without."""
        try:
            x = np.asarray(obs, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the policy takes states of {self.obs_dim} numbers, not {type(obs).__name__} of other things"
            ) from error
        if x.ndim not in (1, 2) or x.shape[-1] != self.obs_dim:
            took = f"({self.obs_dim},), or (N, {self.obs_dim}) for many"
            raise InputError(f"the policy takes states of {self.obs_dim} dimensions, {took}, not {x.shape}")
        if not np.isfinite(x).all():
            raise InputError("the state holds NaN or infinite numbers: there is no action for it")
        x = x @ self._w1
        x += self._b1
        np.maximum(x, 0.0, out=x)
        x = x @ self._w2 if self._members == 1 else self._side_by_side(x)
        x += self._b2
        np.maximum(x, 0.0, out=x)
        x = x @ self._w3
        x += self._b3
        action = x[..., : self.act_dim]
        if rng is not None:
            std = x[..., self.act_dim :]
            np.minimum(std, LOG_STD_RANGE[1], out=std)
            np.maximum(std, LOG_STD_RANGE[0], out=std)
            np.exp(std, out=std)
            std *= rng.standard_normal(std.shape, np.float32)
            action += std
        action = np.tanh(action)
        action *= self._half_range
        action += self._middle
        return action


def joined(t: Mapping[str, np.ndarray]) -> tuple[int, dict[str, np.ndarray]]:
    """How many members a policy has (D57), and its tensors as those of one network: their units side by side.

    The heads are the members' mean. The second layer, where a unit sees those of its own member alone, stays as it is.
    """
    _check(t)
    first, found = t["body.0.weight"], dict(t)
    if first.ndim == 2:
        return 1, found
    for name in ("body.0.weight", "body.0.bias", "body.2.bias"):
        found[name] = np.concatenate(t[name])
    for name in ("mean", "log_std"):
        found[f"{name}.weight"] = np.concatenate(t[f"{name}.weight"], axis=-1) / len(first)
        found[f"{name}.bias"] = t[f"{name}.bias"].mean(axis=0)
    return len(first), found


def _check(t: Mapping[str, np.ndarray]) -> None:
    """Refuse tensors whose shapes do not fit together, or that hold something else than numbers."""
    lead = t["body.0.weight"].shape[:-2]  # the members of an ensemble, of which there are two at least
    if len(lead) > 1 or lead in ((0,), (1,)):
        raise InputError(f"not a policy: body.0.weight has the shape {t['body.0.weight'].shape}")
    observed, acting = t["normaliser.mean"].shape[:1], t["action_low"].shape[:1]
    first, second = t["body.0.bias"].shape[-1:], t["body.2.bias"].shape[-1:]
    expected = {
        "normaliser.mean": observed or (1,),
        "normaliser.std": observed,
        "body.0.weight": lead + first + observed,
        "body.0.bias": lead + (first or (1,)),
        "body.2.weight": lead + second + first,
        "body.2.bias": lead + (second or (1,)),
        "mean.weight": lead + acting + second,
        "mean.bias": lead + acting,
        "log_std.weight": lead + acting + second,
        "log_std.bias": lead + acting,
        "action_low": acting or (1,),
        "action_high": acting,
    }
    for name, shape in expected.items():
        if t[name].shape != shape or 0 in shape:
            raise InputError(f"not a policy: {name} has the shape {t[name].shape}, where {shape} would fit the others")
    if not all(np.isfinite(tensor).all() for tensor in t.values()) or (t["normaliser.std"] <= 0).any():
        raise InputError("not a policy: it holds NaN or infinite numbers, or deviations that are not positive")


def _input_major(weight: np.ndarray) -> np.ndarray:
    """Torch (..., out, in) weights as contiguous float32 (..., in, out) matrices."""
    return np.ascontiguousarray(weight.swapaxes(-1, -2), np.float32)
