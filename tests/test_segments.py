"""Segments, their dual and the trajectory estimator, against brute force and an independent convex solver."""

from __future__ import annotations

import itertools
import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smodice_cli.algos.divergences import DIVERGENCES
from smodice_cli.algos.losses import importance_weights, value_loss
from smodice_cli.algos.segments import absorb, return_weights, row_weights, segments

GAMMA = 0.9


def random_episodes(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, rng.integers(1, 6))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return rng.normal(size=offsets[-1]), offsets


@given(seed=st.integers(0, 10_000), n=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_segments_equal_a_sum_over_their_rows(seed: int, n: int) -> None:
    reward, offsets = random_episodes(seed)
    found = segments(reward, offsets, n, GAMMA)
    for start, stop in itertools.pairwise(offsets):
        for t in range(start, stop):
            rows = range(t, min(t + n, stop))
            assert found.reward[t] == pytest.approx(sum(GAMMA ** (r - t) * reward[r] for r in rows))
            assert found.last[t] == rows[-1]
            assert found.discount[t] == pytest.approx(GAMMA ** len(rows))


@given(seed=st.integers(0, 10_000), n=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_absorbing_ends_equal_episodes_that_go_on_in_their_end(seed: int, n: int) -> None:
    reward, offsets = random_episodes(seed)
    rng = np.random.default_rng(seed)
    terminal = rng.random(len(offsets) - 1) < 0.5
    ends, end_reward = offsets[1:][terminal] - 1, rng.normal(size=int(terminal.sum()))
    found = absorb(segments(reward, offsets, n, GAMMA), ends, end_reward, n, GAMMA)
    stays = dict(zip(ends.tolist(), end_reward.tolist(), strict=True))
    for start, stop in itertools.pairwise(offsets):
        tail = [stays[stop - 1]] * n if stop - 1 in stays else []
        rewards = [*reward[start:stop], *tail]
        for t in range(start, stop):
            taken = rewards[t - start : t - start + n]
            assert found.reward[t] == pytest.approx(sum(GAMMA**k * r for k, r in enumerate(taken)))
            assert found.discount[t] == pytest.approx(GAMMA ** len(taken))
    loops = slice(len(reward), None)
    assert found.reward[loops] == pytest.approx(end_reward * sum(GAMMA**k for k in range(n)))
    assert (found.last[loops] == ends).all()
    assert found.discount[loops] == pytest.approx(np.full(len(ends), GAMMA**n))


@given(seed=st.integers(0, 10_000), n=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_row_weights_sum_the_segments_that_cover_a_row(seed: int, n: int) -> None:
    xi, offsets = random_episodes(seed)
    w = row_weights(xi, offsets, n, GAMMA)
    for start, stop in itertools.pairwise(offsets):
        for t in range(start, stop):
            covering = range(max(start, t - n + 1), t + 1)
            assert w[t] == pytest.approx(sum(GAMMA ** (t - s) * xi[s] for s in covering))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_return_weights_equal_a_long_discounted_sum(seed: int) -> None:
    reward, offsets = random_episodes(seed)
    ends = np.random.default_rng(seed).normal(size=len(offsets) - 1)
    w = return_weights(reward, ends, offsets, GAMMA, alpha=0.7)
    for k, (start, stop) in enumerate(itertools.pairwise(offsets)):
        for t in range(start, stop):
            future = np.concatenate([reward[t:stop], np.full(400, ends[k])])
            expected = (GAMMA ** np.arange(len(future)) * np.exp(future / 0.7)).sum()
            assert w[t] == pytest.approx(expected)


def ring_problem(n: int) -> dict[str, np.ndarray]:
    """Trajectories of a deterministic walk on a ring of six states, cut into segments, as sparse arrays."""
    rng = np.random.default_rng(3)
    states, length = 6, 40
    state_reward = rng.normal(size=states)
    walks = [np.cumsum(np.concatenate([[rng.integers(2)], rng.choice([1, 2, 5], length)])) % states for _ in range(12)]
    path = np.concatenate([walk[:-1] for walk in walks])
    after = np.concatenate([walk[1:] for walk in walks])
    offsets = np.arange(len(walks) + 1) * length
    found = segments(state_reward[path], offsets, n, GAMMA)
    start = np.zeros(states)
    np.add.at(start, path[offsets[:-1]], 1 / len(walks))
    return {
        "start": start,
        "from": path,
        "to": after[found.last],
        "reward": found.reward,
        "discount": found.discount,
    }


def exact_ratios(
    problem: dict[str, np.ndarray], f: str, alpha: float, cap: float, n: int, normalised: bool
) -> np.ndarray:
    """The primal by cvxpy: max E[xi R_n] - alpha E[f(xi)] under the flow of segments.

    For n > 1 the segments cut short by an episode's end discount less, so E[xi] = 1 is a constraint of its own.
    """
    rows, states = len(problem["from"]), len(problem["start"])
    flow = np.zeros((states, rows))
    flow[problem["from"], np.arange(rows)] += 1 / rows
    flow[problem["to"], np.arange(rows)] -= problem["discount"] / rows
    xi = cp.Variable(rows)
    cost = cp.sum(cp.kl_div(xi, 1)) if f == "kl" else 0.5 * cp.sum_squares(xi - 1)
    objective = (problem["reward"] @ xi - alpha * cost) / rows
    bounds = [xi >= 0] + ([xi <= cap] if math.isfinite(cap) else []) + ([cp.sum(xi) == rows] if normalised else [])
    task = cp.Problem(cp.Maximize(objective), [flow @ xi == (1 - GAMMA**n) * problem["start"], *bounds])
    task.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return np.asarray(xi.value)


@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize(("f", "cap"), [("kl", math.inf), ("kl", 4.0), ("chi2", math.inf), ("chi2", 4.0)])
@pytest.mark.parametrize("normalised", [False, True])
def test_segment_dual_converges_to_the_exact_solution(n: int, f: str, cap: float, normalised: bool) -> None:
    problem, alpha = ring_problem(n), 1.5
    mean_one = f == "kl" and math.isinf(cap)  # the log-mean-exp form normalises by itself
    value = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    nu = torch.zeros((), dtype=torch.float64, requires_grad=True)
    before, after = torch.from_numpy(problem["from"]), torch.from_numpy(problem["to"])
    reward, discount = torch.from_numpy(problem["reward"]), torch.from_numpy(problem["discount"])
    start = torch.from_numpy(problem["start"])

    def residual() -> torch.Tensor:
        return reward + discount * value[after] - value[before]

    optimiser = torch.optim.LBFGS([value, nu], max_iter=3000, tolerance_grad=1e-12, tolerance_change=1e-16)
    optimiser.param_groups[0]["line_search_fn"] = "strong_wolfe"

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        starts = (value * start).sum() * torch.ones(1, dtype=torch.float64)
        loss, _ = value_loss(f, residual(), starts, GAMMA**n, alpha, cap, nu if normalised else None)
        loss.backward()
        return loss

    for _ in range(5):
        optimiser.step(closure)
    found = importance_weights(f, residual().detach(), alpha, cap, float(nu.detach()) if normalised else None).numpy()
    assert found == pytest.approx(exact_ratios(problem, f, alpha, cap, n, normalised or mean_one), abs=2e-4)


@given(seed=st.integers(0, 1000), f=st.sampled_from(["kl", "chi2", "soft-chi2"]), cap=st.sampled_from([3.0, math.inf]))
@settings(max_examples=60, deadline=None)
def test_solved_normaliser_makes_the_mean_ratio_one(seed: int, f: str, cap: float) -> None:
    rng = np.random.default_rng(seed)
    residual = torch.from_numpy(rng.normal(scale=4.0, size=200))
    q = torch.from_numpy(rng.dirichlet(np.ones(200)))
    if seed % 2:
        q[-1], residual[-1] = 0.0, 1e6  # a row that does not count has no say, however large its weight would be
        q /= q.sum()
    nu = DIVERGENCES[f].normaliser(residual / 0.5, q, cap)
    counts = q > 0
    xi = DIVERGENCES[f].weight(residual[counts] / 0.5 - nu, cap)
    assert float((q[counts] * xi).sum()) == pytest.approx(1.0, abs=1e-6)
