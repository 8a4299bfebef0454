"""f-divergences with the constraint lower <= x <= W, through their convex conjugates; for torch and for numpy.

For a convex f with f(1) = f'(1) = 0 the dual needs  f*(y) = max_x x y - f(x)  and its maximiser  x* = f*'(y), which is
the importance weight (paper, Eq. 6 and Thm. 2). Bounding x is what makes them tame: below, x >= 0 truncates chi2 (the
paper truncates the weights but not the conjugate, D3); above, a finite cap W makes f* linear beyond f'(W).

Every maximiser has the form x* = clip(g(y), lower, W) with g the inverse of f'. To add one, add it to the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smodice_cli.lazy import np, torch
from smodice_cli.registry import Registry

BLOCK = 1 << 16  # rows at a time in sums over the whole data set
EXP_MAX = 600.0  # beyond which an exponential of a residual says no more than this one
Array = Any  # torch tensors or numpy arrays


def package_of(array: Array) -> Any:
    """torch for its tensors, numpy for everything else."""
    return torch if type(array).__module__.startswith("torch") else np


@dataclass(frozen=True)
class Divergence:
    """One f: its value, f', f'' and the inverse of f', each a function of the package (torch or numpy) and x."""

    f: Callable[[Any, Array], Array]
    slope: Callable[[Any, Array], Array]
    curvature: Callable[[Any, Array], Array]
    inverse_slope: Callable[[Any, Array], Array]
    lower: float = 0.0  # the least x
    floor: float = 1e-10  # mean ratio of a state below which it counts as unweighted on finite MDPs
    quadratic: bool = False  # f' is linear
    exponential: bool = False  # f*' is exp: the best normaliser has a closed form

    def weight(self, y: Array, cap: float = math.inf) -> Array:
        """f*'(y) = argmax_{lower<=x<=cap} x y - f(x): the importance weight at residual y (Eq. 15)."""
        package = package_of(y)
        bounded = package.clip(y, None, float(self.slope(np, cap))) if math.isfinite(cap) else y
        x = self.inverse_slope(package, bounded)
        return package.clip(x, self.lower, None) if math.isfinite(self.lower) else x

    def conjugate(self, y: Array, cap: float = math.inf) -> Array:
        """f*(y); its gradient is the weight by the envelope theorem, so the maximiser needs no gradient itself."""
        x = self.weight(y.detach(), cap)
        return y * x - self.f(package_of(y), x)

    # With a normaliser nu, the multiplier of E[xi] = 1: redundant at the optimum but quick to learn (D6).

    def mean_conjugate(self, y: Array, cap: float, nu: Array | None) -> Array:
        """nu + E[f*(y - nu)]; without nu and a cap, KL has the minimum over nu, the log-mean-exp of the appendix."""
        if nu is not None:
            return nu + self.conjugate(y - nu, cap).mean()
        if self.exponential and math.isinf(cap):
            return torch.logsumexp(y, 0) - math.log(len(y))
        return self.conjugate(y, cap).mean()

    def weights(self, y: Array, cap: float, nu: float | None) -> Array:
        """xi = f*'(y - nu) of every row; without nu and a cap, KL has the softmax, whose mean is 1."""
        if self.exponential and nu is None and math.isinf(cap):
            return (y - torch.logsumexp(y, 0) + math.log(len(y))).exp()
        return self.weight(y - (nu or 0.0), cap).clamp(min=0)

    def closed_normaliser(self, y: Array, q: Array, cap: float) -> float | None:
        """The nu that the softmax of KL stands for where rows count by q (Eq. 21); None where there is no such form."""
        return float(torch.logsumexp(y + q.log(), 0)) if self.exponential and math.isinf(cap) else None

    def normaliser(self, y: Array, q: Array, cap: float = math.inf) -> float:
        """The nu with E_q[f*'(y - nu)] = 1: the exact minimiser of the dual over nu at a fixed V, by bisection.

        E[xi] falls from cap to 0 as nu grows, so the root is bracketed by where the largest weight is 1 and where even
        the smallest residual has weight 1.
        """
        counts = q > 0
        y, q = y[counts], q[counts]
        low, high = float(y.min()), float(y.max())
        parts = list(zip(y.split(BLOCK), q.split(BLOCK), strict=True))
        for _ in range(60):
            middle = 0.5 * (low + high)
            if sum(float((q * self.weight(y - middle, cap)).sum()) for y, q in parts) > 1:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)


def _x_log_x(package: Any, x: Array) -> Array:
    product = package.xlogy(x, x) if hasattr(package, "xlogy") else x * np.log(np.where(x > 0, x, 1.0))
    return product - x + 1.0


def _half_square(package: Any, x: Array) -> Array:
    return 0.5 * (x - 1.0) ** 2


_CHI2: dict[str, Any] = {
    "f": _half_square,
    "slope": lambda package, x: x - 1.0,
    "curvature": lambda package, x: package.ones_like(x),
    "inverse_slope": lambda package, y: y + 1.0,
}

DIVERGENCES: Registry[Divergence] = Registry(
    "divergence",
    {
        "kl": Divergence(
            f=_x_log_x,
            slope=lambda package, x: package.log(x),
            curvature=lambda package, x: 1.0 / x,
            inverse_slope=lambda package, y: package.exp(package.clip(y, None, EXP_MAX)),
            floor=0.0,  # a ratio is never exactly 0
            exponential=True,
        ),
        "chi2": Divergence(**_CHI2, quadratic=True),
        "soft-chi2": Divergence(
            f=lambda package, x: package.where(
                x < 1.0, _x_log_x(package, package.clip(x, None, 1.0)), _half_square(package, x)
            ),
            slope=lambda package, x: package.where(x < 1.0, package.log(package.clip(x, None, 1.0)), x - 1.0),
            curvature=lambda package, x: 1.0 / package.clip(x, None, 1.0),
            inverse_slope=lambda package, y: package.where(y < 0.0, package.exp(package.clip(y, None, 0.0)), y + 1.0),
        ),
        # chi2 over all of R: the paper's conjugate (y + 1)^2 / 2 - 1/2, whose weights are truncated only afterwards.
        "chi2-untruncated": Divergence(**_CHI2, lower=-math.inf),
    },
)
