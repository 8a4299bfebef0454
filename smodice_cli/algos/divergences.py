"""f-divergences with the constraint 0 <= x <= W, through their convex conjugates.

For a convex f with f(1) = 0 the dual needs  f*(y) = max_{0<=x<=W} x y - f(x)  and its maximiser  x* = f*'(y), which is
the importance weight (paper, Eq. 6 and Thm. 2). Bounding x is what makes them tame: below, x >= 0 truncates chi2 (the
paper truncates the weights but not the conjugate, D3); above, a finite cap W makes f* linear beyond f'(W).

Every maximiser has the form x* = clip(g(y), 0, W) with g the inverse of f'.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Divergence:
    """One f: its value, its slope f' (at a number) and the inverse of the slope (on tensors), for x >= 0."""

    name: str
    f: Callable[[Tensor], Tensor]
    slope: Callable[[float], float]
    inverse_slope: Callable[[Tensor], Tensor]

    def weight(self, y: Tensor, cap: float = math.inf) -> Tensor:
        """f*'(y) = argmax_{0<=x<=cap} x y - f(x): the importance weight at residual y (Eq. 15)."""
        bounded = y.clamp(max=self.slope(cap)) if math.isfinite(cap) else y
        return self.inverse_slope(bounded)

    def conjugate(self, y: Tensor, cap: float = math.inf) -> Tensor:
        """f*(y); its gradient is the weight by the envelope theorem, so the maximiser needs no gradient itself."""
        x = self.weight(y.detach(), cap)
        return y * x - self.f(x)


def _soft_chi2(x: Tensor) -> Tensor:
    return torch.where(x < 1, torch.xlogy(x, x) - x + 1, 0.5 * (x - 1) ** 2)


KL = Divergence("kl", lambda x: torch.xlogy(x, x) - x + 1, math.log, torch.exp)
CHI2 = Divergence("chi2", lambda x: 0.5 * (x - 1) ** 2, lambda x: x - 1, lambda y: (y + 1).clamp(min=0))
SOFT_CHI2 = Divergence(
    "soft-chi2",
    _soft_chi2,
    lambda x: math.log(x) if x < 1 else x - 1,
    lambda y: torch.where(y < 0, y.clamp(max=0).exp(), y + 1),
)
# chi2 over all of R: the paper's conjugate (y + 1)^2 / 2 - 1/2, whose weights are truncated only afterwards.
CHI2_UNTRUNCATED = Divergence("chi2-untruncated", CHI2.f, CHI2.slope, lambda y: y + 1)

DIVERGENCES = {d.name: d for d in (KL, CHI2, SOFT_CHI2, CHI2_UNTRUNCATED)}
