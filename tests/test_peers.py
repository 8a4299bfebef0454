"""IQL, SEABO, TAILO and the oracle: their updates against other computations, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ENV, SMALL, digest, refuse, smodice, succeed
from numpy_nets import NumpyNet, of_linear, own, same_parameters
from recordings import write_file

from smodice_cli import artifacts, training
from smodice_cli.algos import ALGORITHMS, discriminator, iql, oracle, seabo
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError

CPU = torch.device("cpu")


def small_data(kind: type = np.float32) -> Dataset:
    """Twelve rows in three episodes, two of which end; the second is of another source."""
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(12, 3)),
        "next_observations": rng.normal(size=(12, 3)),
        "actions": rng.uniform(-2, 2, (12, 2)),
        "rewards": rng.normal(size=12),
        "terminals": np.isin(np.arange(12), (3, 11)).astype(np.uint8),
        "episode_offsets": np.array([0, 4, 9, 12]),
        "episode_source": np.array([0, 1, 0], np.int32),
        "expert/observations": rng.normal(size=(5, 3)),
        "expert/offsets": np.array([0, 2, 5]),
        "mean": np.array([0.5, -0.5, 0.0]),
        "std": np.array([2.0, 1.0, 0.5]),
        "action_low": np.full(2, -2.0),
        "action_high": np.full(2, 2.0),
    }
    arrays = {name: column.astype(kind) if column.dtype == np.float64 else column for name, column in arrays.items()}
    return Dataset(arrays, ENV, [0, 1, 2], False, ["a", "b"])


# --- IQL and SEABO ----------------------------------------------------------------------------------------------------


class Reference:
    """IQL in numpy, from the same numbers at random."""

    def __init__(self, learner: iql.IQLLearner) -> None:
        policy, self.c, self.data = learner.policy, learner.config, learner.data.arrays
        self.numbers = torch.Generator()
        self.numbers.set_state(learner.generator.get_state())
        self.actor = of_linear(policy.body[0], policy.body[2], policy.mean)
        self.value = of_linear(*learner.value.body[::2])
        weights, biases = own(*learner.critic.weights), own(*learner.critic.biases)
        self.critics = [NumpyNet([w[i] for w in weights], [b[i, 0] for b in biases]) for i in (0, 1)]
        self.targets = [q.copy() for q in self.critics]
        self.mean, self.std = own(policy.normaliser.mean, policy.normaliser.std)
        self.reward = self.rewards()

    def rewards(self) -> np.ndarray:
        data = self.data
        if self.c.algo == "iql":
            returns = [data["rewards"][a:b].sum() for a, b in ((0, 4), (4, 9), (9, 12))]
            return data["rewards"] * 1000 / (max(returns) - min(returns))
        expert = data["expert/observations"]
        pairs = [np.append(expert[k], expert[k + 1]) for k in (0, 2, 3)]
        rows = np.hstack([data["observations"], data["next_observations"]])
        nearest = [min(np.linalg.norm(row - pair) for pair in pairs) for row in rows]
        return np.array([self.c.scale * np.exp(-self.c.beta * d / 2) for d in nearest])

    def step(self, step: int) -> None:
        c, data = self.c, self.data
        rows = torch.randint(12, (c.batch,), generator=self.numbers).numpy()
        s, after = ((data[n][rows] - self.mean) / self.std for n in ("observations", "next_observations"))
        a = data["actions"][rows] / 2
        q = np.minimum(*(target.forward(np.hstack([s, a]))[:, 0] for target in self.targets))
        error = q - self.value.forward(s)[:, 0]
        slope = -2 * np.where(error < 0, 1 - c.expectile, c.expectile) * error / c.batch
        self.value.adam(self.value.backward(slope[:, None])[0], c.lr)
        advantage = q - self.value.forward(s)[:, 0]
        y = self.reward[rows] + c.gamma * (1 - data["terminals"][rows]) * self.value.forward(after)[:, 0]
        weights = np.minimum(np.exp(c.temperature * advantage), 100)
        acted = np.tanh(self.actor.forward(s))
        gradient = 2 * weights[:, None] * (acted - a) * (1 - acted**2) / c.batch
        self.actor.adam(self.actor.backward(gradient)[0], c.lr * 0.5 * (1 + np.cos(np.pi * step / c.steps)))
        for net, target in zip(self.critics, self.targets, strict=True):
            error = net.forward(np.hstack([s, a]))[:, 0] - y
            net.adam(net.backward(2 * error[:, None] / c.batch)[0], c.lr)
            target.follow(net, c.tau)


@pytest.mark.parametrize("algo", ["iql", "seabo"])
def test_updates_equal_an_independent_computation(algo: str) -> None:
    torch.set_default_dtype(torch.float64)
    given = {"gamma": 0.6, "batch": 6, "hidden": 5, "lr": 0.01, "tau": 0.125, "steps": 6, "temperature": 0.5}
    given |= {"beta": 0.8, "scale": 3.0} if algo == "seabo" else {}
    try:
        config, generator = ALGORITHMS[algo].Config(algo=algo, **given), torch.Generator().manual_seed(1)
        learner: Any = ALGORITHMS[algo].learner(small_data(np.float64), config, {}, generator, CPU)
        learner.reward = torch.from_numpy(learner.rewards())  # which training keeps as 32 bits
        expected = Reference(learner)
        np.testing.assert_allclose(learner.reward, expected.reward, rtol=1e-6)
        for step in range(5):
            for optimiser in learner.optimisers.values():
                optimiser.lr = config.lr  # as `fit` does
            learner.update(step)
            expected.step(step)
    finally:
        torch.set_default_dtype(torch.float32)
    same_parameters(of_linear(learner.policy.body[0], learner.policy.body[2], learner.policy.mean), expected.actor)
    same_parameters(of_linear(*learner.value.body[::2]), expected.value)
    for module, networks in ((learner.critic, expected.critics), (learner.critic_target, expected.targets)):
        weights, biases = own(*module.weights), own(*module.biases)
        for i, net in enumerate(networks):
            same_parameters(NumpyNet([w[i] for w in weights], [b[i, 0] for b in biases]), net)


def test_the_expectile_of_two_outcomes() -> None:
    """Of 0 and 1 with equal chances, the expectile tau is tau; the loss is least there."""
    values = torch.linspace(0, 1, 101, dtype=torch.float64)
    losses = [float(iql.expectile_loss(torch.tensor([0.0, 1.0]) - v, 0.7)) for v in values]
    assert values[int(np.argmin(losses))] == pytest.approx(0.7)
    weights = iql.policy_weights(torch.tensor([0.0, 1.0, 1000.0]), 3.0)
    np.testing.assert_allclose(weights, [1.0, np.exp(3.0), 100.0], rtol=1e-6)


def test_the_experts_own_transitions_have_no_distance() -> None:
    data = small_data()
    before, after = data.expert_transitions()
    data.arrays["observations"][:3], data.arrays["next_observations"][:3] = before, after
    assert (seabo.distances(data)[:3] == 0).all()
    assert (seabo.distances(data)[3:] > 0).all()


# --- TAILO ------------------------------------------------------------------------------------------------------------


def test_safe_negatives_are_the_trajectories_least_like_the_expert() -> None:
    data = small_data()
    config = discriminator.Config(prior=0.2, safe=0.5, steps=10, batch=4, hidden=4, holdout=0.0)
    learner = discriminator.DiscriminatorLearner(data, config, torch.Generator().manual_seed(0), CPU)
    with torch.no_grad():
        learner.net.body[4].bias += torch.tensor(0.5)
    for step in range(2):
        assert learner._offline_rows(step) is learner.offline_rows
        assert learner.prior == 0.2
        learner.update(step)
    reward = learner.rewards()[0].numpy()
    mean = [reward[a:b].mean() for a, b in ((0, 4), (4, 9), (9, 12))]
    before = learner.net.body[4].weight.clone()
    rows = learner._offline_rows(2)
    assert learner.prior == 0.0
    least = int(np.argmin(mean))  # the median itself is not below it
    expected = np.arange(data.offsets[least], data.offsets[least + 1])
    np.testing.assert_array_equal(np.sort(rows.numpy()), expected)
    assert not torch.equal(before, learner.net.body[4].weight), "the second begins anew"
    assert not any(moment.any() for moment in learner.optimiser.moments.values())
    learner.update(3)
    assert learner._offline_rows(4) is rows


def test_a_step_that_comes_to_learn_otherwise_is_not_recorded_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prior is a number of Python's, which a recording would keep for ever."""
    recorded = []
    monkeypatch.setattr(discriminator.DiscriminatorLearner, "record_on", lambda self, device: recorded.append(self))
    for safe, count in ((0.5, 0), (0.0, 1)):
        config = discriminator.Config(prior=0.2, safe=safe, steps=10, batch=4, hidden=4)
        discriminator.DiscriminatorLearner(small_data(), config, torch.Generator().manual_seed(0), CPU)
        assert len(recorded) == count


def test_a_single_trajectory_has_no_safe_negatives() -> None:
    data = small_data()
    data.arrays.update(episode_offsets=np.array([0, 12]), episode_source=np.zeros(1, np.int32))
    config = discriminator.Config(prior=0.2, safe=0.5, steps=2, batch=4, hidden=4)
    learner = discriminator.DiscriminatorLearner(data, config, torch.Generator().manual_seed(0), CPU)
    with pytest.raises(InputError, match="needs trajectories that differ"):
        training.fit(learner)


@pytest.mark.parametrize("stop", [100, 300])
def test_a_discriminator_with_safe_negatives_resumes(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before and after they are chosen, at step 200."""
    source = ("--offline", f"sim:{ENV}#600", "--expert", f"sim:{ENV}#success=20")
    succeed("build-dataset", "--env", ENV, *source, "--out", tmp_path / "dataset.h5")
    small = ("--data", tmp_path / "dataset.h5", "--algo", "tailo", "--steps", "1000", "--set", "hidden=4", *SMALL[2:])
    whole, stopped = (
        ["train-disc", *small, "--out", tmp_path / f"{name}.safetensors"] for name in ("whole", "stopped")
    )
    succeed(*whole)
    real = training._Log.write

    def write(log: Any, step: int, figures: dict[str, float]) -> None:
        real(log, step, figures)
        if step == stop:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training._Log, "write", write)
        assert smodice(*stopped, "--checkpoint-every", "0").code == 130
    assert f"resuming from step {stop - 1}" in succeed(*stopped).stderr
    assert digest(tmp_path / "whole.safetensors") == digest(tmp_path / "stopped.safetensors")


def test_tailos_settings_are_the_published_ones(tmp_path: Path) -> None:
    settings = ALGORITHMS["tailo"].defaults
    assert {name: settings["disc"][name] for name in ("prior", "safe")} == {"prior": 0.2, "safe": 0.8}
    published = {"estimator": "returns", "ceiling": 1.0, "gamma": 0.998, "alpha": 0.8}
    assert settings["value"] == published, "exp(R/alpha) is exp(1.25 R), however large R is"
    data = ("--data", tmp_path / "no.h5", "--set", "safe=0.5")
    assert "disc.safe needs disc.prior" in refuse(4, "train-disc", *data)


# --- the oracle -------------------------------------------------------------------------------------------------------


def test_the_oracle_clones_the_rows_of_the_best_source_alone() -> None:
    data = small_data()
    data.arrays["rewards"][:] = np.repeat(
        [1.0, 0.5, 5.0], [4, 5, 3]
    )  # returns 4, 2.5 and 15: the means are 9.5 and 2.5
    assert oracle.best_source(data) == 0
    for source, rows in (("", {0, 1, 2, 3, 9, 10, 11}), ("b", {4, 5, 6, 7, 8})):
        config = ALGORITHMS["oracle"].Config(algo="oracle", source=source, hidden=4, steps=1)  # type: ignore[call-arg]
        learner: Any = ALGORITHMS["oracle"].learner(data, config, {}, torch.Generator().manual_seed(0), CPU)
        assert {*learner.sample(500).tolist()} == rows


# --- what they cannot learn from --------------------------------------------------------------------------------------


def test_data_without_what_they_need_are_refused_before_anything_runs(tmp_path: Path) -> None:
    without = write_file(tmp_path / "a.hdf5", rewards=None)
    data, out = tmp_path / "d.h5", ("--out", tmp_path / "p.safetensors")
    given = ("--env", ENV, "--offline", f"file:{without}", "--expert", f"file:{without}#states=5")
    succeed("build-dataset", *given, "--out", data)
    algos = {
        "iql": (3, "iql learns from the data's rewards, but"),
        "seabo": (3, "needs trajectories of whole states"),
        "oracle": (4, "no rewards to tell the best source by"),
    }
    for algo, (code, said) in algos.items():
        assert said in refuse(code, "train-policy", "--algo", algo, "--data", data, *out)
    named = ("train-policy", "--algo", "oracle", "--data", data, *out, "--steps", "2", *SMALL, "--set")
    assert "there is no source 'b'" in refuse(4, *named, "source=b")
    assert "the rows of file:a.hdf5 alone" in succeed(*named, "source=file:a.hdf5").stderr
    assert json.dumps("file:a.hdf5") in json.dumps(artifacts.read_header(out[1]).config)
