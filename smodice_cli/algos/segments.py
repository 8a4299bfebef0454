"""Segments of n consecutive rows as options (D7), and weights along whole trajectories: numpy, nothing per row.

A segment that starts at row t covers the next m = min(n, rows left in the episode) rows. Its reward is
R_n = sum_{k<m} gamma^k R(s_{t+k}) and its discount gamma^m, so the dual of the paper holds with s' = s_{t+m}; n = 1 is
the paper. A row's own weight is the discounted sum over the segments that cover it, w_t = sum_{k<n} gamma^k xi_{t-k}.

A terminal state may be absorbing (D11): segments that reach it go on in it to their full n steps, and one segment more
for each such episode starts in it and stays, so that nothing in the data is a dead end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Segments:
    """One segment for every row, then one for every absorbing end."""

    reward: np.ndarray  # R_n
    last: np.ndarray  # the row whose next state the segment ends in (and, for an absorbing end, starts in)
    discount: np.ndarray  # gamma^m
    time: np.ndarray  # the time step at which it starts


def rows_left(offsets: np.ndarray) -> np.ndarray:
    """How many rows of its episode lie at or after each row."""
    return np.repeat(offsets[1:], np.diff(offsets)) - np.arange(offsets[-1])


def segments(reward: np.ndarray, offsets: np.ndarray, n: int, gamma: float) -> Segments:
    """Segments of at most n rows that never leave their episode."""
    left = rows_left(offsets)
    total = reward.astype(np.float64)
    for k in range(1, min(n, int(left.max()))):
        starts = np.flatnonzero(left > k)
        total[starts] += gamma**k * reward[starts + k]
    length = np.minimum(left, n)
    time = np.arange(len(reward)) - np.repeat(offsets[:-1], np.diff(offsets))
    return Segments(total, np.arange(len(reward)) + length - 1, gamma**length, time)


def absorb(found: Segments, ends: np.ndarray, end_reward: np.ndarray, n: int, gamma: float) -> Segments:
    """Make the next states of the rows `ends` absorbing, with `end_reward` at every step in them."""
    stay = np.full(len(found.reward), np.nan)
    stay[ends] = end_reward
    stay = stay[found.last]
    reaches = np.isfinite(stay)
    rest = (found.discount - gamma**n) / (1 - gamma)  # sum of gamma^k over the steps m..n-1 spent in the end
    loop = end_reward * (1 - gamma**n) / (1 - gamma)
    return Segments(
        reward=np.append(np.where(reaches, found.reward + rest * np.nan_to_num(stay), found.reward), loop),
        last=np.append(found.last, ends),
        discount=np.append(np.where(reaches, gamma**n, found.discount), np.full(len(ends), gamma**n)),
        time=np.append(found.time, found.time[ends] + 1),
    )


def row_weights(xi: np.ndarray, offsets: np.ndarray, n: int, gamma: float) -> np.ndarray:
    """w_t = sum_{k<n} gamma^k xi_{t-k} within the episode."""
    since = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    total = xi.astype(np.float64)
    for k in range(1, min(n, int(since.max()) + 1)):
        rows = np.flatnonzero(since >= k)
        total[rows] += gamma**k * xi[rows - k]
    return total


def return_weights(
    reward: np.ndarray, end_reward: np.ndarray, offsets: np.ndarray, gamma: float, alpha: float
) -> np.ndarray:
    """The value-free estimator of TAILO: w_t = sum_{k>=0} gamma^k exp(R(s_{t+k})/alpha) along the trajectory.

    The episode's final state counts as if it lasted forever. Runs backwards in time over all episodes at once.
    """
    odds, tail = np.exp(reward / alpha), np.exp(end_reward / alpha) / (1 - gamma)
    total = odds.copy()
    lengths = np.diff(offsets)
    total[offsets[1:] - 1] += gamma * tail
    order = np.argsort(-lengths, kind="stable")
    ends, lengths = offsets[1:][order], lengths[order]
    for back in range(2, int(lengths[0]) + 1 if len(lengths) else 0):
        alive = int(np.searchsorted(-lengths, -back, side="right"))
        rows = ends[:alive] - back
        total[rows] += gamma * total[rows + 1]
    return total
