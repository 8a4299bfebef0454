"""Segments of n consecutive rows as options (D7), and weights along whole trajectories: numpy, nothing per row.

A segment that starts at row t covers the next m = min(n, rows left in the episode) rows. Its reward is
R_n = sum_{k<m} gamma^k R(s_{t+k}) and its discount gamma^m, so the dual of the paper holds with s' = s_{t+m}; n = 1 is
the paper. A row's own weight is the discounted sum over the segments that cover it, w_t = sum_{k<n} gamma^k xi_{t-k}.

An end may be absorbing (D11): segments that reach it go on in it to their full n steps, and one segment more for each
such episode starts in it and stays, so that nothing in the data is a dead end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smodice_cli.lazy import np

BLOCK = 1 << 16  # rows whose sums are held in double precision at a time


@dataclass(frozen=True)
class Segments:
    """One segment for every row, then one for every absorbing end; reward and discount have the reward's precision."""

    reward: np.ndarray  # R_n
    last: np.ndarray  # the row whose next state the segment ends in (and, for an absorbing end, starts in)
    discount: np.ndarray  # gamma^m


def blocks(offsets: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All rows, block by block: the rows, the first row of their episode and the first row after it."""
    for start in range(0, int(offsets[-1]), BLOCK):
        rows = np.arange(start, min(start + BLOCK, int(offsets[-1])))
        episode = np.searchsorted(offsets, rows, side="right") - 1
        yield rows, offsets[episode], offsets[episode + 1]


def whole_episodes(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """All episodes, about a block of rows at a time: the first of them and the first that follows."""
    first, episodes = 0, len(offsets) - 1
    while first < episodes:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + BLOCK, side="right")) - 1)
        yield first, last
        first = last


def segments(reward: np.ndarray, offsets: np.ndarray, n: int, gamma: float) -> Segments:
    """Segments of at most n rows that never leave their episode."""
    index = np.int32 if len(reward) < 1 << 31 else np.int64
    found = Segments(np.empty_like(reward), np.empty(len(reward), index), np.empty_like(reward))
    for rows, _, stop in blocks(offsets):
        length = np.minimum(stop - rows, n)
        total = reward[rows].astype(np.float64)
        for k in range(1, int(length.max())):
            inside = np.flatnonzero(length > k)
            total[inside] += gamma**k * reward[rows[inside] + k]
        found.reward[rows], found.last[rows], found.discount[rows] = total, rows + length - 1, gamma**length
    return found


def absorb(found: Segments, ends: np.ndarray, end_reward: np.ndarray, n: int, gamma: float) -> Segments:
    """Make the next states of the rows `ends` absorbing, with `end_reward` at every step in them.

    The segments that reach an end are those of the n rows up to it (fewer where the episode is shorter).
    """
    reward, discount = found.reward.copy(), found.discount.copy()
    for back in range(min(n, len(found.last))):
        reaches = np.flatnonzero((ends >= back) & (found.last[np.maximum(ends - back, 0)] == ends))
        rows = ends[reaches] - back
        # sum of gamma^k over the steps m..n-1 spent in the end
        reward[rows] += (gamma ** (back + 1) - gamma**n) / (1 - gamma) * end_reward[reaches]
        discount[rows] = gamma**n
    loop = end_reward * (1 - gamma**n) / (1 - gamma)
    return Segments(
        reward=np.append(reward, loop.astype(reward.dtype)),
        last=np.append(found.last, ends.astype(found.last.dtype)),
        discount=np.append(discount, np.full(len(ends), gamma**n, discount.dtype)),
    )


def lasting(reward: np.ndarray, end_reward: np.ndarray, offsets: np.ndarray, n: int) -> np.ndarray:
    """The mean R of each episode's last n states, its end among them: what goes on where the episode was cut (D11)."""
    stops = offsets[1:]
    first = np.maximum(stops - n + 1, offsets[:-1])
    total = np.append(0.0, np.cumsum(reward, dtype=np.float64))
    mean = (total[stops] - total[first] + end_reward) / (stops - first + 1)
    return mean.astype(end_reward.dtype)


def row_weights(xi: np.ndarray, offsets: np.ndarray, n: int, gamma: float) -> np.ndarray:
    """w_t = sum_{k<n} gamma^k xi_{t-k} within the episode."""
    total = xi.astype(np.float64)
    for rows, first, _ in blocks(offsets):
        since = rows - first
        for k in range(1, min(n, int(since.max()) + 1)):
            late = rows[since >= k]
            total[late] += gamma**k * xi[late - k]
    return total


def occupancy(w: np.ndarray, t: np.ndarray, n: int, gamma: float) -> np.ndarray:
    """d*/d^O on rows that count alike, mean 1, from weights whose V was trained on rows drawn by gamma^t (D10).

    There d^O is the discounted data, and a row's weight w_t = sum_{k<n} gamma^k xi_{t-k} over the segments that cover
    it (D7) lacks the discount at which each segment starts: gamma^t sum_{k<n} xi_{t-k} has it. xi follows from
    w_t - gamma w_{t-1} = xi_t - gamma^n xi_{t-n}.
    """
    starts = np.append(np.append(0, np.flatnonzero(t[1:] == 0) + 1), len(t))
    found = np.empty(len(w))
    for first, last in whole_episodes(starts):
        block = slice(starts[first], starts[last])
        found[block] = _occupancy(w[block], t[block], n, gamma)
    found /= found.mean()
    return found


def _occupancy(w: np.ndarray, t: np.ndarray, n: int, gamma: float) -> np.ndarray:
    if n == 1:
        return gamma**t * w
    rows = np.arange(len(w))
    change = w - gamma * np.where(t > 0, np.roll(w, 1), 0.0)
    xi = change.copy()
    for back in range(n, int(t.max()) + 1, n):
        later = np.flatnonzero(t >= back)
        xi[later] += gamma**back * change[later - back]
    total = np.append(0.0, np.cumsum(xi))
    return gamma**t * np.maximum(total[rows + 1] - total[rows + 1 - np.minimum(t + 1, n)], 0.0)


def discounted_future(figure: np.ndarray, at_end: np.ndarray, offsets: np.ndarray, gamma: float) -> np.ndarray:
    """sum_{k>=0} gamma^k x_{t+k} along the trajectory, whose final state counts as if it lasted forever.

    Runs backwards in time over all episodes at once.
    """
    total = figure.copy()
    lengths = np.diff(offsets)
    total[offsets[1:] - 1] += gamma * at_end / (1 - gamma)
    order = np.argsort(-lengths, kind="stable")
    ends, lengths = offsets[1:][order], lengths[order]
    for back in range(2, int(lengths[0]) + 1 if len(lengths) else 0):
        alive = int(np.searchsorted(-lengths, -back, side="right"))
        rows = ends[:alive] - back
        total[rows] += gamma * total[rows + 1]
    return total


def return_weights(
    reward: np.ndarray, end_reward: np.ndarray, offsets: np.ndarray, gamma: float, alpha: float
) -> np.ndarray:
    """The value-free estimator of TAILO: w_t = sum_{k>=0} gamma^k exp(R(s_{t+k})/alpha) along the trajectory."""
    return discounted_future(np.exp(reward / alpha), np.exp(end_reward / alpha), offsets, gamma)
