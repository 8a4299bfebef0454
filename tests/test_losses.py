"""The losses of the three stages, against other solvers of the same small problems."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from smodice_cli.algos.losses import (
    ACTION_MARGIN,
    bellman_residual,
    discriminator_loss,
    gradient_penalty,
    importance_weights,
    log_prob,
    policy_entropy,
    policy_mse,
    policy_nll,
    value_loss,
)
from smodice_cli.algos.nets import Discriminator, TanhGaussianPolicy, ValueFunction, initialise
from smodice_cli.training import Adam, descend

GAMMA = 0.9


@dataclass(frozen=True)
class Rows:
    """A small data set: every state has rows that leave it, so that the problem has a solution."""

    state: np.ndarray
    next_state: np.ndarray
    reward: np.ndarray  # of every state
    initial: np.ndarray  # states
    states: int = 6

    @staticmethod
    def draw(seed: int, spread: float) -> Rows:
        rng = np.random.default_rng(seed)
        state = np.concatenate([np.arange(6), rng.integers(6, size=34)])
        return Rows(state, rng.integers(6, size=40), spread * rng.normal(size=6), rng.integers(6, size=12))


def solve_primal(rows: Rows, f: str, alpha: float, cap: float) -> tuple[np.ndarray, np.ndarray]:
    """max_w E[w R] - alpha E[f(w)] under the Bellman flow, by cvxpy: the weights, and V as the flow's multipliers."""
    count = len(rows.state)
    leaves, arrives = np.eye(rows.states)[rows.state].T, np.eye(rows.states)[rows.next_state].T
    start = np.bincount(rows.initial, minlength=rows.states) / len(rows.initial)
    w = cp.Variable(count, nonneg=True)
    constraints = [leaves @ w / count == (1 - GAMMA) * start + GAMMA * (arrives @ w) / count]
    if math.isfinite(cap):
        constraints.append(w <= cap)
    if f == "kl":
        divergence = cp.sum(cp.kl_div(w, 1))
    elif f == "chi2":
        divergence = cp.sum_squares(w - 1) / 2
    else:  # soft-chi2 is KL below 1 and chi2 above: w = low + high with low <= 1
        low, high = cp.Variable(count, nonneg=True), cp.Variable(count, nonneg=True)
        constraints += [w == low + high, low <= 1]
        divergence = cp.sum(cp.kl_div(low, 1)) + cp.sum_squares(high) / 2
    objective = (rows.reward[rows.state] @ w - alpha * divergence) / count
    problem = cp.Problem(cp.Maximize(objective), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert problem.status == "optimal"
    return w.value, constraints[0].dual_value


def minimise_loss(rows: Rows, f: str, alpha: float, cap: float, normaliser: bool) -> tuple[np.ndarray, np.ndarray]:
    """The deep value loss with a linear network on one-hot states, on all rows at once."""
    one_hot = torch.eye(rows.states, dtype=torch.float64)
    network = nn.Linear(rows.states, 1, bias=False).double()
    nn.init.zeros_(network.weight)
    nu = torch.zeros((), dtype=torch.float64, requires_grad=normaliser)
    reward = torch.from_numpy(rows.reward[rows.state])

    def residual() -> Tensor:
        v = network(one_hot).squeeze(-1)
        return bellman_residual(reward, v[rows.state], v[rows.next_state], GAMMA)

    parameters = [network.weight, *([nu] if normaliser else [])]
    optimiser = torch.optim.LBFGS(parameters, max_iter=3000, tolerance_grad=1e-12, tolerance_change=0, history_size=30,
                                  line_search_fn="strong_wolfe")  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        initial = network(one_hot[rows.initial]).squeeze(-1)
        loss, _ = value_loss(f, residual(), initial, GAMMA, alpha, cap, nu if normaliser else None)
        loss.backward()
        return loss

    for _ in range(5):
        optimiser.step(closure)
    nu_value = float(nu.detach()) if normaliser else None
    weights = importance_weights(f, residual().detach(), alpha, cap, nu_value)
    return weights.numpy(), network.weight.detach().numpy()[0]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("normaliser", [False, True], ids=["plain", "normaliser"])
@pytest.mark.parametrize("cap", [math.inf, 3.0])
@pytest.mark.parametrize("alpha", [1.0, 0.4])
@pytest.mark.parametrize("f", ["kl", "chi2", "soft-chi2"])
def test_the_value_loss_on_one_hot_states_solves_the_constrained_problem(
    f: str, alpha: float, cap: float, normaliser: bool, seed: int
) -> None:
    rows = Rows.draw(seed, spread=0.4)
    expected, multipliers = solve_primal(rows, f, alpha, cap)
    weights, value = minimise_loss(rows, f, alpha, cap, normaliser)
    np.testing.assert_allclose(weights, expected, atol=1e-4)
    assert weights.mean() == pytest.approx(1.0, abs=1e-4)
    if f == "kl" or normaliser:  # a constant in V is then free
        value, multipliers = value - value.mean(), multipliers - multipliers.mean()
    sign = np.sign(value @ multipliers)  # the solver's sign convention for multipliers
    if (weights > 1e-6).all():  # where weights vanish V is not unique
        np.testing.assert_allclose(value, sign * multipliers, atol=1e-4)


def test_the_truncated_conjugate_matters() -> None:
    """With rewards far apart chi2's optimum has exact zeros; the untruncated loss, as published, is another one."""
    rows = Rows.draw(0, spread=4.0)
    expected, _ = solve_primal(rows, "chi2", 1.0, math.inf)
    weights, _ = minimise_loss(rows, "chi2", 1.0, math.inf, False)
    np.testing.assert_allclose(weights, expected, atol=1e-4)
    assert (weights == 0).any()
    published, _ = minimise_loss(rows, "chi2-untruncated", 1.0, math.inf, False)
    assert np.abs(published - expected).max() > 0.1


def test_kl_does_not_change_when_a_constant_is_added_to_v() -> None:
    residual, initial = torch.randn(50, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    before, _ = value_loss("kl", residual, initial, GAMMA)
    after, _ = value_loss("kl", residual - (1 - GAMMA) * 7, initial + 7, GAMMA)
    torch.testing.assert_close(before, after)


def test_the_best_normaliser_of_kl_is_the_log_mean_exp() -> None:
    residual, initial = torch.randn(50, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    nu = torch.logsumexp(residual, 0) - math.log(50)
    torch.testing.assert_close(
        value_loss("kl", residual, initial, GAMMA, normaliser=nu)[0], value_loss("kl", residual, initial, GAMMA)[0]
    )


def test_the_discriminator_converges_to_the_log_ratio() -> None:
    expert, offline = np.array([1, 4, 15, 80]), np.array([40, 30, 20, 10])
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    settings = {"max_iter": 500, "tolerance_grad": 1e-12, "tolerance_change": 0}
    optimiser = torch.optim.LBFGS([logits], **settings, line_search_fn="strong_wolfe")
    of_expert, of_offline = (torch.from_numpy(np.repeat(np.arange(4), counts)) for counts in (expert, offline))

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss, _ = discriminator_loss(logits[of_expert], logits[of_offline])
        loss.backward()
        return loss

    optimiser.step(closure)
    np.testing.assert_allclose(logits.detach(), np.log(expert / offline), atol=1e-5)


def test_the_gradient_penalty_agrees_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, std = torch.randn(3, generator=generator), torch.rand(3, generator=generator) + 0.5
    disc = Discriminator(mean, std, [0, 2], 16).double()
    initialise(disc, generator)
    expert, offline = (torch.randn(20, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    mix = torch.rand(20, 1, generator=generator, dtype=torch.float64)
    inputs = disc.normaliser(mix * expert + (1 - mix) * offline).detach()
    h = 1e-5
    with torch.no_grad():
        columns = [(disc.body(inputs + h * e) - disc.body(inputs - h * e)) / (2 * h) for e in torch.eye(2).double()]
    norms = torch.cat(columns, dim=1).norm(dim=1)
    torch.testing.assert_close(
        gradient_penalty(disc, expert, offline, mix), (norms - 1).square().mean(), rtol=1e-6, atol=1e-8
    )


def tanh_gaussian(mean: Tensor, log_std: Tensor) -> TransformedDistribution:
    return TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform()])


def test_the_policy_likelihood_is_that_of_torchs_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_std = (torch.randn(30, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    actions = torch.tanh(torch.randn(30, 2, generator=generator, dtype=torch.float64))
    weights = torch.rand(30, generator=generator, dtype=torch.float64)
    expected = tanh_gaussian(mean, log_std).log_prob(actions)
    torch.testing.assert_close(log_prob(mean, log_std, actions), expected)
    torch.testing.assert_close(policy_nll(mean, log_std, actions, weights), -(weights * expected).mean())
    squared = (torch.tanh(mean) - actions).square().sum(1)
    torch.testing.assert_close(policy_mse(mean, actions, weights), (weights * squared).mean())


def test_actions_at_the_bounds_have_a_finite_likelihood_and_gradient() -> None:
    mean, log_std = torch.zeros(2, 1, requires_grad=True), torch.zeros(2, 1, requires_grad=True)
    edge = torch.tensor([[-1.0], [1.0]])
    loss = policy_nll(mean, log_std, edge, torch.ones(2))
    loss.backward()
    assert loss.isfinite()
    assert mean.grad is not None
    assert mean.grad.isfinite().all()
    assert math.isclose(ACTION_MARGIN, 1e-6)


def test_the_entropy_estimate_is_right_on_average() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_std = torch.full((200_000, 1), 0.3), torch.full((200_000, 1), -0.5)
    estimate = policy_entropy(mean, log_std, torch.randn(mean.shape, generator=generator))
    grid = torch.linspace(-1 + 1e-4, 1 - 1e-4, 200_001).unsqueeze(1)
    log = log_prob(torch.full_like(grid, 0.3), torch.full_like(grid, -0.5), grid)
    integral = -torch.trapezoid(log.exp() * log, grid.squeeze(1))
    assert float(estimate) == pytest.approx(float(integral), abs=0.01)


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])  # single is oneDNN's, where it is used
def test_the_networks_own_derivative_is_that_of_automatic_differentiation(precision: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    mean, std = torch.randn(3, generator=generator), torch.rand(3, generator=generator) + 0.5
    value = ValueFunction(mean, std, 16, 10.0)
    policy = TanhGaussianPolicy(mean, std, -torch.ones(2), torch.ones(2), 16)
    judge = Discriminator(mean, std, range(3), 16)
    states = torch.randn(20, 3, generator=generator, dtype=precision, requires_grad=True)
    for module in (value, policy, judge):
        initialise(module, generator)
        module.to(precision)
    standard = (states - value.normaliser.mean) / value.normaliser.std
    features = policy.body(standard)
    pairs = [
        (value(states), 10.0 * value.body(standard).squeeze(-1), value.parameters()),
        (judge(states), judge.body(standard).squeeze(-1), judge.parameters()),
        (policy.centre(states), policy.mean(features), [*policy.body.parameters(), *policy.mean.parameters()]),
        (
            torch.cat(policy(states), 1),
            torch.cat([policy.mean(features), policy.log_std(features)], 1),
            policy.parameters(),
        ),
    ]
    for own, plain, parameters in pairs:
        near = {"rtol": 1e-3, "atol": 1e-4} if precision == torch.float32 else {}
        torch.testing.assert_close(own, plain, **near)
        wanted = [states, *parameters]
        slope = torch.randn(own.shape, generator=generator, dtype=precision)
        by_hand = torch.autograd.grad(own, wanted, slope, retain_graph=True)
        torch.testing.assert_close(by_hand, torch.autograd.grad(plain, wanted, slope, retain_graph=True), **near)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_optimiser_is_torchs_adam(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 4), torch.nn.Linear(4, 1))
    ours[1].bias.requires_grad_(False)
    torchs = copy.deepcopy(ours)
    mine = Adam(ours.parameters(), 1e-2, weight_decay)
    reference = torch.optim.Adam([p for p in torchs.parameters() if p.requires_grad], 1e-2, weight_decay=weight_decay)
    for _ in range(20):
        x = torch.randn(8, 3, generator=generator)
        descend(ours(x).square().mean(), [mine])
        reference.zero_grad()
        torchs(x).square().mean().backward()
        reference.step()
    for found, expected in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
