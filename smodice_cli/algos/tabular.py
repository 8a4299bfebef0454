"""SMODICE on finite MDPs: one sparse Newton solver for every f, strength and ratio cap; the oracle of the deep code.

A state-action pair (s, a) is row s * A + a of every vector and matrix. With A = gamma T - B, mu0 the initial
distribution and d^O the offline occupancy, the problem is

    max_xi  E_dO[xi R] - alpha E_dO[f(xi)]   subject to   (1 - gamma) mu0 + A^T (d^O xi) = 0,  lower <= xi <= cap

and its dual, solved here, is  min_V (1 - gamma) mu0^T V + alpha E_dO[f_*((B R + A V) / alpha)].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import splu

from smodice_cli.errors import ConfigError, DivergedError, InputError

Array = np.ndarray
DISTRIBUTION_TOLERANCE = 1e-6  # how far the sum of a given distribution may be from one (float32 files)


# ---------------------------------------------------------------------------------------------- finite MDPs


@dataclass(frozen=True)
class FiniteMDP:
    """A finite MDP in sparse matrices; an empty transition row is an action the data never tried there."""

    transition: sp.csr_array  # (S * A, S)
    initial: Array  # (S,), mu_0
    gamma: float

    def __post_init__(self) -> None:
        if not 0.0 < self.gamma < 1.0:
            raise ConfigError(f"gamma must lie strictly between 0 and 1, got {self.gamma:g}")
        check_distribution("the initial state distribution", self.initial, self.transition.shape[1])

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
    if abs(values.sum() - 1.0) > DISTRIBUTION_TOLERANCE:
        raise InputError(f"{name} sums to {values.sum():.6g}, not to one")


def check_counts(counts: sp.csr_array) -> int:
    """The number of actions of an (S * A, S) array of transition counts, or an error that says what is wrong."""
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
    """The empirical MDP T(s'|s,a) = n(s,a,s') / n(s,a) and behaviour policy n(s,a) / n(s) of counted transitions.

    Pairs never tried keep an empty row and behaviour probability zero. A state that was entered (or started in) but
    never left is absorbing: without an outgoing row nothing would hold its value up in the dual. A state never seen
    gets a uniform behaviour policy.
    """
    counts = sp.csr_array(counts, dtype=np.float64)
    actions = check_counts(counts)
    states = counts.shape[1]
    check_distribution("the initial state distribution", initial, states)
    tried = np.asarray(counts.sum(axis=1)).reshape(states, actions)
    left = tried.sum(axis=1)
    seen = (left > 0) | (np.asarray(counts.sum(axis=0)).ravel() > 0) | (initial > 0)
    dead_ends = np.flatnonzero(seen & (left == 0))
    loop_rows = (dead_ends[:, None] * actions + np.arange(actions)).ravel()
    loops = sp.csr_array(
        (np.ones(loop_rows.size), (loop_rows, np.repeat(dead_ends, actions))), shape=counts.shape
    )
    scale = np.divide(1.0, tried.ravel(), out=np.zeros(states * actions), where=tried.ravel() > 0)
    transition = sp.csr_array(sp.diags_array(scale) @ counts + loops)
    transition.eliminate_zeros()
    behaviour = np.divide(
        tried, left[:, None], out=np.full((states, actions), 1.0 / actions), where=left[:, None] > 0
    )
    return FiniteMDP(transition, initial, gamma), behaviour


def occupancy(mdp: FiniteMDP, policy: Array) -> Array:
    """The discounted state-action occupancy d^pi (S, A) with (I - gamma P_pi^T) d = (1 - gamma) mu_0, one sparse solve."""
    states, actions = policy.shape
    pairs = np.arange(states * actions)
    choose = sp.csr_array((policy.ravel(), (pairs // actions, pairs)), shape=(states, states * actions))
    step = sp.csr_array(choose @ mdp.transition)
    reachable = reachable_states(step, mdp.initial)
    step = step[reachable][:, reachable]
    system = sp.csc_array(sp.eye_array(reachable.size) - mdp.gamma * step.T)
    # An M-matrix: pivoting on the diagonal involves no cancellation, so even the rarest states keep their digits.
    factor = splu(system, permc_spec="COLAMD", diag_pivot_thresh=0.0)
    visits = np.zeros(states)
    visits[reachable] = np.maximum(factor.solve((1.0 - mdp.gamma) * mdp.initial[reachable]), 0.0)
    if abs(visits.sum() - mdp.initial.sum()) > 1e-6:
        raise InputError("the policy takes actions that the data never tried in states it can reach")
    return visits[:, None] * policy


def reachable_states(step: sp.csr_array, initial: Array) -> Array:
    """The indices of the states that a state-to-state matrix can reach from the initial distribution."""
    states = step.shape[0]
    starts = sp.csr_array((initial > 0).astype(float)[None, :])
    graph = sp.csr_array(
        sp.block_array([[step, None], [starts, sp.csr_array((1, 1))]])
    )  # last node: a source
    graph.eliminate_zeros()
    order = breadth_first_order(graph, states, return_predecessors=False)
    return np.sort(order[1:])


def log_ratio_reward(expert: Array, offline: Array, smoothing: float = 1e-4) -> Array:
    """R(s) = log((d^E(s) + smoothing) / (d^O(s) + smoothing)), the paper's reward kept finite off the expert's support."""
    return np.log((expert + smoothing) / (offline + smoothing))


# ---------------------------------------------------------------------------------------------- divergences


@dataclass(frozen=True)
class Divergence:
    """A convex f with f(1) = f'(1) = 0 given by f, the inverse g of f' and g'; `kinked` where xi reaches zero exactly."""

    f: Callable[[Array], Array]
    inverse_slope: Callable[[Array], Array]
    inverse_curvature: Callable[[Array], Array]
    kinked: bool


def _x_log_x(x: Array) -> Array:
    return x * np.log(np.where(x > 0, x, 1.0)) - x + 1.0


def _exp(y: Array) -> Array:
    return np.exp(np.minimum(y, 600.0))


DIVERGENCES: dict[str, Divergence] = {
    "chi2": Divergence(lambda x: 0.5 * (x - 1.0) ** 2, lambda y: y + 1.0, np.ones_like, kinked=True),
    "kl": Divergence(_x_log_x, _exp, _exp, kinked=False),
    "soft-chi2": Divergence(
        lambda x: np.where(x < 1.0, _x_log_x(np.minimum(x, 1.0)), 0.5 * (x - 1.0) ** 2),
        lambda y: np.where(y < 0.0, np.exp(np.minimum(y, 0.0)), y + 1.0),
        lambda y: np.exp(np.minimum(y, 0.0)),
        kinked=False,
    ),
}


@dataclass(frozen=True)
class _Ratio:
    """xi(y) = f_*'(y) = clip(g(y), lower, cap); `soft` > 0 rounds the two kinks exponentially, the homotopy's parameter."""

    divergence: Divergence
    lower: float
    cap: float
    soft: float = 0.0

    @property
    def kinked(self) -> bool:
        """Whether xi reaches one of its bounds, where f_*'' jumps to zero."""
        return math.isfinite(self.cap) or (self.divergence.kinked and math.isfinite(self.lower))

    def __call__(self, y: Array) -> Array:
        return self._evaluate(y)[0]

    def curvature(self, y: Array) -> Array:
        """f_*''(y), a generalised one at the kinks."""
        return self._evaluate(y)[1] * self.divergence.inverse_curvature(y)

    def conjugate(self, y: Array) -> Array:
        """f_*(y) = y xi - f(xi)."""
        xi = np.clip(self.divergence.inverse_slope(y), self.lower, self.cap)
        return y * xi - self.divergence.f(xi)

    def _evaluate(self, y: Array) -> tuple[Array, Array]:
        free = self.divergence.inverse_slope(y)
        if self.soft == 0.0 or not self.kinked:
            return np.clip(free, self.lower, self.cap), ((free > self.lower) & (free < self.cap)).astype(
                float
            )
        xi, slope = free, np.ones_like(free)
        if self.divergence.kinked and math.isfinite(self.lower):
            decay = np.exp(np.minimum((free - self.lower) / self.soft - 1.0, 0.0))
            below = free < self.lower + self.soft
            xi, slope = np.where(below, self.lower + self.soft * decay, xi), np.where(below, decay, slope)
        if math.isfinite(self.cap):
            width = 0.5 * self.soft * (self.cap - 1.0)
            decay = np.exp(-np.maximum((free - self.cap) / width + 1.0, 0.0))
            above = free > self.cap - width
            xi, slope = np.where(above, self.cap - width * decay, xi), np.where(above, decay, slope)
        return xi, slope


# ---------------------------------------------------------------------------------------------- the solver


@dataclass(frozen=True)
class Solution:
    """The saddle point: V*, xi* = d*/d^O, the weights max(xi, 0), d* and the policy d*(a|s), plus its certificates."""

    value: Array  # (S,), NaN where the offline occupancy is zero
    ratio: Array  # (S * A,), xi*; negative entries only without truncation
    occupancy: Array  # (S * A,), d* = xi* d^O
    policy: Array  # (S, A)
    fallback: Array  # (S,), states where the policy is the behaviour policy
    f_divergence: float  # D_f(d* || d^O)
    primal: float
    dual: float
    flow_residual: float  # max_s |(1 - gamma) mu_0 + gamma T^T d* - B^T d*|
    iterations: int


def solve(
    mdp: FiniteMDP,
    offline: Array,
    reward: Array,
    f: str = "chi2",
    alpha: float = 1.0,
    cap: float = np.inf,
    truncate: bool = True,
    behaviour: Array | None = None,
) -> Solution:
    """The exact SMODICE solution for any f, regulariser strength alpha and bound xi <= cap on a finite MDP.

    `offline` is d^O(s, a), `reward` R(s). Without `truncate` (chi2 only) xi may be negative and Newton's single step
    is the paper's closed form. States that receive no weight take `behaviour` (default: d^O(a|s), uniform off support).
    """
    ratio = _ratio(f, alpha, cap, truncate)
    states, actions = mdp.n_states, mdp.n_actions
    offline = np.asarray(offline, dtype=np.float64).ravel()
    check_distribution("the offline occupancy", offline, states * actions)
    if np.any((offline > 0) & ~mdp.known):
        raise InputError("the offline occupancy has mass on actions without a known transition")
    problem = _Problem.build(mdp, offline, reward, ratio, alpha)
    value, offset, iterations = _newton(problem)
    value = value + offset / (1.0 - mdp.gamma)  # the gauge in which f_* needs no normaliser
    residual = problem.residual(value)
    xi = np.zeros(states * actions)
    xi[problem.pairs] = ratio(residual / alpha)
    occupied = xi * offline
    full_value = np.full(states, np.nan)
    full_value[problem.states] = value
    policy, fallback = extract_policy(xi, offline, behaviour, actions, ratio.divergence.kinked)
    divergence = float(offline[problem.pairs] @ ratio.divergence.f(xi[problem.pairs]))
    return Solution(
        value=full_value,
        ratio=xi,
        occupancy=occupied,
        policy=policy,
        fallback=fallback,
        f_divergence=divergence,
        primal=float(occupied @ np.repeat(reward, actions)) - alpha * divergence,
        dual=float((1.0 - mdp.gamma) * mdp.initial[problem.states] @ value)
        + alpha * float(problem.weight @ ratio.conjugate(residual / alpha)),
        flow_residual=flow_residual(mdp, occupied),
        iterations=iterations,
    )


def flow_residual(mdp: FiniteMDP, occupied: Array) -> float:
    """The largest violation of (1 - gamma) mu_0 + gamma T^T d = B^T d, the Bellman flow constraint."""
    occupied = occupied.ravel()
    into = (1.0 - mdp.gamma) * mdp.initial + mdp.gamma * (mdp.transition.T @ occupied)
    return float(np.abs(into - occupied.reshape(mdp.n_states, -1).sum(axis=1)).max())


def extract_policy(
    xi: Array, offline: Array, behaviour: Array | None, actions: int, kinked: bool = True
) -> tuple[Array, Array]:
    """pi(a|s) proportional to max(xi, 0) d^O(s, a); states without weight keep the behaviour policy."""
    weight = (np.maximum(xi, 0.0) * offline).reshape(-1, actions)
    base = offline.reshape(-1, actions)
    total, base_total = weight.sum(axis=1), base.sum(axis=1)
    if behaviour is None:
        uniform = np.full_like(base, 1.0 / actions)
        behaviour = np.divide(base, base_total[:, None], out=uniform, where=base_total[:, None] > 0)
    # Where xi hits zero at a kink its sign there is rounding noise; exponential weights stay meaningful when tiny.
    fallback = total <= (1e-10 * base_total if kinked else np.finfo(float).tiny)
    policy = np.divide(weight, total[:, None], out=behaviour.copy(), where=~fallback[:, None])
    return policy, fallback


def value_error_bound(
    samples: int, states: int, actions: int, gamma: float, r_max: float, d_min: float, delta: float = 0.05
) -> float:
    """The performance-guarantee theorem: with probability 1 - delta, max_s |V*(s) - V_hat(s)| is at most this.

    `samples` is n(s, a) of the rarest pair and `r_max` is max_s |R(s)|: the proof bounds the norm of 1 + B R.
    """
    constant = 2.0 * (2.0 + r_max) * (2.0 + gamma) * gamma / ((1.0 - gamma) ** 4 * d_min**2)
    return float(constant * np.sqrt(2.0 * states / samples * np.log(4.0 * states * actions / delta)))


def _ratio(f: str, alpha: float, cap: float, truncate: bool) -> _Ratio:
    if f not in DIVERGENCES:
        raise ConfigError(f"unknown divergence '{f}'", f"known: {', '.join(DIVERGENCES)}")
    if not alpha > 0:
        raise ConfigError(f"alpha must be positive, got {alpha:g}")
    if not cap > 1:
        raise ConfigError(f"the ratio cap must exceed one (the mean of xi is one), got {cap:g}")
    if not truncate and f != "chi2":
        raise ConfigError(f"only chi2 has a form without the bound xi >= 0, not {f}")
    return _Ratio(DIVERGENCES[f], 0.0 if truncate else -np.inf, cap)


@dataclass(frozen=True)
class _Problem:
    """The dual restricted to the support of d^O, where it is finite and every row is known."""

    pairs: Array  # rows with d^O(s, a) > 0
    states: Array  # columns: the states of those rows and their successors
    matrix: sp.csr_array  # A = gamma T - B
    adjoint: sp.csr_array  # A^T
    weight: Array  # d^O
    reward: Array  # B R
    pull: Array  # (1 - gamma) mu_0
    ratio: _Ratio
    alpha: float

    @classmethod
    def build(cls, mdp: FiniteMDP, offline: Array, reward: Array, ratio: _Ratio, alpha: float) -> _Problem:
        pairs = np.flatnonzero(offline > 0)
        own = pairs // mdp.n_actions
        transition = mdp.transition[pairs]
        used = np.zeros(mdp.n_states, dtype=bool)
        used[own] = True
        if not used[transition.indices].all() or not used[mdp.initial > 0].all():
            raise InputError("the offline occupancy misses states that its own transitions lead to")
        kept = np.flatnonzero(used)
        rows = np.arange(pairs.size)
        own_column = sp.csr_array((np.ones(pairs.size), (rows, own)), shape=(pairs.size, mdp.n_states))
        matrix = sp.csr_array(mdp.gamma * transition - own_column)[:, kept]
        pull = (1.0 - mdp.gamma) * mdp.initial[kept]
        return cls(
            pairs, kept, matrix, sp.csr_array(matrix.T), offline[pairs], reward[own], pull, ratio, alpha
        )

    def residual(self, value: Array) -> Array:
        """e = B R + A V."""
        return self.reward + self.matrix @ value

    def gradient(self, y: Array) -> Array:
        """(1 - gamma) mu_0 + A^T (d^O xi), which is also the Bellman-flow residual."""
        return self.pull + self.adjoint @ (self.weight * self.ratio(y))

    def hessian(self, y: Array, damping: float, scale: Array) -> sp.csc_array:
        """A^T diag(d^O f_*'') A / alpha plus a proximal term; a sum of two sparse matrices."""
        curvature = self.weight * self.ratio.curvature(y) / self.alpha
        return sp.csc_array(
            self.adjoint @ (sp.diags_array(curvature) @ self.matrix) + sp.diags_array(damping * scale)
        )


HOMOTOPY = (1.0, 0.1, 0.01, 1e-3, 0.0)  # widths of the rounded kinks; the last one is the problem itself
import os

HOMOTOPY = eval(os.environ.get("HOM", str(HOMOTOPY)))


def _newton(problem: _Problem):
    value = np.zeros(problem.states.size)
    offset, total = 0.0, 0
    widths = HOMOTOPY if problem.ratio.kinked else (0.0,)
    for width in widths:
        softened = dataclasses.replace(problem, ratio=dataclasses.replace(problem.ratio, soft=width))
        tolerance = 1e-13 if width == 0.0 else 1e-2 * width * problem.pull.max()
        value, offset, used = _minimise(softened, value, offset, tolerance)
        total += used
    return value, offset, total


def _minimise(
    problem: _Problem, value, offset, tolerance: float, limit: int = 200
) -> tuple[Array, float, int]:
    alpha = problem.alpha
    squared = problem.adjoint.power(2)
    scale = squared @ problem.weight / alpha
    residual = problem.residual(value)
    best = np.inf
    stall = 0
    for k in range(limit):
        offset = _normaliser(problem, residual, offset)
        y = (residual - offset) / alpha
        gradient = problem.gradient(y)
        error = np.abs(gradient).max()
        if os.environ.get("DBG"):
            obj = problem.pull @ value + offset + alpha * problem.weight @ problem.ratio.conjugate(y)
            print(
                problem.ratio.soft,
                k,
                "err",
                error,
                "l1",
                abs(gradient).sum(),
                "obj",
                obj,
                "active",
                (problem.ratio(y) > 0).mean(),
                "off",
                offset,
            )
        if error <= tolerance:
            return value, offset, k
        stall = 0 if error < 0.5 * best else stall + 1
        if error < 1e-11 and stall >= 3:
            return value, offset, k
        best = min(best, error)
        damping = float(os.environ.get("DAMP", "1e-10"))
        if damping < 0:
            damping = -damping * min(1, abs(gradient).sum())
        step = splu(
            problem.hessian(y, damping, scale),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        ).solve(-gradient)
        change = problem.matrix @ step
        length = _line_search(problem, residual - offset, change, float(problem.pull @ step))
        if os.environ.get("DBG"):
            print("    t", length, "slope", gradient @ step)
        value = value + length * step
        residual = problem.residual(value)
    raise DivergedError("no conv")


def _line_search(problem, residual, change, pull):
    w = problem.weight * change

    def slope(t):
        return pull + w @ problem.ratio((residual + t * change) / problem.alpha)

    s0 = slope(0.0)
    s1 = slope(1.0)
    if s1 <= 0.3 * abs(s0):
        return 1.0
    lo, hi = 0.0, 1.0
    for _ in range(80):
        mid = 0.5 * (lo + hi) if hi < 4 * lo else (hi * max(lo, hi * 1e-6)) ** 0.5
        if lo == 0:
            mid = hi * 0.1
        s = slope(mid)
        if abs(s) <= 0.1 * abs(s0):
            return mid
        if s < 0:
            lo = mid
        else:
            hi = mid
    return lo if lo > 0 else hi


def _normaliser(problem, residual, guess):
    lo, hi = float(residual.min()), float(residual.max())
    lam = min(max(guess, lo), hi)
    for _ in range(200):
        y = (residual - lam) / problem.alpha
        mean = float(problem.weight @ problem.ratio(y))
        if abs(mean - 1) <= 1e-15:
            break
        if mean > 1:
            lo = lam
        else:
            hi = lam
        slope = float(problem.weight @ problem.ratio.curvature(y)) / problem.alpha
        new = lam + mean * np.log(mean) / slope if mean > 0 and slope > 0 else np.nan
        if not lo < new < hi:
            new = 0.5 * (lo + hi)
        if new == lam or abs(new - lam) <= 1e-16 * abs(lam):
            break
        lam = new
    return lam
