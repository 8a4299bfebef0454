"""SMODICE on finite MDPs, exactly: empirical MDP, occupancies, reward, solution, policy; the oracle of the deep code.

A state-action pair (s, a) is row s * A + a of every vector and matrix. States with no weight fall back on the behaviour
policy; no true reward appears anywhere. The optimisation itself is in `tabular_dual`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import splu

from smodice_cli.algos.divergences import DIVERGENCES
from smodice_cli.algos.tabular_dual import Dual, saddle_point
from smodice_cli.errors import ConfigError, InputError

Array = np.ndarray
SUM_TOLERANCE = 1e-6  # how far the sum of a given distribution may be from one (float32 files)


# --- finite MDPs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FiniteMDP:
    """A finite MDP in sparse matrices; an empty transition row is an action the data never tried there."""

    transition: sp.csr_array  # (S * A, S)
    initial: Array  # (S,), mu_0
    gamma: float

    def __post_init__(self) -> None:
        if not 0.0 < self.gamma < 1.0:
            raise ConfigError(f"gamma must lie strictly between 0 and 1, got {self.gamma:g}")
        check_distribution("the initial distribution", self.initial, self.n_states)

    @property
    def n_states(self) -> int:
        """|S|."""
        return int(self.transition.shape[1])

    @property
    def n_actions(self) -> int:
        """|A|."""
        return int(self.transition.shape[0] // self.transition.shape[1])

    @property
    def known(self) -> Array:
        """Which state-action rows have a transition distribution, (S * A,)."""
        return np.diff(self.transition.indptr) > 0


def check_distribution(name: str, values: Array, size: int) -> None:
    """Refuse a vector that is not a probability distribution over `size` outcomes."""
    if values.shape != (size,):
        raise InputError(f"{name} has shape {values.shape}, expected ({size},)")
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise InputError(f"{name} has negative or non-finite entries")
    if abs(values.sum() - 1.0) > SUM_TOLERANCE:
        raise InputError(f"{name} sums to {values.sum():.6g}, not to one")


def check_counts(counts: sp.csr_array) -> int:
    """The number of actions of an (S * A, S) array of transition counts, or a sentence that says what is wrong."""
    rows, states = counts.shape
    if states == 0 or rows == 0 or rows % states:
        raise InputError(
            f"transition counts have shape {counts.shape}, expected (states * actions, states)",
            "row s * actions + a holds how often action a in state s led to each state",
        )
    if not np.all(np.isfinite(counts.data)):
        raise InputError("transition counts must be finite")
    if np.any(counts.data < 0):
        raise InputError("transition counts must not be negative")
    if counts.sum() == 0:
        raise InputError("transition counts are all zero: there is no data to learn from")
    return rows // states


def maximum_likelihood(counts: sp.csr_array, initial: Array, gamma: float) -> tuple[FiniteMDP, Array]:
    """The empirical MDP T(s'|s,a) = n(s,a,s') / n(s,a) and the behaviour policy n(s,a) / n(s).

    Pairs never tried keep an empty row and probability zero. A state that was entered or started in but never left is
    absorbing: without an outgoing row nothing would hold its value up in the dual. A state never seen gets a uniform
    behaviour policy.
    """
    counts = sp.csr_array(counts, dtype=np.float64)
    actions = check_counts(counts)
    states = counts.shape[1]
    check_distribution("the initial distribution", initial, states)
    tried = np.asarray(counts.sum(axis=1)).reshape(states, actions)
    left = tried.sum(axis=1, keepdims=True)
    seen = (np.asarray(counts.sum(axis=0)).ravel() > 0) | (initial > 0)
    dead_ends = np.flatnonzero(seen & (left[:, 0] == 0))
    rows = (dead_ends[:, None] * actions + np.arange(actions)).ravel()
    loops = sp.csr_array((np.ones(rows.size), (rows, np.repeat(dead_ends, actions))), shape=counts.shape)
    flat = tried.ravel()
    scale = np.divide(1.0, flat, out=np.zeros(flat.size), where=flat > 0)
    transition = sp.csr_array(sp.diags_array(scale) @ counts + loops)
    transition.eliminate_zeros()
    uniform = np.full((states, actions), 1.0 / actions)
    return FiniteMDP(transition, initial, gamma), np.divide(tried, left, out=uniform, where=left > 0)


def occupancy(mdp: FiniteMDP, policy: Array) -> Array:
    """d^pi(s, a), shape (S, A), from (I - gamma P_pi^T) d^pi(s) = (1 - gamma) mu_0: one sparse solve."""
    states, actions = policy.shape
    pairs = np.arange(states * actions)
    choose = sp.csr_array((policy.ravel(), (pairs // actions, pairs)), shape=(states, states * actions))
    step = sp.csr_array(choose @ mdp.transition)
    reachable = reachable_states(step, mdp.initial)
    step = step[reachable][:, reachable]
    system = sp.csc_array(sp.eye_array(reachable.size) - mdp.gamma * step.T)
    # An M-matrix: pivots on the diagonal involve no cancellation, so even the rarest states keep their digits.
    factor = splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    visits = np.zeros(states)
    visits[reachable] = np.maximum(factor.solve((1.0 - mdp.gamma) * mdp.initial[reachable]), 0.0)
    if abs(visits.sum() - mdp.initial.sum()) > 1e-6:
        raise InputError("the policy takes actions that the data never tried in states it can reach")
    return visits[:, None] * policy


def reachable_states(step: sp.csr_array, initial: Array) -> Array:
    """The states that a state-to-state matrix can reach from the initial distribution, in order."""
    starts = sp.csr_array((initial > 0).astype(float)[None, :])
    graph = sp.csr_array(sp.block_array([[step, None], [starts, sp.csr_array((1, 1))]]))
    graph.eliminate_zeros()
    order = breadth_first_order(graph, step.shape[0], return_predecessors=False)  # the last node is a source
    return np.sort(order[1:])


def log_ratio_reward(expert: Array, offline: Array, smoothing: float = 1e-4) -> Array:
    """R(s) = log d^E(s)/d^O(s), with `smoothing` added to both so that it is finite off the expert's support."""
    if not smoothing > 0:
        raise ConfigError(f"smoothing must be positive, got {smoothing:g}")
    return np.log((expert + smoothing) / (offline + smoothing))


# --- the solution ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solution:
    """V*, xi* = d*/d^O, d* and the policy d*(a|s), with the numbers that certify them."""

    value: Array  # (S,), NaN where the offline occupancy is zero; its constant is fixed by E[xi] = 1
    ratio: Array  # (S * A,), xi*; negative entries only for chi2-untruncated
    occupancy: Array  # (S * A,), d* = xi* d^O
    policy: Array  # (S, A)
    fallback: Array  # (S,), states where the policy is the behaviour policy
    f_divergence: float  # D_f(d* || d^O)
    primal: float  # E_d*[R] - alpha D_f(d* || d^O)
    dual: float
    flow_residual: float
    iterations: int


def solve(
    mdp: FiniteMDP,
    offline: Array,
    reward: Array,
    f: str = "chi2",
    alpha: float = 1.0,
    cap: float = np.inf,
    behaviour: Array | None = None,
) -> Solution:
    """The exact solution for d^O(s, a), R(s), any f, strength alpha and bound xi <= cap (theorem on tabular MDPs).

    f = "chi2-untruncated" is the paper's closed form, whose xi may be negative. `behaviour` is the policy of states
    without weight; by default d^O(a|s), uniform off the support.
    """
    _check_options(f, alpha, cap)
    states, actions = mdp.n_states, mdp.n_actions
    offline = np.asarray(offline, dtype=np.float64).ravel()
    reward = np.asarray(reward, dtype=np.float64)
    check_distribution("the offline occupancy", offline, states * actions)
    if reward.shape != (states,) or not np.all(np.isfinite(reward)):
        raise InputError(f"the reward must be {states} finite numbers")
    pairs = np.flatnonzero(offline > 0)
    dual, kept = _restricted(mdp, offline, reward, pairs, f, alpha, cap)
    value, ratio, iterations = saddle_point(dual)
    xi = np.zeros(states * actions)
    xi[pairs] = ratio
    full_value = np.full(states, np.nan)
    full_value[kept] = value
    divergence = float(dual.weight @ dual.divergence.f(np, ratio))
    policy, fallback = extract_policy(xi, offline, actions, behaviour, floor=dual.divergence.floor)
    return Solution(
        value=full_value,
        ratio=xi,
        occupancy=xi * offline,
        policy=policy,
        fallback=fallback,
        f_divergence=divergence,
        primal=float((dual.weight * ratio) @ dual.reward) - alpha * divergence,
        dual=dual.objective(value),
        flow_residual=flow_residual(mdp, xi * offline),
        iterations=iterations,
    )


def _check_options(f: str, alpha: float, cap: float) -> None:
    DIVERGENCES.check(f)
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ConfigError(f"alpha must be positive, got {alpha:g}")
    if not cap > 1:
        raise ConfigError(f"the cap must exceed one, because the mean of xi is one; got {cap:g}")
    if np.isinf(DIVERGENCES[f].lower) and np.isfinite(cap):
        raise ConfigError(f"{f} has no bounds on xi; use chi2 with a cap")


def _restricted(
    mdp: FiniteMDP, offline: Array, reward: Array, pairs: Array, f: str, alpha: float, cap: float
) -> tuple[Dual, Array]:
    """The dual on the support of d^O, and the states it keeps."""
    own = pairs // mdp.n_actions
    transition = mdp.transition[pairs]
    if np.any(np.diff(transition.indptr) == 0):
        raise InputError("the offline occupancy has mass on actions without a known transition")
    used = np.zeros(mdp.n_states, dtype=bool)
    used[own] = True
    if not used[transition.indices].all() or not used[mdp.initial > 0].all():
        raise InputError("the offline occupancy misses states that its own transitions lead to")
    kept = np.flatnonzero(used)
    stay = sp.csr_array((np.ones(pairs.size), (np.arange(pairs.size), own)), shape=(pairs.size, mdp.n_states))
    matrix = sp.csr_array(mdp.gamma * transition - stay)[:, kept]
    pull = (1.0 - mdp.gamma) * mdp.initial[kept]
    adjoint = sp.csr_array(matrix.T)
    return Dual(matrix, adjoint, offline[pairs], reward[own], pull, DIVERGENCES[f], alpha, cap), kept


def flow_residual(mdp: FiniteMDP, occupied: Array) -> float:
    """The largest violation of B^T d = (1 - gamma) mu_0 + gamma T^T d, the Bellman flow constraint."""
    occupied = occupied.ravel()
    into = (1.0 - mdp.gamma) * mdp.initial + mdp.gamma * (mdp.transition.T @ occupied)
    return float(np.abs(into - occupied.reshape(mdp.n_states, -1).sum(axis=1)).max())


def extract_policy(
    xi: Array, offline: Array, actions: int, behaviour: Array | None = None, floor: float = 0.0
) -> tuple[Array, Array]:
    """pi(a|s) proportional to max(xi, 0) d^O(s, a), the behaviour policy where a state's mean ratio is <= floor."""
    weight = (np.maximum(xi, 0.0) * offline).reshape(-1, actions)
    base = offline.reshape(-1, actions)
    total, visits = weight.sum(axis=1, keepdims=True), base.sum(axis=1, keepdims=True)
    if behaviour is None:
        uniform = np.full(base.shape, 1.0 / actions)
        behaviour = np.divide(base, visits, out=uniform, where=visits > 0)
    weighted = total > floor * visits
    policy = np.divide(weight, total, out=np.array(behaviour, dtype=np.float64), where=weighted)
    return policy, ~weighted[:, 0]


def value_error_bound(
    samples: int, states: int, actions: int, gamma: float, r_max: float, d_min: float, delta: float = 0.05
) -> float:
    """The performance-guarantee theorem: with probability 1 - delta, max_s |V*(s) - V_hat(s)| is at most this.

    `samples` is n(s, a) of the rarest pair, `r_max` is max_s |R(s)| (the proof bounds the norm of 1 + B R) and `d_min`
    the smallest d^O(s, a).
    """
    if samples <= 0 or d_min <= 0 or not 0 < delta < 1:
        raise ConfigError("the bound needs samples of every pair, d_min > 0 and delta in (0, 1)")
    constant = 2.0 * (2.0 + r_max) * (2.0 + gamma) * gamma / ((1.0 - gamma) ** 4 * d_min**2)
    return float(constant * np.sqrt(2.0 * states / samples * np.log(4.0 * states * actions / delta)))
