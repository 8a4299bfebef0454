"""How long cloning goes on: by the rows that carry the weight, unless the settings say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smodice_cli.algos import clone, nets
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.algos.losses import policy_mse
from smodice_cli.data import Dataset
from smodice_cli.errors import ConfigError, InputError


def learner(weights: np.ndarray, steps: int) -> clone.CloneLearner:
    rng = torch.Generator().manual_seed(0)
    states = np.random.default_rng(0).normal(size=(len(weights), 3)).astype(np.float32)
    data = {"mean": np.zeros(3), "std": np.ones(3), "action_low": -np.ones(2), "action_high": np.ones(2)}
    policy = clone.new_policy(data, 8, rng)  # type: ignore[arg-type]
    config = clone.Config(steps=steps)
    return clone.CloneLearner(policy, states, states[:, :2], weights, config, rng, torch.device("cpu"))


def test_steps_follow_the_effective_sample_between_their_bounds() -> None:
    assert clone.steps_for(np.ones(10_000)) == 11_000
    assert clone.steps_for(np.ones(10)) == clone.FEWEST_STEPS
    assert clone.steps_for(np.ones(1_000_000)) == clone.MOST_STEPS
    few = np.where(np.arange(1_000_000) < 10_000, 1.0, 0.0)  # rows without weight teach nothing
    assert clone.steps_for(few) == 11_000


def test_a_learner_settles_its_steps_and_says_why_unless_they_were_given() -> None:
    own, given = learner(np.ones(2_500), 0), learner(np.ones(2_500), 77)
    assert own.config.steps == pytest.approx(5_500)
    assert "2,500 rows" in own.notes[0]
    assert (given.config.steps, given.notes) == (77, ())


def test_states_are_standardised_as_the_rows_with_weight_are_spread() -> None:
    states = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    ranges = {"action_low": -np.ones(2, np.float32), "action_high": np.ones(2, np.float32)}
    columns = {"observations": states, "mean": states.mean(axis=0), "std": states.std(axis=0), **ranges}
    data, weights = Dataset(columns, "data", [0, 1, 2], False, ["a"]), np.zeros(30)
    weights[::3] = np.arange(1, 11)
    weights[1] = -5.0  # as an f may have that is not bounded below
    counted = np.repeat(states, np.maximum(weights, 0).astype(int), axis=0).astype(np.float64)
    policy = clone.new_policy(data, 4, torch.Generator().manual_seed(0), weights)
    least = clone.LEAST_SPREAD * data["std"]
    np.testing.assert_allclose(policy.normaliser.mean, counted.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.normaliser.std, np.maximum(counted.std(axis=0), least), rtol=1e-5)


def ensemble(members: int = 3) -> nets.TanhGaussianPolicy:
    rng = torch.Generator().manual_seed(1)
    wide = {"mean": np.zeros(3), "std": np.full(3, 2.0), "action_low": -np.ones(2), "action_high": np.full(2, 3.0)}
    return clone.new_policy(wide, 8, rng, members=members)  # type: ignore[arg-type]


def alone(policy: nets.TanhGaussianPolicy, member: int) -> nets.TanhGaussianPolicy:
    """One member of an ensemble, as a policy of its own."""
    single = ensemble(members=1)
    shared = ("action", "normaliser")
    of_member = {n: t if n.startswith(shared) else t[member] for n, t in policy.state_dict().items()}
    single.load_state_dict(of_member)
    return single


def test_several_members_act_as_their_mean_before_the_squashing() -> None:
    policy, states = ensemble(), torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
    singles = [alone(policy, member) for member in range(3)]
    mean = torch.stack([single.centre(states) for single in singles]).mean(0)
    torch.testing.assert_close(policy.centre(states), mean)
    spread = torch.stack([single(states)[1] for single in singles]).mean(0)
    torch.testing.assert_close(policy(states)[1], spread)
    acting = NumpyPolicy({name: tensor.numpy() for name, tensor in policy.state_dict().items()})
    expected = 1 + 2 * torch.tanh(mean).detach().numpy()
    np.testing.assert_allclose(acting.act(states.numpy()), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(acting.act(states[0].numpy()), expected[0], rtol=1e-5, atol=1e-6)


def test_each_member_learns_from_a_share_of_the_batch_of_its_own() -> None:
    policy, rng = ensemble(), torch.Generator().manual_seed(3)
    states, actions = torch.randn(7, 3, generator=rng), torch.rand(7, 2, generator=rng)
    policy_mse(policy.centre(states, apart=True), actions, torch.ones(7)).backward()
    shares = zip(states.tensor_split(3), actions.tensor_split(3), strict=True)
    for member, (own_states, own_actions) in enumerate(shares):
        single = alone(policy, member)
        (
            policy_mse(single.centre(own_states), own_actions, torch.ones(len(own_states))) * len(own_states) / 7
        ).backward()
        for name, parameter in single.named_parameters():
            if not name.startswith("log_std"):
                found = policy.get_parameter(name).grad[member]  # type: ignore[index]
                torch.testing.assert_close(found, parameter.grad, msg=name)


def test_a_batch_smaller_than_its_members_is_refused() -> None:
    with pytest.raises(ConfigError, match="each needs a row of its own"):
        clone.Config(batch=3, members=4).check()


def test_there_are_several_members_where_the_rows_with_weight_are_few() -> None:
    few, many = np.ones(10_000), np.ones(40_000)
    assert [clone.members_for(clone.Config(), rows) for rows in (few, many)] == [clone.MEMBERS, 1]
    assert clone.members_for(clone.Config(members=2), many) == 2


def test_members_may_have_layers_of_different_widths_and_files_of_other_shapes_are_refused() -> None:
    rng = np.random.default_rng(0)
    shapes = {"body.0": (8, 3), "body.2": (6, 8), "mean": (2, 6), "log_std": (2, 6)}
    tensors = {f"{name}.weight": rng.normal(size=(3, *shape)) for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": rng.normal(size=(3, shape[0])) for name, shape in shapes.items()}
    tensors |= {"normaliser.mean": np.zeros(3), "normaliser.std": np.ones(3)}
    tensors |= {"action_low": -np.ones(2), "action_high": np.ones(2)}
    states = rng.normal(size=(5, 3)).astype(np.float32)
    hidden = np.maximum(np.einsum("nd,khd->nkh", states, tensors["body.0.weight"]) + tensors["body.0.bias"], 0)
    hidden = np.maximum(np.einsum("nkh,kgh->nkg", hidden, tensors["body.2.weight"]) + tensors["body.2.bias"], 0)
    mean = (np.einsum("nkg,kag->nka", hidden, tensors["mean.weight"]) + tensors["mean.bias"]).mean(axis=1)
    np.testing.assert_allclose(NumpyPolicy(tensors).act(states), np.tanh(mean), rtol=1e-4, atol=1e-5)
    odd = [
        {name: t[:members] if t.ndim > 1 else t for name, t in tensors.items()} for members in (0, 1)
    ]  # no members, and one that says it is several
    odd += [tensors | {"body.2.weight": tensors["body.2.weight"][0]}, tensors | {"action_low": np.array(0.0)}]
    odd += [tensors | {"normaliser.mean": np.zeros((3, 2))}, tensors | {"body.0.bias": np.array(0.0)}]
    for broken in odd:
        with pytest.raises(InputError, match="not a policy"):
            NumpyPolicy(broken)
