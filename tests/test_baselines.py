"""The paper's baselines: their losses against other computations, and each through the real command line."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ENV, OFFLINE, SMALL, TINY, digest, listing, refuse, smodice, succeed, write_recipe
from numpy_nets import NumpyNet, of_linear, own, same_parameters, sigmoid
from recordings import write_file

from smodice_cli import artifacts, config, recipes, sources, training
from smodice_cli.algos import ALGORITHMS, dual, oril, rce, sail, td3bc
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.algos.losses import importance_weights, value_loss, wasserstein_loss
from smodice_cli.algos.nets import Discriminator, initialise
from smodice_cli.algos.td3bc import TD3Learner
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError
from smodice_cli.stages import flag_of

# --- losses ----------------------------------------------------------------------------------------------------------


def test_the_losses_of_td3bc_by_hand() -> None:
    q = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    next_q = torch.tensor([[10.0, 7.0], [8.0, 9.0]])
    reward, discount = torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.0])  # the second row is terminal
    expected = ((1 - 5) ** 2 + (2 + 1) ** 2) / 2 + ((3 - 5) ** 2 + (5 + 1) ** 2) / 2  # targets 1 + 0.5 x 8 and -1
    assert float(td3bc.critic_loss(q, reward, discount, next_q)) == pytest.approx(expected)

    acted, cloned = torch.tensor([[0.5, 0.0], [-1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    first = torch.tensor([2.0, -4.0])  # mean |Q| is 3, mean Q is -1
    assert float(td3bc.policy_loss(first, acted, cloned, 2.5)) == pytest.approx(2.5 / 3 + (0.25 + 4) / 4)
    only_first = td3bc.policy_loss(first, acted, cloned, 2.5, torch.tensor([1.0, 0.0]))
    assert float(only_first) == pytest.approx(-2.5 + 0.25 / 2)
    assert float(td3bc.policy_loss(torch.zeros(2), acted, cloned, 2.5)) == pytest.approx(4.25 / 4), "cloning is left"
    noise = torch.tensor([[10.0, -1.0], [0.5, -10.0]])
    smoothed = td3bc.smoothed(torch.tensor([[0.8, 0.0], [0.0, 0.0]]), noise, 0.2, 0.5)
    torch.testing.assert_close(smoothed, torch.tensor([[1.0, -0.2], [0.1, -0.5]]))


def test_rces_loss_is_the_weighted_cross_entropy_of_its_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, success, following = (torch.randn(2, 5, generator=generator) for _ in range(3))
    gamma, c = 0.9, following.sigmoid().amin(0)
    w = c / (1 - c)
    y = gamma * w / (1 + gamma * w)
    expected = sum(
        F.binary_cross_entropy(logits[i].sigmoid(), y, weight=1 + gamma * w)
        + (1 - gamma) * F.binary_cross_entropy(success[i].sigmoid(), torch.ones(5))
        for i in (0, 1)
    )
    torch.testing.assert_close(rce.classifier_loss(logits, success, following, gamma), expected)


def test_rces_odds_stay_finite_where_the_classifier_is_certain() -> None:
    logits = torch.full((2, 3), 200.0, requires_grad=True)
    loss = rce.classifier_loss(logits, -logits, logits.detach(), 0.99)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_rces_loss_is_least_at_the_odds_of_its_bellman_equation() -> None:
    """States 0 -> 1 -> 1; a quarter of the rows start in 0, success is 1: w(1) = (1-g)/0.75 + g w(1), w(0) = g w(1)."""
    gamma, at_one = 0.9, 1 / 0.75
    solution = torch.tensor([gamma * at_one, at_one], dtype=torch.float64).log()
    table = solution.expand(2, 2).clone().requires_grad_()
    rows, following = torch.tensor([0, 1, 1, 1]), torch.tensor([1, 1, 1, 1])
    loss = rce.classifier_loss(table[:, rows], table[:, following], table.detach()[:, following], gamma)
    (gradient,) = torch.autograd.grad(loss, table)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-12)


def test_the_rewards_of_oril_and_sail() -> None:
    logits = torch.tensor([0.0, math.log(3.0)])
    torch.testing.assert_close(oril.reward(logits), torch.tensor([0.5, 0.75]))
    torch.testing.assert_close(sail.reward(torch.tensor([1.0, -1.0]), 0.5), torch.tensor([0.5, -1.5]))
    loss, _ = wasserstein_loss(torch.tensor([3.0, 5.0]), torch.tensor([1.0, 2.0]))
    assert float(loss) == pytest.approx(1.5 - 4.0)


def test_demodices_dual_is_that_of_its_paper() -> None:
    """(1-g) E[V0] + (1+a) log E[exp(A/(1+a))], with weights exp(A/(1+a)) normalised to mean 1."""
    for algo in ("demodice", "demodice-sd"):
        c = config.build(dual.Config, "value", ALGORITHMS[algo].defaults["value"])
        assert (c.estimator, c.f, c.n_step, c.cap, c.normaliser) == ("dual", "kl", 1, 0.0, False)
        assert (c.sampling, c.terminal, c.timeout, c.holdout, c.scale) == ("uniform", "zero", "bootstrap", 0.0, 1.0)
    assert ALGORITHMS["demodice"].defaults["disc"] == {"inputs": "state-action"}
    settings = ALGORITHMS["demodice"].defaults["value"]
    strength = settings["alpha"]
    assert strength == 1.05
    residual, initial = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([1.0, 2.0])
    loss, _ = value_loss(settings["f"], residual, initial, 0.99, strength)
    a = residual.numpy().astype(np.float64)
    assert float(loss) == pytest.approx(0.01 * 1.5 + strength * np.log(np.exp(a / strength).mean()), abs=1e-5)
    weights = np.exp(a / strength)
    np.testing.assert_allclose(importance_weights("kl", residual, strength), weights / weights.mean(), rtol=1e-5)


# --- updates of TD3+BC, and of what is built on it, in numpy ---------------------------------------------------------


TD3 = ("td3bc", "oril", "sail", "rce")
EXPERT_PHI = 0.3  # the mean of sail's critic on expert states


def small_problem(algo: str) -> tuple[TD3Learner, Discriminator]:
    """A learner on twelve rows, three of them terminal, one of which does not know where it ended."""
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(12, 3)),
        "next_observations": rng.normal(size=(12, 3)),
        "actions": rng.uniform(-2, 2, (12, 2)),
        "rewards": rng.normal(size=12),
        "terminals": (np.arange(12) % 4 == 3).astype(np.uint8),
        "expert/observations": rng.normal(size=(5, 3)),
        "expert/offsets": np.array([0, 2, 5]),
    }
    arrays["next_observations"][7] = arrays["observations"][7]
    arrays |= {"mean": np.array([0.5, -0.5, 0.0]), "std": np.array([2.0, 1.0, 0.5])}
    arrays |= {"action_low": np.full(2, -2.0), "action_high": np.full(2, 2.0)}
    given = {"gamma": 0.6, "batch": 6, "hidden": 5, "lr": 0.01, "tau": 0.125} | (
        {"prior": 3.0} if algo == "sail" else {}
    )
    settings = ALGORITHMS[algo].Config(algo=algo, **given)
    mean, std = (torch.from_numpy(arrays[name]) for name in ("mean", "std"))
    disc = Discriminator(mean, std, range(3), 4)
    generator = torch.Generator().manual_seed(1)
    initialise(disc, generator)
    upstream = {name: tensor.numpy() for name, tensor in disc.state_dict().items()}
    upstream |= {"reward": reward_of(disc, arrays["observations"]), "expert_reward": np.full(4, EXPERT_PHI)}
    dataset = Dataset(arrays, ENV, [0, 1, 2], False, ["a"])
    learner = ALGORITHMS[algo].learner(dataset, settings, upstream, generator, torch.device("cpu"))
    assert isinstance(learner, TD3Learner)
    return learner, disc


def reward_of(disc: Discriminator, states: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return disc(torch.from_numpy(states)).numpy()


class Reference:
    """The same learner in numpy, from the same numbers at random."""

    def __init__(self, learner: TD3Learner, disc: Discriminator) -> None:
        policy, self.c, self.data = learner.policy, learner.config, learner.data.arrays
        self.numbers = torch.Generator()
        self.numbers.set_state(learner.generator.get_state())
        self.actor = of_linear(policy.body[0], policy.body[2], policy.mean)
        weights, biases = own(*learner.critic.weights), own(*learner.critic.biases)
        self.critics = [NumpyNet([w[i] for w in weights], [b[i, 0] for b in biases]) for i in (0, 1)]
        self.actor_target, self.critic_targets = self.actor.copy(), [q.copy() for q in self.critics]
        self.inverse = of_linear(*learner.inverse.body[:6:2]) if isinstance(learner, sail.SAILLearner) else None
        self.mean, self.std = own(policy.normaliser.mean, policy.normaliser.std)
        self.reward = self.rewards(of_linear(*disc.body[::2]))

    def scaled(self, states: np.ndarray) -> np.ndarray:
        return (states - self.mean) / self.std

    def rewards(self, disc: NumpyNet) -> np.ndarray:
        def logit(states: np.ndarray) -> np.ndarray:
            x = self.scaled(states)
            for layer in (0, 1):
                x = np.tanh(x @ disc.parameters[layer] + disc.parameters[3 + layer])
            return (x @ disc.parameters[2] + disc.parameters[5])[:, 0]

        ends, forever = self.data["terminals"] == 1, 1 / (1 - self.c.gamma)
        if self.c.algo == "oril":
            now, then = (sigmoid(logit(self.data[n])) for n in ("observations", "next_observations"))
            return now + ends * self.c.gamma * forever * then
        if self.c.algo == "sail":
            then = logit(self.data["next_observations"]) - EXPERT_PHI
            return np.where(ends, forever * then, then)
        return self.data["rewards"]

    def draw(self, among: int) -> np.ndarray:
        return torch.randint(among, (self.c.batch,), generator=self.numbers).numpy()

    def step(self, step: int) -> None:
        c, data, rows = self.c, self.data, self.draw(12)
        noise = torch.randn((c.batch, 2), generator=self.numbers).numpy()
        s, after = self.scaled(data["observations"][rows]), self.scaled(data["next_observations"][rows])
        a = data["actions"][rows] / 2
        shift = np.clip(c.policy_noise * noise, -c.noise_clip, c.noise_clip)
        next_a = np.clip(np.tanh(self.actor_target.forward(after)) + shift, -1, 1)
        beyond = np.minimum(*(q.forward(np.hstack([after, next_a]))[:, 0] for q in self.critic_targets))
        if c.algo == "rce":
            self.classify(s, a, beyond)
        else:
            y = self.reward[rows] + c.gamma * (1 - data["terminals"][rows]) * beyond
            for q in self.critics:
                error = q.forward(np.hstack([s, a]))[:, 0] - y
                q.adam(q.backward(2 * error[:, None] / c.batch)[0], c.lr)
        if self.inverse:
            moves = (rows != 7)[:, None]
            found = np.tanh(self.inverse.forward(np.hstack([s, after - s])))
            self.inverse.adam(self.inverse.backward(moves * (found - a) * (1 - found**2) / moves.sum())[0], c.lr)
        if step % 2 == 1:
            self.improve(s, a)

    def classify(self, s: np.ndarray, a: np.ndarray, beyond: np.ndarray) -> None:
        c, odds = self.c, np.exp(beyond)
        examples = self.scaled(self.data["expert/observations"][self.draw(5)])
        acted = np.tanh(self.actor_target.forward(examples))
        for q in self.critics:
            logit = q.forward(np.hstack([s, a]))
            negative = q.backward((sigmoid(logit) - c.gamma * odds[:, None] * sigmoid(-logit)) / c.batch)[0]
            logit = q.forward(np.hstack([examples, acted]))
            positive = q.backward(-(1 - c.gamma) * sigmoid(-logit) / c.batch)[0]
            q.adam([n + p for n, p in zip(negative, positive, strict=True)], c.lr)

    def improve(self, s: np.ndarray, a: np.ndarray) -> None:
        c, first = self.c, self.critics[0]
        acted = np.tanh(self.actor.forward(s))
        q = first.forward(np.hstack([s, acted]))
        worth, slope = (sigmoid(q), sigmoid(q) * sigmoid(-q)) if c.algo == "rce" else (q, np.ones_like(q))
        through = first.backward(-c.bc_alpha / np.abs(worth).mean() * slope / c.batch)[1][:, 3:]
        gradients = self.actor.backward((through + (acted - a) / c.batch) * (1 - acted**2))[0]
        if self.inverse:
            expert, some = self.scaled(self.data["expert/observations"]), np.array([0, 2, 3])[self.draw(3)]
            before, then = expert[some], expert[some + 1]
            wanted = np.tanh(self.inverse.forward(np.hstack([before, then - before])))
            acted = np.tanh(self.actor.forward(before))
            more = self.actor.backward(c.prior * (acted - wanted) / c.batch * (1 - acted**2))[0]
            gradients = [g + m for g, m in zip(gradients, more, strict=True)]
        self.actor.adam(gradients, c.lr)
        self.actor_target.follow(self.actor, c.tau)
        for target, net in zip(self.critic_targets, self.critics, strict=True):
            target.follow(net, c.tau)


@pytest.mark.parametrize("algo", TD3)
def test_updates_equal_an_independent_computation(algo: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        learner, disc = small_problem(algo)
        expected = Reference(learner, disc)
        for step in range(5):
            learner.update(step)
            expected.step(step)
    finally:
        torch.set_default_dtype(torch.float32)
    for module, net in ((learner.policy, expected.actor), (learner.policy_target, expected.actor_target)):
        same_parameters(of_linear(module.body[0], module.body[2], module.mean), net)
    for module, nets in ((learner.critic, expected.critics), (learner.critic_target, expected.critic_targets)):
        weights, biases = own(*module.weights), own(*module.biases)
        for i, net in enumerate(nets):
            same_parameters(NumpyNet([w[i] for w in weights], [b[i, 0] for b in biases]), net)
    if expected.inverse:
        same_parameters(of_linear(*learner.inverse.body[:6:2]), expected.inverse)


# --- the command line ------------------------------------------------------------------------------------------------

HOPPER_EXPERT = "sim:hopper-expert#traj=0"


@pytest.fixture(scope="module")
def with_actions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with expert actions, and the discriminators and values that the algorithms start from."""
    run = tmp_path_factory.mktemp("baselines")
    build = ("build-dataset", "--env", "hopper", "--offline", "sim:hopper-random#400", "--expert", HOPPER_EXPERT)
    succeed(*build, "--set", "expert_actions=true", "--out", run / "dataset.h5")
    small = ("--steps", "5", *SMALL)
    for algo in ("smodice", "sail", "demodice", "tailo"):
        out = run / f"{algo}.disc.safetensors"
        succeed("train-disc", "--algo", algo, "--data", run / "dataset.h5", "--out", out, *small)
    for algo in ("smodice", "demodice", "demodice-sd", "tailo"):
        disc = "smodice" if algo == "demodice-sd" else algo
        out = run / f"{algo}.value.safetensors"
        succeed("train-value", "--algo", algo, "--disc", run / f"{disc}.disc.safetensors", "--out", out, *small)
    return run


def command(algo: str, run: Path, out: Path, steps: int = 1) -> list[str | Path]:
    """train-policy with an algorithm on its own starting point."""
    needs = ALGORITHMS[algo].starts_from
    disc = "sail" if algo == "sail" else "smodice"
    start = {"dataset": "dataset.h5", "disc": f"{disc}.disc.safetensors", "value": f"{algo}.value.safetensors"}[needs]
    return [
        "train-policy",
        "--algo",
        algo,
        f"--{flag_of(needs)}",
        run / start,
        "--out",
        out,
        "--steps",
        str(steps),
        *SMALL,
    ]


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_one_step_of_every_algorithm_gives_a_policy_that_acts(algo: str, with_actions: Path, tmp_path: Path) -> None:
    out = tmp_path / "policy.safetensors"
    succeed(*command(algo, with_actions, out))
    header = artifacts.read_any(out).header
    assert header.config["algo"] == algo
    assert ("tau" in header.config) == (algo in (*TD3, "iql", "seabo")), "what an algorithm does not read is not stored"
    score = succeed("eval", "--policy", out, "--episodes", "1", "--threads", "1", "--json").json["score"]
    assert score["episodes"] == 1
    assert succeed(*command(algo, with_actions, out), "--json").json["status"] == "cached"
    assert succeed("inspect", out, "--json").json["actions"]


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_a_resumed_baseline_equals_one_that_never_stopped(
    algo: str, with_actions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets included: the artifact is the policy, and later steps depend on all that a checkpoint holds."""
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole, stopped = (command(algo, with_actions, tmp_path / n / "p.safetensors", 230) for n in ("whole", "stopped"))
    succeed(*whole)
    real = training._Log.write

    def write(log: Any, step: int, figures: dict[str, float]) -> None:
        real(log, step, figures)
        if step == 100:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training._Log, "write", write)
        assert smodice(*stopped, "--checkpoint-every", "0").code == 130
    assert "resuming from step 99" in succeed(*stopped).stderr
    assert digest(tmp_path / "whole/p.safetensors") == digest(tmp_path / "stopped/p.safetensors")
    assert digest(tmp_path / "whole/p.snapshots.safetensors") == digest(tmp_path / "stopped/p.snapshots.safetensors")
    logs = [
        [json.loads(line) for line in (tmp_path / n / "p.log.jsonl").read_text().splitlines()]
        for n in ("whole", "stopped")
    ]
    assert logs[0] == logs[1]


def test_expert_pairs_are_the_states_the_actions_were_taken_in(with_actions: Path, tmp_path: Path) -> None:
    """The same trajectory as offline data holds state and action side by side."""
    build = ("build-dataset", "--env", "hopper", "--offline", "sim:hopper-expert#episodes=2", "--expert")
    path = tmp_path / "dataset.h5"
    succeed(*build, "sim:hopper-expert#episodes=2", "--set", "expert_actions=true", "--out", path)
    dataset = Dataset.of(artifacts.load(path, "dataset"))
    states, actions = dataset.expert_pairs()
    offsets = dataset["expert/offsets"]
    assert len(dataset["expert/observations"]) == offsets[-1] == len(actions) + 2, "two final states have no action"
    before, after = dataset.expert_transitions()
    np.testing.assert_array_equal(before, states)
    np.testing.assert_array_equal(after[:3], dataset["expert/observations"][1:4])
    assert not (dataset["expert/action_rows"] == offsets[1] - 1).any()

    rows = next(iter(sources.parse("sim:hopper-expert#episodes=2").episodes("hopper", 500_000, 1)))
    np.testing.assert_array_equal(actions, rows.actions)
    np.testing.assert_array_equal(states, rows.observations)


def test_without_expert_actions_demodice_refuses_and_says_why(finished_run: Path, tmp_path: Path) -> None:
    for arguments in (
        ("train-disc", "--algo", "demodice", "--data", finished_run / "dataset.h5"),
        ("train-policy", "--algo", "bc-expert-only", "--data", finished_run / "dataset.h5"),
    ):
        assert "holds no expert actions" in refuse(3, *arguments, "--out", tmp_path / "x.safetensors")
    recipe = write_recipe(tmp_path / "tiny.toml", TINY)
    said = refuse(4, "run", recipe, "--algo", "demodice", "--out", tmp_path / "run")
    assert "demodice learns from the expert's actions" in said
    assert not (tmp_path / "run").exists(), "refused before anything runs"
    build = ("build-dataset", "--env", ENV, "--offline", OFFLINE, "--expert", f"sim:{ENV}#success=20")
    said = refuse(3, *build, "--set", "expert_actions=true", "--out", tmp_path / "d.h5")
    assert "single states, which have no actions" in said


def test_the_wrong_starting_point_is_named(finished_run: Path, with_actions: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "p.safetensors")
    assert "smodice starts from --value" in refuse(2, "train-policy", *out)
    said = refuse(2, "train-policy", "--algo", "bc", "--value", finished_run / "value.safetensors", *out)
    assert "bc starts from --data, not from --value" in said
    said = refuse(3, "train-policy", "--algo", "demodice", "--value", finished_run / "value.safetensors", *out)
    assert "holds smodice's V, not demodice's" in said
    said = refuse(3, "train-policy", "--algo", "demodice-sd", "--value", finished_run / "value.safetensors", *out)
    assert "holds smodice's V, not demodice-sd's" in said
    said = refuse(3, "train-policy", "--value", with_actions / "demodice.value.safetensors", *out)
    assert "holds demodice's V, not smodice's" in said
    said = refuse(3, "train-policy", "--algo", "sail", "--disc", finished_run / "disc.safetensors", *out)
    assert "sail needs a discriminator with loss = wasserstein" in said
    said = refuse(3, "train-value", "--disc", with_actions / "demodice.disc.safetensors", *out)
    assert "smodice needs a discriminator with inputs = state" in said
    ends = ("--disc", with_actions / "demodice.disc.safetensors", "--set", "terminal=absorb")
    assert "where nobody acts" in refuse(4, "train-value", "--algo", "demodice", *ends, *out)
    assert "unknown algorithm 'bcc'" in refuse(4, "train-policy", "--algo", "bcc", *out)


def test_a_setting_that_the_algorithm_does_not_read_is_refused(finished_run: Path, tmp_path: Path) -> None:
    data = ("--data", finished_run / "dataset.h5", "--out", tmp_path / "p.safetensors")
    assert "policy.tau is not read by bc" in refuse(4, "train-policy", "--algo", "bc", *data, "--set", "tau=0.1")
    assert "policy.average is not read by rce" in refuse(
        4, "train-policy", "--algo", "rce", *data, "--set", "average=0"
    )
    rows = succeed("settings", "policy", "--json").json
    assert rows["policy.tau"]["meaning"].endswith("td3bc, oril, sail, rce, iql, seabo only")


def test_settings_that_nothing_would_read_are_refused(tmp_path: Path) -> None:
    recipe = "pipelines/comparison/comparison-pointmass-4direction.toml"
    idle = ("--set", "policy.td3bc.steps=5", "--dry-run")
    assert "settings of td3bc, which does not run" in refuse(4, "run", recipe, "--algo", "bc", *idle)
    assert "bc has no train-value" in refuse(4, "run", recipe, "--set", "value.bc.gamma=0.5", "--dry-run")
    assert "td3bc is an algorithm" in refuse(4, "run", recipe, "--set", "policy.td3bc=5", "--dry-run")
    assert "wasserstein needs" in refuse(4, "run", recipe, "--set", "disc.sail.prior=0.1", "--dry-run")
    assert "trains one algorithm" in refuse(2, "train-policy", "--set", 'algo=["bc", "rce"]')
    own = tmp_path / "own.toml"
    own.write_text("[policy]\ntd3bc = 5\n")
    assert "must be a section of settings" in refuse(4, "run", own, "--dry-run")
    own.write_text('algo = "td3bc"\n[policy]\nlr = 1e-5\n')
    assert "td3bc has a policy.lr of its own" in refuse(4, "run", own, "--dry-run")
    only = ("run", recipe, "--dry-run", "--algo")
    assert "which bc, rce does not need" in refuse(4, *only, "bc, rce", "--set", "value.gamma=0.5")
    assert "oril needs disc.loss" in refuse(4, *only, "oril", "--set", "disc.loss=wasserstein")
    assert "two answers" in refuse(2, "train-policy", "--algo", "bc", "--set", "algo=rce", "--data", recipe)


def test_a_recipe_is_read_for_the_algorithms_that_run(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "r.toml", TINY)
    recipe.write_text(recipe.read_text().replace("[policy]", "[policy]\ntau = 0.01"))
    assert "policy.tau is not read by smodice" in refuse(4, "run", recipe, "--dry-run")
    succeed("run", recipe, "--algo", "td3bc", "--out", tmp_path / "run", "--dry-run")
    compare = "pipelines/comparison/comparison-pointmass-4direction.toml"
    succeed("run", compare, "--preset", "paper", "--out", tmp_path / "run", "--dry-run")


def test_settings_that_a_variant_would_not_read_are_refused(tmp_path: Path) -> None:
    recipe = "pipelines/comparison/comparison-pointmass-4direction.toml"
    (tmp_path / "v.toml").write_text("[slow.policy]\ntau = 0.5\n")
    variants = ("--algo", "smodice", "--variants", tmp_path / "v.toml", "--dry-run")
    assert "policy.tau is not read by smodice" in refuse(4, "run", recipe, *variants)


def test_what_other_algorithms_read_does_not_run_a_policy_again() -> None:
    """A setting that an algorithm does not read is no part of its config, nor of its cache key."""
    keys = {algo: config.as_dict(ALGORITHMS[algo].Config(algo=algo)) for algo in ALGORITHMS}
    assert "tau" not in keys["smodice"]
    assert ("prior" in keys["rce"], "prior" in keys["sail"]) == (False, True)
    assert ("sampling" in keys["smodice"], "sampling" in keys["bc"]) == (True, False)
    assert ("holdout" in keys["bc"], "holdout" in keys["bc-expert-only"]) == (True, False)


def test_settings_of_one_algorithm_lie_over_those_of_all(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        'algo = ["smodice", "td3bc", "demodice-sd"]\n[value]\nn_step = 7\nsteps = 9\n[value.demodice-sd]\nsteps = 11\n'
        "[policy]\nsteps = 5\naverage = 0.5\n[policy.td3bc]\nsteps = 6\n"
    )
    shared = recipes.read_recipe(path).settings
    chosen = recipes.parse_set(["policy.batch=3", "policy.td3bc.tau=0.5", "value.hidden=8"])
    built = {
        algo: recipes.configs(algo, recipes.for_algorithm(algo, shared, chosen))
        for algo in ("smodice", "td3bc", "demodice-sd")
    }
    assert (built["smodice"]["policy"].steps, built["smodice"]["policy"].average) == (5, 0.5)
    assert (built["td3bc"]["policy"].steps, built["td3bc"]["policy"].tau, built["td3bc"]["policy"].batch) == (6, 0.5, 3)
    assert (built["smodice"]["value"].n_step, built["smodice"]["value"].steps) == (7, 9)
    sd = built["demodice-sd"]["value"]
    assert (sd.n_step, sd.steps, sd.alpha, sd.hidden) == (1, 11, 1.05, 8), "the method's own come before the recipe's"
    path.write_text("[policy.tdbc]\nsteps = 6\n")
    with pytest.raises(config.ConfigError, match="unknown algorithm"):
        recipes.read_recipe(path)
    path.write_text('algo = "bc"\n[policy]\ntau = 0.1\n')
    with pytest.raises(config.ConfigError, match=r"policy\.tau is not read by bc"):
        recipes.read_recipe(path)


def test_a_run_of_several_algorithms_shares_data_and_discriminator(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.toml", TINY)
    out = tmp_path / "run"
    told = succeed("run", recipe, "--algo", "smodice,bc,oril", "--out", out, "--json").json
    assert [row["method"] for row in told["methods"]] == ["smodice", "bc", "oril"]
    assert all(row["steps"] == 20 and row["seconds"] > 0 for row in told["methods"])
    assert json.loads((out / "summary.json").read_text()) == told
    assert (out / "seed0/disc.safetensors").exists()
    assert not (out / "seed0/oril/disc.safetensors").exists()
    assert sorted(path.name for path in (out / "seed0/bc").glob("*.json")) == ["eval.json"]
    alone = succeed("run", recipe, "--algo", "oril", "--out", tmp_path / "alone", "--json").json
    assert alone["per_seed"] == told["methods"][2]["per_seed"]
    states = {row["path"]: row["state"] for row in succeed("status", out, "--json").json["artifacts"]}
    assert states["seed0/oril/policy.safetensors"] == "ok"
    found = succeed("report", out, "--html", tmp_path / "report.html", "--json").json["runs"]
    assert sorted(row["method"].partition(":")[0] for row in found) == ["bc", "oril", "smodice"]
    assert {row["run"] for row in found} == {"run"}
    plan = succeed("run", recipe, "--algo", "smodice,bc,oril", "--out", out, "--dry-run", "--json").json["plan"]
    assert {step["status"] for step in plan} == {"cached"}


@pytest.mark.parametrize("algo", ["td3bc", "rce", "bc"])
def test_the_absorbing_variant_trains_too(algo: str, tmp_path: Path) -> None:
    sources = ("--offline", f"sim:{ENV}#600", "--expert", f"sim:{ENV}#success=20")
    succeed("build-dataset", "--env", ENV, *sources, "--absorbing", "--out", tmp_path / "dataset.h5")
    succeed("train-policy", "--algo", algo, "--data", tmp_path / "dataset.h5", "--steps", "4", *SMALL)
    policy = tmp_path / algo / "policy.safetensors"
    succeed("eval", "--policy", policy, "--episodes", "1", "--threads", "1")
    with pytest.raises(InputError, match=r"takes states of 5 dimensions, .* not \(4,\)"):
        NumpyPolicy.load(policy).act(np.zeros(4))
    with pytest.raises(InputError, match="holds the snapshots"):
        NumpyPolicy.load(policy.with_name("policy.snapshots.safetensors"))


def test_every_algorithm_has_a_folder_beside_smodices_files(finished_run: Path, tmp_path: Path) -> None:
    """So that no command writes over what another algorithm made, and report finds them as those of a run."""
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    before = listing(run)
    small = ("--steps", "3", *SMALL)
    succeed("train-disc", "--algo", "sail", "--data", run / "dataset.h5", *small)
    succeed("train-policy", "--algo", "sail", "--disc", run / "sail/disc.safetensors", *small)
    succeed("train-value", "--algo", "demodice-sd", "--disc", run / "disc.safetensors", *small)
    succeed("train-policy", "--algo", "demodice-sd", "--value", run / "demodice-sd/value.safetensors", *small)
    after = listing(run)
    assert before.items() <= after.items()
    assert {name.partition("/")[0] for name in after.keys() - before.keys()} == {"sail", "demodice-sd"}
    named = ("--out", run / "policy.v1")
    assert "ends in .safetensors" in refuse(2, "train-policy", "--algo", "bc", "--data", run / "dataset.h5", *named)


def test_data_that_an_algorithm_cannot_learn_from_are_refused_before_it_runs(tmp_path: Path) -> None:
    with_rewards = write_file(tmp_path / "a.hdf5", rewards=np.ones(60))
    without = write_file(tmp_path / "b.hdf5", rewards=None)
    data = ("--env", ENV, "--offline", f"file:{with_rewards}", "--expert", f"file:{with_rewards}#traj=0")
    mixed, permuted = tmp_path / "mixed.h5", tmp_path / "permuted.h5"
    succeed("build-dataset", *data, "--offline", f"file:{without}", "--out", mixed)
    assert artifacts.read_header(mixed).metrics["expert_return"] == pytest.approx(19.0), "of what has rewards"
    plan = ("--out", tmp_path / "p.safetensors", "--dry-run")
    said = refuse(3, "train-policy", "--algo", "td3bc", "--data", mixed, *plan)
    assert "rewards, but file:b.hdf5 holds none" in said
    succeed("build-dataset", *data, "--expert-dims", "3,2,1,0", "--out", permuted)
    assert "whole expert states" in refuse(3, "train-policy", "--algo", "rce", "--data", permuted, *plan)
    before, _ = Dataset.of(artifacts.load(permuted, "dataset")).expert_transitions()
    assert not len(before), "columns in another order are no states of the imitator"
