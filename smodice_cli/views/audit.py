"""A second opinion on the weights: do they take what the best trajectories of the data have of the expert?

It asks neither the discriminator nor V. A judge of its own, a ridge regression on random Fourier features, tells the
expert's states from the data's: c(s) = d^E/(d^E + d^O). What follows a row counts as much as the row itself, because
early in an episode all policies look alike: F_t = (1-gamma) sum_k gamma^k c(s_{t+k}), the last state lasting for ever.
In every part of the episodes the mean of F under the weights is compared with that over all rows (0) and with that of
the trajectories that are best as a whole (1), but no more than the expert itself reaches: the match. Where the two
hardly differ, as in steps that only the expert comes to, any weights will do.

Weights can take the right trajectories and still leave out how they begin, or a stretch of the way. So the weight on
every part is compared with what it would be if each trajectory's weight lay evenly on its rows: the cover. It may fall
over an episode, since an expert may be done before the trajectories are, but nobody comes to a later part without an
earlier one: a part with far less cover than some later one is a gap. It is V that closes gaps: rewards
near the start tell nobody apart, and only the flow of Eq. 14 asks for them.

Within a part of a trajectory all rows are much the same, and so should their weights be: where few of them hold the
weight, a policy learns from few. So the effective sample is compared with that of the same weight spread evenly over
each part of each trajectory: the evenness. The three make one figure, the trust, which is less where nothing in the
data is like the expert, or the expert lies outside their range. Numpy only.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from smodice_cli.algos.segments import discounted_future, whole_episodes
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
LEAST_COVER = 0.5  # of a part, in parts of the most of any later one, below which there is a gap
ALIKE = (0.2, 0.6)  # the best trajectories' likeness, in parts of the expert's own, where trust begins and is whole
INSIDE = (0.0, 0.8)  # the same of the share of the expert's states inside the range of the data
GAP_COST = 0.5  # of the trust: a policy may get over a gap or not
LEAST_EVENNESS = 0.3  # below which the trust falls with it
LEAST_SHARE = 0.002  # of the rows, or of the weight from there on, below which a part is too small to speak of
BEST, BEST_SHARE = 3, 0.005  # how many trajectories are the best ones: three, or this share of them
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

    def of_states(self, states: np.ndarray, fitted: np.ndarray) -> np.ndarray:
        """c of offline states, by the coefficients of a fit, block by block: an episode may be long."""
        blocks = (states[start : start + BLOCK][:, self.dims] for start in range(0, len(states), BLOCK))
        return np.concatenate([self.features(block) @ fitted for block in blocks]).clip(0, 1)


class Sums:
    """Sums over the rows of each part (the first axis) of each episode (the second): figures of rows are not kept."""

    def __init__(self, episodes: int) -> None:
        self.rows, self.future, self.weight, self.weighted_future = np.zeros((4, len(PARTS), episodes))

    def add(self, first: int, own: np.ndarray, w: np.ndarray, future: np.ndarray) -> None:
        """Of the episodes from `first` on, with offsets `own` and these weights and F of their rows."""
        block = slice(first, first + len(own) - 1)
        edges = [np.minimum(own[:-1] + begin, own[1:]) for begin in PARTS] + [own[1:]]
        for sums, figure in ((self.future, future), (self.weight, w), (self.weighted_future, w * future)):
            total = np.append(0.0, np.cumsum(figure, dtype=np.float64))
            sums[:, block] = np.diff([total[edge] for edge in edges], axis=0)
        self.rows[:, block] = np.diff(edges, axis=0)


def audit(dataset: Dataset, w: np.ndarray, gamma: float) -> dict[str, Any]:
    """What the judge says: the match of the weights by part of the episode, and of the data with the expert."""
    expert, judge, offsets = dataset["expert/observations"], Judge(dataset), dataset.offsets
    of_expert, fitted = judge.of_expert(expert), judge.fit(judge.features(expert))
    own = float(of_expert.mean())
    sums, likeness, squares = Sums(len(offsets) - 1), 0.0, 0.0
    for first, last in whole_episodes(offsets):
        rows, within = slice(offsets[first], offsets[last]), offsets[first : last + 1] - offsets[first]
        c = judge.of_states(dataset["observations"][rows], fitted)
        ends = judge.of_states(dataset["next_observations"][offsets[first + 1 : last + 1] - 1], fitted)
        sums.add(first, within, w[rows], (1 - gamma) * discounted_future(c, ends, within, gamma))
        likeness += float(c.sum(dtype=np.float64))
        squares += float(np.square(w[rows], dtype=np.float64).sum())
    gain = own - likeness / dataset.rows
    least = LEAST_CHOICE * gain if gain > LEAST_GAIN else np.inf  # else all data are like the expert
    parts = _parts(sums, _reached(dataset, of_expert, gamma), least)
    even = float((np.square(sums.weight) / np.maximum(sums.rows, 1)).sum() / squares) if squares else 0.0
    for number, part in enumerate(parts):
        part["cover"] /= max(later["cover"] for later in parts[number:]) or 1.0
        part["trust"] = part["match"] * (1 - GAP_COST * (1 - min(part["cover"] / LEAST_COVER, 1.0)))
        part["trust"] *= min(even / LEAST_EVENNESS, 1.0)
    trust, match, cover = (min((part[name] for part in parts), default=0.0) for name in ("trust", "match", "cover"))
    best_of_data, outside = max((part["best"] for part in parts), default=0.0), _outside(dataset)
    return {
        "trust": trust * _between(best_of_data / max(own, 1e-9), ALIKE) * _between(1 - outside, INSIDE),
        "match": match,
        "cover": cover,
        "evenness": even,
        "parts": parts,
        "expert": own,
        "best_of_data": best_of_data,
        "effective_trajectories": effective_size(sums.weight.sum(axis=0)),
        "outside": outside,
    }


def _between(figure: float, ends: tuple[float, float]) -> float:
    """0 at the first end, 1 at the second."""
    return min(max((figure - ends[0]) / (ends[1] - ends[0]), 0.0), 1.0)


def _reached(dataset: Dataset, c: np.ndarray, gamma: float) -> float:
    """The most that the expert itself reaches in any part: F along its trajectory, or its mean c, which states have."""
    offsets = dataset.arrays.get("expert/offsets")
    if offsets is None or offsets[-1] != len(c):
        return float(c.mean())
    future = (1 - gamma) * discounted_future(c, c[offsets[1:] - 1], offsets, gamma)
    t = np.arange(len(c)) - np.repeat(offsets[:-1], np.diff(offsets))
    of_parts = [
        future[part].mean() for begin, end in pairwise((*PARTS, np.inf)) if (part := (t >= begin) & (t < end)).any()
    ]
    return float(max(c.mean(), *of_parts))


def _parts(sums: Sums, reached: float, least: float) -> list[dict[str, float]]:
    """Match and cover of each part that is worth a word.

    More than what the expert `reached` is luck; `least` is by how much choosing must be able to gain.
    """
    by_episode, lengths = sums.weight.sum(axis=0), sums.rows.sum(axis=0)
    overall = sums.future.sum(axis=0) / lengths
    parts: list[dict[str, float]] = []
    for part, begin in enumerate(PARTS):
        rows, future, weight = sums.rows[part], sums.future[part], float(sums.weight[part].sum())
        there = rows > 0
        if rows.sum() < LEAST_SHARE * lengths.sum() or not by_episode[there].any():
            continue
        if sums.weight[part:].sum() < LEAST_SHARE * by_episode.sum():
            break  # the weights end before: nobody comes here
        count = max(BEST, round(BEST_SHARE * np.count_nonzero(there)))
        first = np.argsort(-overall[there], kind="stable")[:count]  # the best of a part alone would be the luckiest
        best = min(float((future[there][first] / rows[there][first]).mean()), reached)
        plain = float(future.sum() / rows.sum())
        weighted = float(sums.weighted_future[part].sum()) / weight if weight else plain
        match = (weighted - plain) / (best - plain) if best - plain > least else 1.0  # any weights will do
        match = min(max(match, 0.0), 1.0)
        cover = weight / float((by_episode * rows / lengths).sum())
        parts.append(
            {"from": begin, "plain": plain, "weighted": weighted, "best": best, "match": match, "cover": cover}
        )
    return parts


def _outside(dataset: Dataset) -> float:
    """The share of the expert's states that lie beyond the range of the data in some dimension."""
    states, expert = dataset["observations"], dataset["expert/observations"]
    low, high = np.full(len(dataset.dims), np.inf), np.full(len(dataset.dims), -np.inf)
    for start in range(0, dataset.rows, BLOCK):
        block = states[start : start + BLOCK][:, dataset.dims]
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
    margin = RANGE_MARGIN * (high - low) + 1e-6
    return float(((expert < low - margin) | (expert > high + margin)).any(axis=1).mean())
