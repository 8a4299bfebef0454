"""The updates of --preset paper and --preset official, step by step, against the paper's equations in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy_nets import NumpyNet, of_linear, same_parameters

from smodice_cli import recipes
from smodice_cli.algos import dual, smodice
from smodice_cli.config import build
from smodice_cli.data import Dataset

GAMMA, STEPS, LR = 0.6, 6, 0.01
OFFSETS = np.array([0, 4, 8, 12])


def tiny_data() -> Dataset:
    """Three episodes of four rows; the first two end, the third is cut."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(12, 3))
    following = np.roll(states, -1, axis=0)
    following[OFFSETS[1:] - 1] = rng.normal(size=(3, 3))
    arrays = {
        "observations": states,
        "next_observations": following,
        "actions": rng.uniform(-1.9, 1.9, (12, 2)),
        "terminals": np.isin(np.arange(12), [3, 7]).astype(np.uint8),
        "timeouts": (np.arange(12) == 11).astype(np.uint8),
        "episode_offsets": OFFSETS,
        "mean": np.array([0.5, -0.5, 0.0]),
        "std": np.array([2.0, 1.0, 0.5]),
        "action_low": np.full(2, -2.0),
        "action_high": np.full(2, 2.0),
    }
    return Dataset(arrays, "hopper", [0, 1, 2], False, ["a"])


def settings(preset: str, section: str, kind: type, **changed: Any) -> Any:
    """The preset's own settings of a stage, at the size of this problem."""
    return build(kind, section, recipes.preset(preset)[section] | {"hidden": 5, "batch": 6, "lr": LR} | changed)


def scaled(data: Dataset, states: np.ndarray) -> np.ndarray:
    return (states - data["mean"]) / data["std"]


def decayed(net: NumpyNet, gradients: list[np.ndarray], weight_decay: float) -> list[np.ndarray]:
    return [g + weight_decay * p for g, p in zip(gradients, net.parameters, strict=True)]


def slope_of_conjugate(f: str, e: np.ndarray) -> np.ndarray:
    """What the second term of Eq. 14 weighs each residual by in a batch: e + 1 for chi2, the softmax for KL."""
    return (e + 1) / len(e) if f == "chi2-untruncated" else np.exp(e) / np.exp(e).sum()


@pytest.fixture(autouse=True)
def _double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("f", ["chi2-untruncated", "kl"])
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_the_value_function_takes_the_papers_steps(preset: str, f: str) -> None:
    """Eq. 14: (1-gamma) E[V(s0)] + E[f*(R + gamma V(s') - V(s))]; official: nothing follows a terminal row."""
    data, rng = tiny_data(), torch.Generator().manual_seed(3)
    config = settings(preset, "value", dual.Config, f=f, gamma=GAMMA, initial_batch=4)
    reward, ends = np.linspace(-1, 1, 12), np.zeros(3)
    problem = dual.set_up(data, reward, ends, config)
    value = dual.new_value(data, config, rng).double()
    learner = dual.ValueLearner(problem, value, rng, torch.device("cpu"))
    net, numbers = of_linear(*value.body[::2]), torch.Generator()
    numbers.set_state(rng.get_state())
    goes_on = 1.0 - data["terminals"] if preset == "official" else np.ones(12)
    for step in range(STEPS):
        starts = OFFSETS[:3][torch.randint(3, (4,), generator=numbers).numpy()]
        rows = torch.randint(12, (6,), generator=numbers).numpy()
        parts = data["observations"][rows], data["next_observations"][rows], data["observations"][starts]
        v, v_next, _ = np.split(net.forward(scaled(data, np.concatenate(parts)))[:, 0], [6, 12])
        slope = slope_of_conjugate(f, reward[rows] + GAMMA * goes_on[rows] * v_next - v)
        gradient = np.concatenate([-slope, GAMMA * goes_on[rows] * slope, np.full(4, (1 - GAMMA) / 4)])
        net.adam(decayed(net, net.backward(gradient[:, None])[0], 1e-4 if preset == "official" else 0.0), LR)
        learner.update(step)
    same_parameters(of_linear(*value.body[::2]), net)

    v, v_next = (net.forward(scaled(data, data[name]))[:, 0] for name in ("observations", "next_observations"))
    e = reward + GAMMA * goes_on * v_next - v
    xi = np.maximum(e + 1, 0) if f == "chi2-untruncated" else 12 * np.exp(e) / np.exp(e).sum()  # Eq. 15
    with torch.no_grad():
        said = (value(torch.from_numpy(data[name])).numpy() for name in ("observations", "next_observations"))
        found = dual.ratios(problem, *said, taught=learner.taught)
    np.testing.assert_allclose(found[:12], xi, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_the_policy_takes_the_papers_steps(preset: str) -> None:
    """Eq. 16: -E[xi log pi(a|s)]; official: with a temperature that keeps the entropy at -|A|."""
    data, rng = tiny_data(), torch.Generator().manual_seed(5)
    config = settings(preset, "policy", smodice.Config)
    w = np.linspace(0.0, 2.0, 12)
    learner: Any = smodice.SMODICE().learner(data, config, {"w": w}, rng, torch.device("cpu"))
    policy, numbers = learner.policy.double(), torch.Generator()
    net = of_linear(policy.body[0], policy.body[2], _heads(policy))
    temperature = NumpyNet([np.zeros(1)], [])
    numbers.set_state(rng.get_state())
    for step in range(STEPS):
        rows = torch.randint(12, (6,), generator=numbers).numpy()
        u = np.arctanh(data["actions"][rows] / 2)
        mean, log_std = np.split(net.forward(scaled(data, data["observations"][rows])), 2, axis=1)
        z, weight = (u - mean) / np.exp(log_std), w[rows][:, None] / w.mean() / 6
        by_mean, by_spread = -weight * z / np.exp(log_std), weight * (1 - z**2)
        if config.entropy:
            noise = torch.randn((6, 2), generator=numbers).numpy()
            x = mean + np.exp(log_std) * noise
            # -log pi(tanh x) = noise^2/2 + log_std + log(1 - tanh(x)^2) + const, whose slope in x is -2 tanh(x)
            entropy = (noise**2 / 2 + log_std + np.log(1 - np.tanh(x) ** 2) + np.log(2 * np.pi) / 2).sum(1).mean()
            strength = np.exp(temperature.parameters[0][0]) / 6
            by_mean = by_mean + strength * 2 * np.tanh(x)
            by_spread = by_spread - strength * (1 - 2 * np.tanh(x) * np.exp(log_std) * noise)
            temperature.adam([np.array([entropy + 2])], LR)
        net.adam(net.backward(np.hstack([by_mean, by_spread]))[0], LR)
        learner.update(step)
    same_parameters(of_linear(policy.body[0], policy.body[2], _heads(policy)), net)
    assert learner.kept is policy  # the last weights, not their average


def _heads(policy: Any) -> Any:
    """The two heads as one layer."""
    joint = torch.nn.Linear(5, 4)
    with torch.no_grad():
        joint.weight.copy_(torch.cat([policy.mean.weight, policy.log_std.weight]))
        joint.bias.copy_(torch.cat([policy.mean.bias, policy.log_std.bias]))
    return joint


def test_the_budgets_are_the_papers() -> None:
    for preset, batch in (("paper", 256), ("official", 512)):
        value = build(dual.Config, "value", recipes.preset(preset)["value"])
        policy = build(smodice.Config, "policy", recipes.preset(preset)["policy"])
        assert (value.steps, policy.steps, value.batch, policy.batch) == (1_000_000, 1_000_000, batch, batch)
        assert (value.lr, policy.lr) == (3e-4, 3e-5 if preset == "paper" else 3e-4)
