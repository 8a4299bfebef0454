"""A second opinion on the weights: do they take what the best trajectories of the data have of the expert?

It asks neither the discriminator nor V. A judge of its own, a ridge regression on random Fourier features, tells the
expert's states from the data's: c(s) = d^E/(d^E + d^O). What follows a row counts as much as the row itself, because
early in an episode all policies look alike: F_t = (1-gamma) sum_k gamma^k c(s_{t+k}), the last state lasting for ever.
In every part of the episodes the mean of F under the weights is compared with that over all rows (0) and with that of
the best trajectories (1): the match. Where the two hardly differ, as in steps that only the expert comes to, any
weights will do.

Weights can take the right trajectories and still leave out how they begin, or a stretch of the way. So the weight on
every part is compared with what it would be if each trajectory's weight lay evenly on its rows: the cover. It may fall
over an episode, since an expert may be done before the trajectories are, but nobody comes to a later part without an
earlier one: a part with far less cover than some later one is a gap, and no match. It is V that closes gaps: rewards
near the start tell nobody apart, and only the flow of Eq. 14 asks for them. Numpy only.
"""

from __future__ import annotations

from typing import Any

from smodice_cli.algos.segments import discounted_future
from smodice_cli.data import Dataset
from smodice_cli.lazy import np
from smodice_cli.statistics import effective_size

FEATURES = 192
WIDTHS = (0.5, 1.0, 2.0)  # of the kernels, in standard deviations of a dimension times the root of their number
RIDGE = 1e-3
FITTED_ROWS = 50_000  # offline rows on which the judge is fitted, evenly spaced
FOLDS = 5  # the expert is judged by fits that did not see that part of it
BLOCK = 1 << 15
PARTS = (0, 25, 100, 200, 400)  # steps of an episode at which its parts begin
LEAST_COVER = 0.25  # of a part, in parts of the most of any later one, below which it counts for less
LEAST_SHARE = 0.002  # of the rows, or of the weight from there on, below which a part is too small to speak of
BEST, BEST_SHARE = 3, 0.005  # which trajectory stands for the best ones: the third, or at this share of them
LEAST_GAIN = 0.05  # by which the expert's states must be more like the expert than the data's are
LEAST_CHOICE = 1 / 3  # of that, by which the best trajectories must exceed the data in a part where one can choose
RANGE_MARGIN = 0.1  # of the data's range, by which the expert may exceed it


class Judge:
    """c(s) of a state, by least squares on random features; both classes weigh the same."""

    def __init__(self, dataset: Dataset) -> None:
        self.dims, rng = list(dataset.dims), np.random.default_rng(0)
        self.mean, self.std = (dataset[name][self.dims] for name in ("mean", "std"))
        width = np.repeat(WIDTHS, FEATURES // len(WIDTHS)) * np.sqrt(len(self.dims))
        self.frequencies = (rng.normal(size=(len(self.dims), FEATURES)) / width).astype(np.float32)
        self.phases = rng.uniform(0, 2 * np.pi, FEATURES).astype(np.float32)
        evenly = np.linspace(0, dataset.rows, min(dataset.rows, FITTED_ROWS), endpoint=False, dtype=np.int64)
        self.offline = self._moments(self.features(dataset["observations"][evenly][:, self.dims]), 0.0)

    def features(self, states: np.ndarray) -> np.ndarray:
        """Random Fourier features of states that have only the shared dimensions, and a constant."""
        angles = ((states - self.mean) / self.std).clip(-10, 10).astype(np.float32) @ self.frequencies
        angles += self.phases
        return np.concatenate([np.cos(angles, out=angles), np.ones((len(states), 1), np.float32)], axis=1)

    @staticmethod
    def _moments(phi: np.ndarray, label: float) -> tuple[np.ndarray, np.ndarray]:
        return phi.T @ phi / len(phi), label * phi.mean(axis=0)

    def fit(self, expert: np.ndarray) -> np.ndarray:
        """The coefficients that tell these features of expert states from the data's."""
        (a, b), (c, d) = self._moments(expert, 1.0), self.offline
        return np.linalg.solve(a + c + RIDGE * np.eye(len(b)), b + d).astype(np.float32)

    def of_expert(self, states: np.ndarray) -> np.ndarray:
        """c of the expert's states, each part by a fit to the others."""
        phi, part = self.features(states), np.arange(len(states)) * FOLDS // len(states)
        if len(states) < 2 * FOLDS:
            return (phi @ self.fit(phi)).clip(0, 1)
        found = np.empty(len(states))
        for fold in range(FOLDS):
            found[part == fold] = phi[part == fold] @ self.fit(phi[part != fold])
        return found.clip(0, 1)

    def of_rows(self, states: np.ndarray, expert: np.ndarray) -> np.ndarray:
        """c of offline states, block by block."""
        fitted = self.fit(self.features(expert))
        blocks = (states[start : start + BLOCK][:, self.dims] for start in range(0, len(states), BLOCK))
        return np.concatenate([self.features(block) @ fitted for block in blocks]).clip(0, 1)


def audit(dataset: Dataset, w: np.ndarray, gamma: float) -> dict[str, Any]:
    """What the judge says: the match of the weights by part of the episode, and of the data with the expert."""
    expert, judge = dataset["expert/observations"], Judge(dataset)
    c, own = judge.of_rows(dataset["observations"], expert), float(judge.of_expert(expert).mean())
    ends = judge.of_rows(dataset["next_observations"][dataset.offsets[1:] - 1], expert)
    gain = own - c.mean()
    least = LEAST_CHOICE * gain if gain > LEAST_GAIN else np.inf  # else all data are like the expert
    future = (1 - gamma) * discounted_future(c, ends, dataset.offsets, gamma)
    episode, t, episodes = dataset.episode_of_row(), dataset.time_of_row(), len(dataset.offsets) - 1
    lengths, by_episode = np.diff(dataset.offsets), np.bincount(episode, w, minlength=episodes)
    parts = []
    for begin, end in zip(PARTS, (*PARTS[1:], np.inf), strict=True):
        inside = (t >= begin) & (t < end)
        if inside.mean() < LEAST_SHARE or not by_episode[episode[inside]].any():
            continue
        if w[t >= begin].sum() < LEAST_SHARE * w.sum():
            break  # the weights end before: nobody comes here
        found = future[inside]
        counts = np.bincount(episode[inside], minlength=episodes)
        means = np.bincount(episode[inside], found, minlength=episodes)[counts > 0] / counts[counts > 0]
        place = len(means) - min(len(means), max(BEST, round(BEST_SHARE * len(means))))
        best = float(np.partition(means, place)[place])  # no mean of the best, which few are lucky enough for
        plain = float(found.mean())
        weighted = float(np.average(found, weights=w[inside])) if w[inside].any() else plain
        match = (weighted - plain) / (best - plain) if best - plain > least else 1.0  # any weights will do
        match = min(max(match, 0.0), 1.0)
        cover = float(w[inside].sum() / (by_episode * counts / lengths).sum())
        parts.append(
            {"from": begin, "plain": plain, "weighted": weighted, "best": best, "match": match, "cover": cover}
        )
    chosen = min((part["match"] for part in parts), default=0.0)
    for number, part in enumerate(parts):
        part["cover"] /= max(later["cover"] for later in parts[number:]) or 1.0
        part["match"] *= min(part["cover"] / LEAST_COVER, 1.0)
    return {
        "match": min((part["match"] for part in parts), default=0.0),
        "without_gaps": chosen,
        "cover": min((part["cover"] for part in parts), default=0.0),
        "parts": parts,
        "expert": own,
        "best_of_data": max((part["best"] for part in parts), default=0.0),
        "effective_trajectories": effective_size(by_episode),
        "outside": _outside(dataset),
    }


def _outside(dataset: Dataset) -> float:
    """The share of the expert's states that lie beyond the range of the data in some dimension."""
    states, expert = dataset["observations"], dataset["expert/observations"]
    low, high = np.full(len(dataset.dims), np.inf), np.full(len(dataset.dims), -np.inf)
    for start in range(0, dataset.rows, BLOCK):
        block = states[start : start + BLOCK][:, dataset.dims]
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
    margin = RANGE_MARGIN * (high - low) + 1e-6
    return float(((expert < low - margin) | (expert > high + margin)).any(axis=1).mean())
