"""The whole algorithm in memory is what the stages do with a file between each two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from smodice_cli import artifacts
from smodice_cli.algos import discriminator, dual, smodice
from smodice_cli.algos.clone import CloneLearner
from smodice_cli.algos.nets import Discriminator
from smodice_cli.data import Dataset
from smodice_cli.errors import DivergedError
from smodice_cli.training import fit

SMALL = {"steps": 40, "hidden": 16, "batch": 16}


def test_imitate_equals_the_stages(finished_run: Path) -> None:
    data = Dataset.of(artifacts.load(finished_run / "dataset.h5", "dataset"))
    configs = (discriminator.Config(**SMALL), dual.Config(**SMALL), smodice.Config(**SMALL))
    try:
        torch.set_flush_denormal(True)  # as the stages do
        weights, policy = smodice.imitate(data, *configs)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(weights, artifacts.load(finished_run / "weights.h5", "weights").arrays["w"])
    stored = artifacts.load(finished_run / "policy.safetensors", "policy").arrays
    for name, tensor in policy.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), stored[name])


def test_a_discriminator_says_once_what_it_thinks_of_every_row(finished_run: Path) -> None:
    """train-value and inspect read R from its artifact."""
    data = Dataset.of(artifacts.load(finished_run / "dataset.h5", "dataset"))
    arrays = artifacts.load(finished_run / "disc.safetensors", "disc").arrays
    net = Discriminator.of(arrays)
    expected = discriminator.reward_of(net, np.asarray(data["observations"])).numpy()
    np.testing.assert_allclose(arrays["reward"], expected, atol=1e-6)
    stored = artifacts.load(finished_run / "weights.h5", "weights").arrays["reward"]
    np.testing.assert_array_equal(stored, arrays["reward"])
    expert = discriminator.reward_of(net, np.asarray(data["expert/observations"])).numpy()
    np.testing.assert_allclose(arrays["expert_reward"], expert, atol=1e-6)


def test_a_learner_trains_on_plain_arrays_without_files() -> None:
    """And says so where it diverges."""
    rng = np.random.default_rng(0)
    states, actions = rng.normal(size=(50, 3)).astype(np.float32), np.zeros((50, 2), np.float32)
    arrays = {"mean": np.zeros(3, np.float32), "std": np.ones(3, np.float32)}
    arrays |= {"action_low": -np.ones(2, np.float32), "action_high": np.ones(2, np.float32)}
    data = Dataset(arrays, "made up", [0, 1, 2], False, ["a"])

    def learner(lr: float) -> CloneLearner:
        from smodice_cli.algos.clone import Config, new_policy

        generator = torch.Generator().manual_seed(0)
        config = Config(steps=200, hidden=8, batch=16, lr=lr)
        policy = new_policy(data, 8, generator)
        return CloneLearner(policy, states, actions, np.ones(50), config, generator, torch.device("cpu"))

    quiet = learner(0.01)
    assert fit(quiet) == 200
    assert float(quiet.kept.mode(torch.from_numpy(states)).detach().abs().mean()) < 0.2
    with pytest.raises(DivergedError, match="nothing was written"):
        fit(learner(1e38))
