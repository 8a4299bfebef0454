"""Figures of weights and scores that both the algorithms and the views need."""

from __future__ import annotations

from smodice_cli.lazy import np


def effective_size(w: np.ndarray) -> float:
    """Kish's effective sample size (sum w)^2 / sum w^2; 0 where there is no weight at all."""
    w = np.asarray(w, np.float64)
    squares = float(np.square(w).sum())
    return float(w.sum() ** 2 / squares) if squares else 0.0


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share their mean rank. (scipy.stats.rankdata is the same, but slow to import.)"""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    ends = np.append(starts[1:], len(values))
    result = np.empty(len(values))
    result[order] = np.repeat((starts + ends + 1) / 2.0, ends - starts)
    return result


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a positive row scores above another one (ties count half), by the rank sum."""
    hits = int(positive.sum())
    rest = len(positive) - hits
    return float((ranks(scores)[positive].sum() - hits * (hits + 1) / 2) / (hits * rest))
