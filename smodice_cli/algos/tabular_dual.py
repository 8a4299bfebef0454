"""The saddle point of the tabular SMODICE problem: one sparse interior-point method for every f, alpha and ratio cap.

    max_xi  E_dO[xi R] - alpha E_dO[f(xi)]    subject to    (1 - gamma) mu_0 + A^T (d^O xi) = 0,   lower <= xi <= cap
    min_V   (1 - gamma) mu_0^T V + alpha E_dO[f_*((B R + A V) / alpha)]                     A = gamma T - B

Each iteration factorises A^T diag(d^O theta) A once, a sparse matrix that couples states two moves apart; on grids that
takes time states^1.5, against states^3 for the dense listing. Newton's method on the dual then sharpens V to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from smodice_cli.algos.divergences import Divergence
from smodice_cli.errors import DivergedError

Array = np.ndarray

GAP = 1e-13  # the interior-point method stops at this duality gap
FLOW = 1e-13  # Newton's method on the dual stops at this Bellman-flow residual
LIMIT = 150  # iterations; typical problems need 10 to 20, degenerate ones 40
CORRECTORS = 4  # extra solves per factorisation that lengthen the step (Gondzio's centrality correctors)


@dataclass(frozen=True)
class Dual:
    """The problem on the support of d^O: rows are state-action pairs, columns states."""

    matrix: sp.csr_array  # A = gamma T - B
    adjoint: sp.csr_array  # A^T
    weight: Array  # d^O
    reward: Array  # B R
    pull: Array  # (1 - gamma) mu_0
    divergence: Divergence
    alpha: float
    cap: float

    def residual(self, value: Array) -> Array:
        """e = B R + A V."""
        return self.reward + self.matrix @ value

    def ratio(self, value: Array) -> Array:
        """xi = f_*'(e / alpha): the inverse of f' clipped to its bounds."""
        unbounded = self.divergence.inverse_slope(np, self.residual(value) / self.alpha)
        return np.clip(unbounded, self.divergence.lower, self.cap)

    def flow(self, xi: Array) -> Array:
        """(1 - gamma) mu_0 + A^T (d^O xi): the gradient of the dual and the Bellman-flow residual."""
        return self.pull + self.adjoint @ (self.weight * xi)

    def objective(self, value: Array) -> float:
        """The dual objective at V."""
        y, xi = self.residual(value) / self.alpha, self.ratio(value)
        conjugate = y * xi - self.divergence.f(np, xi)
        return float(self.pull @ value + self.alpha * (self.weight @ conjugate))

    def factorise(self, theta: Array) -> Any:
        """A sparse LU of A^T diag(d^O theta) A, positive definite up to a relative shift that grows if it must."""
        normal = sp.csc_array(self.adjoint @ (sp.diags_array(self.weight * theta) @ self.matrix))
        diagonal = normal.diagonal() + 1e-250
        for shift in (1e-14, 1e-12, 1e-10, 1e-8):
            try:
                return splu(
                    sp.csc_array(normal + sp.diags_array(shift * diagonal)),
                    permc_spec="MMD_AT_PLUS_A",
                    diag_pivot_thresh=0.0,
                    options={"SymmetricMode": True},
                )
            except RuntimeError:  # SuperLU: "Factor is exactly singular"
                continue
        raise DivergedError("the tabular solver met a singular system", "check the transitions for odd values")


def saddle_point(dual: Dual) -> tuple[Array, Array, int]:
    """V*, xi* and the number of factorisations."""
    if math.isinf(dual.divergence.lower):
        value, used = _newton(dual, np.zeros(dual.pull.size), limit=3)
        return value, dual.ratio(value), used
    value, xi, used = _Interior(dual).solve()
    sharp, more = _newton(dual, value, limit=4)
    sharp_xi = dual.ratio(sharp)
    # At a degenerate optimum (xi = 0 = its multiplier) V fixes xi poorly; the primal iterate obeys the flow exactly.
    if np.abs(dual.flow(sharp_xi)).max() <= 10.0 * FLOW:
        return sharp, sharp_xi, used + more
    return value, xi, used + more


def _newton(dual: Dual, value: Array, limit: int) -> tuple[Array, int]:
    """Newton's method on the dual from a good start; keeps the best V. Exact in one step where f_* is quadratic."""
    best, lowest = value, math.inf
    for step in range(limit + 1):
        xi = dual.ratio(value)
        flow = dual.flow(xi)
        error = float(np.abs(flow).max())
        if error < lowest:
            best, lowest = value, error
        if error <= FLOW or step == limit or error > lowest:
            return best, step
        free = (xi > dual.divergence.lower) & (xi < dual.cap)
        inverse = 1.0 / dual.divergence.curvature(np, np.where(free, xi, 1.0))
        theta = np.where(free, inverse, 1e-12) / dual.alpha
        value = value - dual.factorise(theta).solve(flow)
    raise AssertionError("unreachable")


class _Interior:
    """Mehrotra's predictor-corrector method; bound k is sign_k (xi - bound_k) >= 0 with multiplier z_k."""

    def __init__(self, dual: Dual) -> None:
        self.dual = dual
        bounds = [(1.0, dual.divergence.lower), (-1.0, dual.cap)]
        used = [(sign, bound) for sign, bound in bounds if math.isfinite(bound)]
        self.sign = np.array([[sign] for sign, _ in used])
        # f' is linear for chi2 only: elsewhere a common step keeps the stationarity residual shrinking.
        self.quadratic = dual.divergence.quadratic
        self.x = np.ones(dual.weight.size)  # d = d^O obeys the flow constraint
        self.value = np.zeros(dual.pull.size)
        # Slacks are carried along: cap - xi would cancel near the cap.
        self.slack = np.repeat([[sign * (1.0 - bound)] for sign, bound in used], self.x.size, axis=1)
        self.z = np.full(self.slack.shape, max(dual.alpha, float(np.abs(dual.reward).max())))

    def solve(self) -> tuple[Array, Array, int]:
        settled = 1e-10 if self.quadratic else 1e-5  # where f_* is smooth, Newton on the dual does the rest
        for iteration in range(LIMIT):
            self._linearise()
            if not math.isfinite(self.gap):
                break
            drift = self.dual.weight @ np.abs(self.stationarity)
            if self.gap <= GAP and drift <= settled and np.abs(self.flow).max() <= 1e-12:
                return self.value, self.x, iteration
            self._advance()
        raise DivergedError(
            "the tabular solver did not converge",
            "raise alpha, or check that the offline occupancy belongs to the transitions and initial distribution",
        )

    def _linearise(self) -> None:
        dual = self.dual
        multipliers = (self.sign * self.z).sum(axis=0)
        self.stationarity = dual.alpha * dual.divergence.slope(np, self.x) - dual.residual(self.value) - multipliers
        self.flow = dual.flow(self.x)
        self.gap = self._gap(self.z * self.slack)

    def _gap(self, products: Array) -> float:
        return float((products @ self.dual.weight).mean())

    def _advance(self) -> None:
        curvature = self.dual.alpha * self.dual.divergence.curvature(np, self.x)
        self.theta = 1.0 / (curvature + (self.z / self.slack).sum(axis=0))
        self.factor = self.dual.factorise(self.theta)
        products = self.z * self.slack
        value, x, z = self._direction(-products)
        trial = (self.z + self._steps(x, z)[1] * z) * (self.slack + self._steps(x, z)[0] * self.sign * x)
        target = self.gap * max(0.0, self._gap(trial) / self.gap) ** 3
        value, x, z = self._centred(target, target - products - self.sign * x * z)
        keep = min(max(0.9, 1.0 - self.gap), 0.9999)  # of the way to the boundary
        primal, dual = self._steps(x, z, keep)
        self.x, self.value, self.z = self.x + primal * x, self.value + dual * value, self.z + dual * z
        self.slack = self.slack + primal * self.sign * x

    def _centred(self, target: float, products: Array) -> tuple[Array, Array, Array]:
        """The corrected direction, re-centred as long as that lengthens the step: solves are cheap, factors are not."""
        best = self._direction(products)
        steps = self._steps(best[1], best[2])
        for _ in range(CORRECTORS):
            if min(steps) > 0.95:
                break
            longer = [min(1.0, 1.08 * step + 0.2) for step in steps]
            reached = (self.z + longer[1] * best[2]) * (self.slack + longer[0] * self.sign * best[1])
            excess = np.clip(reached, 0.1 * target, 10.0 * target) - reached
            trial_products = products + np.maximum(excess, -10.0 * target)
            trial = self._direction(trial_products)
            trial_steps = self._steps(trial[1], trial[2])
            if sum(trial_steps) < sum(steps) + 0.02:
                break
            best, steps, products = trial, trial_steps, trial_products
        return best

    def _direction(self, products: Array) -> tuple[Array, Array, Array]:
        """Newton's direction (dV, dx, dz) that changes each product z_k slack_k by `products` to first order."""
        dual = self.dual
        shift = self.stationarity - (self.sign * products / self.slack).sum(axis=0)
        value = self.factor.solve(dual.adjoint @ (dual.weight * self.theta * shift) - self.flow)
        x = self.theta * (dual.matrix @ value - shift)
        return value, x, (products - self.sign * self.z * x) / self.slack

    def _steps(self, x: Array, z: Array, keep: float = 1.0) -> tuple[float, float]:
        """The longest primal and dual steps that stay inside, times `keep`."""
        primal = _longest(self.slack, self.sign * x, keep)
        dual = _longest(self.z, z, keep)
        return (primal, dual) if self.quadratic else (min(primal, dual), min(primal, dual))


def _longest(position: Array, change: Array, keep: float) -> float:
    falling = change < 0
    if not falling.any():
        return 1.0
    return min(1.0, keep * float((-position[falling] / change[falling]).min()))
