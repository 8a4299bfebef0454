"""The deep value loss with one-hot features converges to the tabular solution, for every variant of the dual."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from smodice_cli.algos import losses as smodice
from smodice_cli.algos import tabular
from smodice_cli.algos.tabular import FiniteMDP

STATES, ACTIONS, GAMMA = 8, 3, 0.9


def problem(seed: int):
    """Rows (s, a, s') of a deterministic MDP with unequal multiplicities; the data distribution is d^O."""
    rng = np.random.default_rng(seed)
    target = rng.integers(STATES, size=(STATES, ACTIONS))
    target[:, 0] = (np.arange(STATES) + 1) % STATES  # a ring, so that every state can be reached
    times = rng.integers(1, 5, size=STATES * ACTIONS)
    pairs = np.repeat(np.arange(STATES * ACTIONS), times)
    starts = rng.integers(STATES, size=16)
    rows = np.arange(STATES * ACTIONS)
    transition = sp.csr_array((np.ones(rows.size), (rows, target.ravel())), shape=(rows.size, STATES))
    mdp = FiniteMDP(transition, np.bincount(starts, minlength=STATES) / starts.size, GAMMA)
    return mdp, times / times.sum(), rng.normal(0, 1.5, STATES), pairs, target.ravel()[pairs], starts


def descend(f, alpha, cap, normalised, reward, pairs, following, starts):
    """V by L-BFGS on the loss of train-value, and the weights it implies."""
    value = torch.zeros(STATES, dtype=torch.float64, requires_grad=True)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)
    own, after, first = (torch.from_numpy(x) for x in (pairs // ACTIONS, following, starts))
    rewards = torch.from_numpy(reward)[own]
    parameters = [value, offset] if normalised else [value]
    optimiser = torch.optim.LBFGS(
        parameters,
        max_iter=4000,
        tolerance_grad=1e-11,
        tolerance_change=0,
        history_size=30,
        line_search_fn="strong_wolfe",
    )

    def residual():
        return smodice.bellman_residual(rewards, value[own], value[after], GAMMA)

    def closure():
        optimiser.zero_grad()
        loss, _ = smodice.value_loss(f, residual(), value[first], GAMMA, alpha, cap, offset if normalised else None)
        loss.backward()
        return loss

    optimiser.step(closure)
    with torch.no_grad():
        weights = smodice.importance_weights(f, residual(), alpha, cap, offset.item() if normalised else None)
    return value.detach().numpy(), weights.numpy(), closure().item()


VARIANTS = [(f, alpha, cap) for f in ("kl", "chi2", "soft-chi2") for alpha in (1.0, 0.5) for cap in (np.inf, 12.0)]
VARIANTS += [("chi2-untruncated", 1.0, np.inf), ("chi2-untruncated", 0.5, np.inf)]


@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "normaliser"])
@pytest.mark.parametrize(("f", "alpha", "cap"), VARIANTS)
def test_deep_loss_with_one_hot_features_finds_the_tabular_solution(f, alpha, cap, normalised):
    mdp, offline, reward, pairs, following, starts = problem(seed=3)
    exact = tabular.solve(mdp, offline, reward, f, alpha, cap)
    value, weights, loss = descend(f, alpha, cap, normalised, reward, pairs, following, starts)
    assert loss == pytest.approx(exact.dual, abs=1e-7)
    assert weights == pytest.approx(np.maximum(exact.ratio[pairs], 0), abs=2e-4)
    if f in ("kl", "soft-chi2") and np.isinf(cap):  # V is unique up to a constant
        assert value - value.mean() == pytest.approx(exact.value - exact.value.mean(), abs=2e-3)
