"""A second opinion on the weights: do they take what the best trajectories of the data have of the expert?

It asks neither the discriminator nor V. A judge of its own, a ridge regression on random Fourier features, tells the
expert's states from the data's: c(s) = d^E/(d^E + d^O). What follows a row counts as much as the row itself, because
early in an episode all policies look alike: F_t = (1-gamma) sum_k gamma^k c(s_{t+k}), the last state lasting for ever.
In every part of the episodes the mean of F under the weights is compared with that over all rows (0) and with that of
the best trajectories (1): the match.

Weights can take the right trajectories and still leave out how they begin. So the weight on every part is compared with
what it would be if each trajectory's weight lay evenly on its rows: the cover. It is V that provides for it: rewards
near the start tell nobody apart, and only the flow of Eq. 14 asks for it. A start with hardly any weight is no match.
Numpy only.
"""

from __future__ import annotations

from collections.abc import Callable
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
PARTS = (0, 25, 100, 300)  # steps of an episode at which its parts begin
START = 100  # steps that no trajectory gets round: a policy that never saw them never comes to the others
LEAST_COVER = 0.25  # of its due, below which a part of the start counts for less
LEAST_SHARE = 0.002  # of the rows, below which a part is too small to speak of
BEST, BEST_SHARE = 3, 0.005  # which trajectory stands for the best ones: the third, or at this share of them
FLATTER, SHARPER = (0.8, 0.65), (1.25, 1.6)  # powers of the ratios that are tried: alpha divided by them
TOLERANCE = 0.01  # of the match, that counts as no difference
LEAST_GAIN = 0.05  # by which the expert's states must be more like the expert than the data's are
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


class Opinion:
    """What the judge knows of a data set, to be asked about any weights."""

    def __init__(self, dataset: Dataset, gamma: float) -> None:
        expert, judge = dataset["expert/observations"], Judge(dataset)
        c, self.expert = judge.of_rows(dataset["observations"], expert), float(judge.of_expert(expert).mean())
        ends = judge.of_rows(dataset["next_observations"][dataset.offsets[1:] - 1], expert)
        self.dataset = dataset
        self.choosable = self.expert - c.mean() > LEAST_GAIN  # else all data are like the expert: any weights will do
        self.future = ((1 - gamma) * discounted_future(c, ends, dataset.offsets, gamma)).astype(np.float32)
        self.episode, self.t, self.lengths = dataset.episode_of_row(), dataset.time_of_row(), np.diff(dataset.offsets)

    def parts(self, w: np.ndarray) -> list[dict[str, Any]]:
        """The match and the cover of the weights by part of the episodes; a match may lie beyond 0 and 1."""
        episodes, by_episode = len(self.lengths), np.bincount(self.episode, w)
        parts = []
        for begin, end in zip(PARTS, (*PARTS[1:], np.inf), strict=True):
            inside = np.flatnonzero((self.t >= begin) & (self.t < end))
            episode, found, weights = self.episode[inside], self.future[inside], w[inside]
            if len(inside) < LEAST_SHARE * len(w) or not by_episode[episode].any():
                continue
            counts = np.bincount(episode, minlength=episodes)
            means = np.bincount(episode, found, minlength=episodes)[counts > 0] / counts[counts > 0]
            place = len(means) - min(len(means), max(BEST, round(BEST_SHARE * len(means))))
            best = float(np.partition(means, place)[place])  # no mean of the best, which few are lucky enough for
            plain = float(found.mean())
            weighted = float(np.average(found, weights=weights)) if weights.any() else plain
            match = (weighted - plain) / (best - plain) if self.choosable and best > plain else 1.0
            cover = float(weights.sum() / (by_episode * counts / self.lengths).sum())
            if begin < START:
                match *= min(cover / LEAST_COVER, 1.0)
            figures = {"plain": plain, "weighted": weighted, "best": best, "match": match, "cover": cover}
            parts.append({"from": begin, **figures})
        return parts

    def match(self, w: np.ndarray) -> float:
        """The least match of any part, which may lie beyond 0 and 1."""
        return min((part["match"] for part in self.parts(w)), default=0.0)

    def of(self, w: np.ndarray) -> dict[str, Any]:
        """All that there is to say of these weights, of the data and of the expert."""
        parts = [part | {"match": min(max(part["match"], 0.0), 1.0)} for part in self.parts(w)]
        return {
            "match": min((part["match"] for part in parts), default=0.0),
            "cover": min((part["cover"] for part in parts if part["from"] < START), default=0.0),
            "parts": parts,
            "expert": self.expert,
            "best_of_data": max((part["best"] for part in parts), default=0.0),
            "effective_trajectories": effective_size(np.bincount(self.episode, w)),
            "outside": _outside(self.dataset),
        }


def temper(opinion: Opinion, weights: Callable[[float], np.ndarray]) -> tuple[float, np.ndarray]:
    """The power of the ratios, and the `weights` under it, that is right for these data (D53).

    The flattest whose match is as good as that of the ratios themselves, since flatter weights rest on more rows; or,
    where none is, sharper ones for as long as that helps.
    """
    power, chosen = 1.0, weights(1.0)
    if not opinion.choosable:
        return power, chosen
    match = own = opinion.match(chosen)
    for flatter in FLATTER:
        tried = weights(flatter)
        if opinion.match(tried) < own - TOLERANCE:
            break
        power, chosen = flatter, tried
    for sharper in SHARPER if power == 1.0 else ():
        tried = weights(sharper)
        if (found := opinion.match(tried)) < match + TOLERANCE:
            break
        power, chosen, match = sharper, tried, found
    return power, chosen


def _outside(dataset: Dataset) -> float:
    """The share of the expert's states that lie beyond the range of the data in some dimension."""
    states, expert = dataset["observations"], dataset["expert/observations"]
    low, high = np.full(len(dataset.dims), np.inf), np.full(len(dataset.dims), -np.inf)
    for start in range(0, dataset.rows, BLOCK):
        block = states[start : start + BLOCK][:, dataset.dims]
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
    margin = RANGE_MARGIN * (high - low) + 1e-6
    return float(((expert < low - margin) | (expert > high + margin)).any(axis=1).mean())
