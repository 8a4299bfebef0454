"""The shape k of the weights' upper tail: how heavy it is, by a generalised Pareto fit (as in PSIS).

k < 0.5: the weights have a finite variance; 0.5 to 0.7: heavy but usable; above 0.7 averages under the weights are
decided by few rows; above 1 the tail has no finite mean. (Vehtari, Simpson, Gelman, Yao, Gabry: Pareto smoothed
importance sampling; the fit is Zhang and Stephens, Technometrics 2009.)
"""

from __future__ import annotations

import math

import numpy as np

GRID = 30  # candidates for the scale parameter, plus sqrt(n): Zhang and Stephens, section 2
PRIOR_WIDTH = 3.0  # their prior on it, in units of the lower quartile
PRIOR_COUNT, PRIOR_SHAPE = 10.0, 0.5  # PSIS: as if 10 more points had a shape of 1/2
LEAST_TAIL = 5  # points below which no shape can be fitted


def tail_length(rows: int) -> int:
    """How many of the largest weights count as the tail: min(n/5, 3 sqrt(n)), as in PSIS."""
    return math.ceil(min(0.2 * rows, 3.0 * math.sqrt(rows)))


def tail_shape(w: np.ndarray) -> float | None:
    """k of the largest weights; None where the tail is flat or has too few points to say."""
    w = np.asarray(w, np.float64)
    count = tail_length(len(w))
    if count < LEAST_TAIL:
        return None
    top = np.partition(w, len(w) - count - 1)[len(w) - count - 1 :]
    excess = np.sort(top - top.min())
    excess = excess[excess > excess[-1] * 1e-12]
    return fit_shape(excess) if len(excess) >= LEAST_TAIL else None


def fit_shape(excess: np.ndarray, prior: bool = True) -> float:
    """The shape k of sorted positive excesses over a threshold: the posterior mean of Zhang and Stephens.

    The likelihood of (b, k), b = -k/scale, has its maximum over k at k(b) = mean log(1 - b x), so only b is averaged,
    over a grid that their prior spreads below 1/max(x).
    """
    n = len(excess)
    candidates = GRID + int(math.sqrt(n))
    quartile = excess[max(int(n / 4 + 0.5) - 1, 0)]
    position = np.arange(1, candidates + 1) - 0.5
    b = 1.0 / excess[-1] + (1.0 - np.sqrt(candidates / position)) / (PRIOR_WIDTH * quartile)
    b = b[b != 0]
    shape = np.log1p(-np.outer(b, excess)).mean(axis=1)
    log_likelihood = n * (np.log(-b / shape) - shape - 1.0)
    posterior = np.exp(log_likelihood - log_likelihood.max())
    k = float(np.log1p(-(b @ posterior / posterior.sum()) * excess).mean())
    return (n * k + PRIOR_COUNT * PRIOR_SHAPE) / (n + PRIOR_COUNT) if prior else k
