"""Figures of weights and scores that both the algorithms and the views need."""

from __future__ import annotations

from collections.abc import Sequence

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


# --- scores over tasks and seeds: Agarwal et al., Deep RL at the Edge of the Statistical Precipice, NeurIPS 2021 ------

Tasks = Sequence["np.ndarray"]  # one method's scores: an array for each task, the seeds along its last axis


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean of the middle half along the last axis: a quarter of the scores, rounded down, is cut at either end."""
    count = scores.shape[-1]
    cut = count // 4
    return np.sort(scores, axis=-1)[..., cut : count - cut].mean(axis=-1)


def profile_of(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The performance profile: the share of the scores along the last axis that lie above each threshold."""
    return (scores[..., None, :] > thresholds[:, None]).mean(axis=-1)


def improvement(first: Tasks, second: Tasks) -> np.ndarray:
    """The chance that the first method beats the second on a task drawn at random (equal scores count half)."""
    wins = []
    for x, y in zip(first, second, strict=True):
        difference = x[..., :, None] - y[..., None, :]
        wins.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1)))
    return np.mean(wins, axis=0)


def resampled(tasks: Tasks, draws: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The stratified bootstrap: of each task as many seeds as it has, drawn with replacement, `draws` times."""
    return [scores[rng.integers(len(scores), size=(draws, len(scores)))] for scores in tasks]


def middle_95(draws: np.ndarray) -> np.ndarray:
    """The percentile interval of bootstrap draws along the first axis: its low and its high end."""
    return np.quantile(draws, (0.025, 0.975), axis=0)


def half_width_95(values: np.ndarray) -> np.ndarray:
    """Half of Student's 95 % interval of the mean along the first axis; 0 where there is one value."""
    from scipy.special import stdtrit

    count = len(values)
    if count < 2:
        return np.zeros(values.shape[1:])
    return stdtrit(count - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(count)
