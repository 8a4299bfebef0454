"""The tabular solver against cvxpy, its certificates, the fall-back policy, the bound, and bad input."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from smodice_cli.algos import tabular
from smodice_cli.algos.tabular import FiniteMDP
from smodice_cli.errors import ConfigError, InputError

VARIANTS = [
    ("chi2", 1.0, np.inf),
    ("chi2", 0.2, np.inf),
    ("chi2", 1.0, 2.0),
    ("chi2-untruncated", 1.0, np.inf),
    ("kl", 1.0, np.inf),
    ("kl", 0.3, np.inf),
    ("kl", 1.0, 1.8),
    ("soft-chi2", 1.0, np.inf),
    ("soft-chi2", 0.5, 3.0),
]
quick = settings(max_examples=5, deadline=None, derandomize=True)


def random_problem(seed: int, states: int = 6, actions: int = 3, gamma: float = 0.9):
    """A sparse random MDP with some pairs never tried, its behaviour occupancy and a random reward."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(1.0, (states * actions, states)) * (rng.random((states * actions, states)) < 0.6)
    counts[0, 0] += 1
    initial = rng.dirichlet(np.ones(states))
    mdp, behaviour = tabular.maximum_likelihood(sp.csr_array(counts), initial, gamma)
    return mdp, behaviour, tabular.occupancy(mdp, behaviour), rng.normal(0.0, 2.0, states)


def f_of(f: str, x: cp.Expression) -> cp.Expression:
    """f of KL or chi2 applied to a cvxpy expression."""
    if f == "kl":
        return -cp.entr(x) - x + 1
    return 0.5 * cp.square(x - 1)


def cvxpy_primal(mdp: FiniteMDP, offline, reward, f: str, alpha: float, cap: float) -> tuple[float, np.ndarray]:
    """The primal problem as written in the paper, over the support of d^O."""
    pairs = np.flatnonzero(offline.ravel() > 0)
    weight, own = offline.ravel()[pairs], pairs // mdp.n_actions
    x = cp.Variable(pairs.size)
    constraints = [] if f == "chi2-untruncated" else [x >= 0]
    if np.isfinite(cap):
        constraints.append(x <= cap)
    if f == "soft-chi2":  # x = low + high - 1 with low <= 1 <= high keeps it a convex program
        low, high = cp.Variable(pairs.size), cp.Variable(pairs.size)
        constraints += [x == low + high - 1, low <= 1, high >= 1]
        cost = -cp.entr(low) - low + 1 + 0.5 * cp.square(high - 1)
    else:
        cost = f_of(f, x)
    d = cp.multiply(weight, x)
    stay = np.eye(mdp.n_states)[own].T @ d
    into = (1 - mdp.gamma) * mdp.initial + mdp.gamma * (mdp.transition[pairs].T.toarray() @ d)
    problem = cp.Problem(cp.Maximize(reward[own] @ d - alpha * (weight @ cost)), [*constraints, stay == into])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return float(problem.value), x.value


def cvxpy_dual(mdp: FiniteMDP, offline, reward, f: str, alpha: float) -> float:
    """The unconstrained dual over V with the conjugate of f, without a cap."""
    pairs = np.flatnonzero(offline.ravel() > 0)
    weight, own = offline.ravel()[pairs], pairs // mdp.n_actions
    value = cp.Variable(mdp.n_states)
    after = mdp.transition[pairs].toarray() @ value
    y = (reward[own] + mdp.gamma * after - np.eye(mdp.n_states)[own] @ value) / alpha
    conjugate = {
        "kl": lambda: cp.exp(y) - 1,
        "chi2": lambda: 0.5 * cp.square(cp.pos(y + 1)) - 0.5,
        "chi2-untruncated": lambda: 0.5 * cp.square(y + 1) - 0.5,
    }[f]()
    problem = cp.Problem(cp.Minimize((1 - mdp.gamma) * mdp.initial @ value + alpha * (weight @ conjugate)))
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


@pytest.mark.parametrize(("f", "alpha", "cap"), VARIANTS)
@quick
@given(seed=st.integers(0, 10_000))
def test_solution_equals_cvxpy_primal(f, alpha, cap, seed):
    mdp, _, offline, reward = random_problem(seed)
    found = tabular.solve(mdp, offline, reward, f, alpha, cap)
    value, x = cvxpy_primal(mdp, offline, reward, f, alpha, cap)
    assert found.primal == pytest.approx(value, abs=1e-6)
    assert found.ratio[offline.ravel() > 0] == pytest.approx(x, abs=2e-3)


@pytest.mark.parametrize("f", ["kl", "chi2", "chi2-untruncated"])
@quick
@given(seed=st.integers(0, 10_000))
def test_dual_optimum_equals_cvxpy_dual(f, seed):
    mdp, _, offline, reward = random_problem(seed)
    assert tabular.solve(mdp, offline, reward, f).dual == pytest.approx(
        cvxpy_dual(mdp, offline, reward, f, 1.0), abs=1e-6
    )


@pytest.mark.parametrize(("f", "alpha", "cap"), VARIANTS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_certificates_hold(f, alpha, cap, seed, gamma):
    mdp, _, offline, reward = random_problem(seed, states=9, gamma=gamma)
    found = tabular.solve(mdp, offline, reward, f, alpha, cap)
    assert found.occupancy.sum() == pytest.approx(1.0, abs=1e-9)
    assert found.flow_residual < 1e-9
    assert found.primal == pytest.approx(found.dual, abs=1e-9)
    assert found.ratio.max() <= cap
    assert f == "chi2-untruncated" or found.ratio.min() >= 0
    if f != "chi2-untruncated":  # d* is the occupancy of the policy read off it
        occupied = tabular.occupancy(mdp, found.policy).ravel()
        assert occupied == pytest.approx(found.occupancy, abs=1e-7)


def test_untruncated_chi2_is_the_paper_s_closed_form():
    mdp, _, offline, reward = random_problem(3)
    dense, weight = mdp.transition.toarray(), offline.ravel()
    stay = np.repeat(np.eye(mdp.n_states), mdp.n_actions, axis=0)
    a = mdp.gamma * dense - stay
    y = -((1 - mdp.gamma) * mdp.initial + a.T @ (weight * (1 + stay @ reward)))
    value = np.linalg.pinv((a.T * weight) @ a) @ y
    found = tabular.solve(mdp, offline, reward, "chi2-untruncated")
    assert found.value == pytest.approx(value, abs=1e-8)
    support = weight > 0
    assert found.ratio[support] == pytest.approx((stay @ reward + a @ value + 1)[support], abs=1e-8)


def test_a_constant_in_the_reward_changes_no_weight():
    mdp, _, offline, reward = random_problem(5)
    assert tabular.solve(mdp, offline, reward + 3.0, "kl").ratio == pytest.approx(
        tabular.solve(mdp, offline, reward, "kl").ratio, abs=1e-9
    )


def test_large_cap_and_alpha_have_their_limits():
    mdp, _, offline, reward = random_problem(7)
    free = tabular.solve(mdp, offline, reward, "kl")
    assert tabular.solve(mdp, offline, reward, "kl", cap=1e6).ratio == pytest.approx(free.ratio, abs=1e-7)
    stiff = tabular.solve(mdp, offline, reward, "kl", alpha=1e6)
    assert stiff.ratio[offline.ravel() > 0] == pytest.approx(1.0, abs=1e-4)
    assert stiff.f_divergence < free.f_divergence


# --- the empirical MDP ----------------------------------------------------------------------------------------------


def chain_counts() -> sp.csr_array:
    """States 0 -> 1 -> 2, 2 never left, 3 never seen; action 1 is tried in state 0 only."""
    counts = np.zeros((4, 2, 4))
    counts[0, 0, 1], counts[0, 1, 0], counts[1, 0, 2] = 3, 1, 5
    return sp.csr_array(counts.reshape(8, 4))


def test_counts_become_frequencies_and_unknown_pairs_stay_unknown():
    mdp, behaviour = tabular.maximum_likelihood(chain_counts(), np.eye(4)[0], 0.9)
    assert mdp.transition[[0]].toarray().tolist() == [[0, 1, 0, 0]]
    assert mdp.known.tolist() == [True, True, True, False, True, True, False, False]
    assert behaviour[0].tolist() == [0.75, 0.25]
    assert behaviour[3].tolist() == [0.5, 0.5]


def test_a_state_never_left_absorbs():
    mdp, behaviour = tabular.maximum_likelihood(chain_counts(), np.eye(4)[0], 0.9)
    assert mdp.transition[[4, 5]].toarray().tolist() == [[0, 0, 1, 0]] * 2
    assert tabular.occupancy(mdp, behaviour).sum() == pytest.approx(1.0)


def test_occupancy_equals_the_power_series():
    mdp, behaviour, offline, _ = random_problem(11)
    step = np.einsum("sa,sat->st", behaviour, mdp.transition.toarray().reshape(6, 3, 6))
    mass, total = mdp.initial, np.zeros(6)
    for t in range(600):
        total, mass = total + (1 - mdp.gamma) * mdp.gamma**t * mass, mass @ step
    assert offline.sum(axis=1) == pytest.approx(total, abs=1e-12)


def test_states_without_weight_follow_the_behaviour_policy():
    mdp, behaviour = tabular.maximum_likelihood(chain_counts(), np.eye(4)[0], 0.9)
    offline = tabular.occupancy(mdp, behaviour)
    xi = np.array([1.0, 0.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0])
    policy, fallback = tabular.extract_policy(xi, offline.ravel(), 2, behaviour)
    assert fallback.tolist() == [False, True, False, True]
    assert policy[0].tolist() == [1.0, 0.0]
    assert policy[1].tolist() == behaviour[1].tolist()
    assert policy[3].tolist() == [0.5, 0.5]


def test_unseen_states_fall_back_in_a_whole_solution():
    mdp, behaviour = tabular.maximum_likelihood(chain_counts(), np.eye(4)[0], 0.9)
    offline = tabular.occupancy(mdp, behaviour)
    found = tabular.solve(mdp, offline, np.array([0.0, 0.0, 1.0, 99.0]), behaviour=behaviour)
    assert bool(found.fallback[3])
    assert found.policy[3].tolist() == [0.5, 0.5]
    assert np.isnan(found.value[3])
    assert found.policy.sum(axis=1) == pytest.approx(1.0)


def test_a_policy_off_the_data_is_refused():
    mdp, _ = tabular.maximum_likelihood(chain_counts(), np.eye(4)[0], 0.9)
    with pytest.raises(InputError, match="never tried"):
        tabular.occupancy(mdp, np.tile([0.0, 1.0], (4, 1)) * 0.5 + 0.25)


# --- the bound ------------------------------------------------------------------------------------------------------


def test_bound_is_the_theorem_s_formula():
    expected = 2 * 3 * 2.5 * 0.5 / (0.5**4 * 0.1**2) * np.sqrt(2 * 4 / 100 * np.log(4 * 4 * 2 / 0.1))
    assert tabular.value_error_bound(100, 4, 2, 0.5, 1.0, 0.1, 0.1) == pytest.approx(expected)


def test_bound_holds_for_estimated_transitions():
    rng = np.random.default_rng(0)
    states, actions, samples, gamma = 3, 2, 400, 0.5
    true = rng.dirichlet(np.ones(states), states * actions)
    initial, behaviour = np.full(states, 1 / states), np.full((states, actions), 0.5)
    mdp = FiniteMDP(sp.csr_array(true), initial, gamma)
    offline, reward = tabular.occupancy(mdp, behaviour), rng.uniform(0, 1, states)
    exact = tabular.solve(mdp, offline, reward, "chi2-untruncated").value
    bound = tabular.value_error_bound(samples, states, actions, gamma, 1.0, offline.min())
    for _ in range(20):
        counts = np.array([rng.multinomial(samples, row) for row in true])
        estimate = FiniteMDP(sp.csr_array(counts / samples), initial, gamma)
        assert np.abs(tabular.solve(estimate, offline, reward, "chi2-untruncated").value - exact).max() <= bound
    assert tabular.value_error_bound(4 * samples, states, actions, gamma, 1.0, offline.min()) == pytest.approx(
        bound / 2
    )


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 1.0, 1.5, -0.1, float("nan")])
def test_gamma_outside_the_open_interval_is_refused(gamma):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        tabular.maximum_likelihood(chain_counts(), np.eye(4)[0], gamma)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (-np.eye(4), "negative"),
        (np.ones((5, 2)), "shape"),
        (np.zeros((4, 2)), "all zero"),
        (np.full((2, 2), np.nan), "finite"),
    ],
)
def test_bad_counts_are_refused(counts, words):
    with pytest.raises(InputError, match=words):
        tabular.check_counts(sp.csr_array(counts))


@pytest.mark.parametrize(
    ("values", "words"), [([0.5, 0.4], "sums to 0.9"), ([1.5, -0.5], "negative"), ([1.0], "shape")]
)
def test_bad_distributions_are_refused(values, words):
    with pytest.raises(InputError, match=words):
        tabular.check_distribution("the expert occupancy", np.array(values), 2)


@pytest.mark.parametrize("options", [{"f": "kll"}, {"alpha": 0.0}, {"cap": 1.0}, {"f": "chi2-untruncated", "cap": 3.0}])
def test_bad_options_are_refused(options):
    mdp, _, offline, reward = random_problem(0)
    with pytest.raises(ConfigError):
        tabular.solve(mdp, offline, reward, **options)
