"""What the weights chose: expert against the rest, histogram, Lorenz curve, trajectories, what-if, comparison (numpy).

Labels (sources, success) serve these views only; no stage of training reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from smodice_cli.data import Dataset
from smodice_cli.envs import registry
from smodice_cli.errors import SmodiceError
from smodice_cli.inspect.diagnostics import effective_size

CAPS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # in units of the mean weight
TEMPERATURES = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
TOP_SHARES = (0.001, 0.01, 0.1)
LORENZ_POINTS = 201
DECADES = 8  # of log10 weight that a histogram shows below its largest weight


@dataclass(frozen=True)
class Chosen:
    """The rows that a good imitator would choose, as far as labels tell."""

    name: str  # what they are, e.g. "hopper-expert-v2"
    how: str  # by which label
    rows: np.ndarray  # bool


def chosen_rows(dataset: Dataset) -> Chosen | None:
    """Rows of the source named expert, else of the source with the best returns, else of episodes that succeed."""
    source, labels = dataset.source_of_row(), dataset.sources
    if len(labels) > 1:
        named = [index for index, label in enumerate(labels) if "expert" in label]
        if len(named) == 1:
            return Chosen(labels[named[0]], "by its source", source == named[0])
        returns, _ = episode_returns(dataset)
        means = [returns[dataset["episode_source"] == index].mean() for index in range(len(labels))]
        best = int(np.argmax(means))
        return Chosen(labels[best], "the source with the highest return", source == best)
    try:
        test = registry.success(dataset.env)
    except SmodiceError:
        test = None
    if test is None:
        return None
    width = registry.spec(dataset.env).obs_dim
    last = dataset.offsets[1:] - 1
    reached = test(dataset["next_observations"][last][:, :width])
    if dataset.absorbing:  # the state before the absorbing one
        reached |= test(dataset["observations"][np.maximum(last, 0)][:, :width])
        reached |= test(dataset["observations"][np.maximum(last - 1, 0)][:, :width])
    if reached.all() or not reached.any():
        return None
    lengths = np.diff(dataset.offsets)
    return Chosen("episodes that succeed", "by the task's own success test", np.repeat(reached, lengths))


def episode_returns(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return and length of every episode."""
    return episode_sums(dataset["rewards"], dataset.offsets), np.diff(dataset.offsets)


def episode_sums(column: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The sum of a column over each episode, in double precision."""
    return np.add.reduceat(np.asarray(column), offsets[:-1], dtype=np.float64)


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share their mean rank."""
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


def groups(source: np.ndarray, labels: list[str], chosen: Chosen | None) -> dict[str, np.ndarray]:
    """Rows by source; where there is one source only, by whether they are the chosen ones."""
    if len(labels) == 1 and chosen:
        return {chosen.name: chosen.rows, "the rest": ~chosen.rows}
    found = {label: source == index for index, label in enumerate(labels)}
    return {label: rows for label, rows in found.items() if rows.any()}


def against_the_rest(w: np.ndarray, chosen: Chosen) -> dict[str, Any]:
    """Do the weights prefer the labelled rows? Ratio of means, share of weight against share of rows, AUROC."""
    inside, outside = w[chosen.rows], w[~chosen.rows]
    low = float(outside.mean())
    return {
        "name": chosen.name,
        "how": chosen.how,
        "rows": len(inside),
        "base_rate": len(inside) / len(w),
        "share": float(inside.sum() / w.sum()),
        "mean": float(inside.mean()),
        "mean_rest": low,
        "ratio_of_means": float(inside.mean()) / low if low else None,
        "auroc": auroc(w, chosen.rows),
    }


def histogram(w: np.ndarray, groups: dict[str, np.ndarray], bins: int = 16) -> dict[str, Any]:
    """Counts of log10 weights by group of rows on common edges; exact zeros, and what lies below the edges, apart."""
    positive = w > 0
    with np.errstate(divide="ignore"):
        logs = np.log10(w)
    top = float(logs.max()) if positive.any() else 0.0
    low = max(float(logs[positive].min()) if positive.any() else -1.0, top - DECADES)
    edges = np.linspace(np.floor(2 * low) / 2, max(np.ceil(2 * top) / 2, np.floor(2 * low) / 2 + 0.5), bins + 1)
    counts = {}
    for label, rows in groups.items():
        mine = rows & positive
        counts[label] = {
            "zero": int((rows & ~positive).sum()),
            "below": int((logs[mine] < edges[0]).sum()),
            "counts": np.histogram(logs[mine], edges)[0].tolist(),
        }
    return {"log10_edges": edges.tolist(), "groups": counts}


def lorenz(w: np.ndarray, points: int = LORENZ_POINTS) -> dict[str, Any]:
    """The share of all weight that the lightest x of the rows hold, on `points` values of x, and the Gini index.

    Gini = 1 - 2 x the area below the curve: 0 where all rows weigh the same, 1 - 1/N where one row has everything.
    """
    total = np.append(0.0, np.cumsum(np.sort(np.asarray(w, np.float64))))
    total /= total[-1]
    area = float((total[:-1] + total[1:]).sum() / (2 * len(w)))
    x = np.linspace(0.0, 1.0, points)
    y = np.interp(x * len(w), np.arange(len(w) + 1), total)
    return {"rows": x.tolist(), "weight": y.tolist(), "gini": 1 - 2 * area}


def trajectories(w: np.ndarray, dataset: Dataset) -> list[dict[str, Any]]:
    """Every episode with its source, return, length, mean weight and share of all weight, heaviest mean first."""
    returns, lengths = episode_returns(dataset)
    sums = episode_sums(w, dataset.offsets)
    share = sums / sums.sum()
    means = sums / lengths
    return [
        {
            "id": int(k),
            "source": dataset.sources[int(dataset["episode_source"][k])],
            "return": float(returns[k]),
            "length": int(lengths[k]),
            "mean_weight": float(means[k]),
            "share": float(share[k]),
        }
        for k in np.argsort(-means, kind="stable")
    ]


def along_time(arrays: dict[str, np.ndarray], k: int, dataset: Dataset | None) -> dict[str, list[float]]:
    """One episode row by row: weight, R (the discriminator's logit), V, residual and the task's reward."""
    rows = np.flatnonzero(np.asarray(arrays["episode"]) == k)
    names = {"t": "t", "weight": "w", "R": "reward", "V": "v", "residual": "residual"}
    columns = {shown: np.asarray(arrays[name])[rows].tolist() for shown, name in names.items()}
    if dataset is not None:
        columns["task_reward"] = dataset["rewards"][rows].tolist()
    return columns


def peaks(w: np.ndarray, most: int) -> list[int]:
    """Where a trajectory's weight is highest: its largest local maxima, not next to each other, in order of time."""
    sides = np.pad(w, 1, constant_values=-np.inf)
    local = np.flatnonzero((w >= sides[:-2]) & (w >= sides[2:]))
    found: list[int] = []
    for step in local[np.argsort(-w[local], kind="stable")].tolist():
        if len(found) < most and all(abs(step - other) > len(w) // 20 for other in found):
            found.append(step)
    return sorted(found)


def profile(w: np.ndarray, t: np.ndarray, rows: np.ndarray | None = None, bins: int = 40) -> dict[str, list[float]]:
    """Mean and middle half of the weights against the time in the episode."""
    if rows is not None:
        w, t = w[rows], t[rows]
    last = int(np.quantile(t, 0.95)) + 1  # few episodes reach beyond
    edges = np.unique(np.linspace(0, last, min(bins, last) + 1).astype(int))
    found: dict[str, list[float]] = {"t": [], "mean": [], "low": [], "high": []}
    order = np.argsort(t, kind="stable")
    cuts = np.searchsorted(t[order], edges)
    for a, b, start, stop in zip(cuts[:-1], cuts[1:], edges[:-1], edges[1:], strict=True):
        if b > a:
            part = w[order[a:b]]
            low, high = np.quantile(part, (0.25, 0.75))
            for name, value in zip(found, ((start + stop - 1) / 2, part.mean(), low, high), strict=True):
                found[name].append(float(value))
    return found


def on_rows_alike(w: np.ndarray, t: np.ndarray, config: Mapping[str, Any]) -> np.ndarray | None:
    """The weights as the paper draws them, where those of train-value's settings are against discounted data (D10)."""
    if config.get("estimator") != "dual" or config.get("sampling") != "discounted":
        return None
    return occupancy(w, t, config["n_step"], config["gamma"])


def occupancy(w: np.ndarray, t: np.ndarray, n: int, gamma: float) -> np.ndarray:
    """d*/d^O on rows that count alike, mean 1, from weights whose V was trained on rows drawn by gamma^t (D10).

    There d^O is the discounted data, and a row's weight w_t = sum_{k<n} gamma^k xi_{t-k} over the segments that cover
    it (D7) lacks the discount at which each segment starts: gamma^t sum_{k<n} xi_{t-k} has it. xi follows from
    w_t - gamma w_{t-1} = xi_t - gamma^n xi_{t-n}.
    """
    if n == 1:
        found = gamma**t * w
        return found / found.mean()
    rows = np.arange(len(w))
    change = w - gamma * np.where(t > 0, np.roll(w, 1), 0.0)
    xi = change.copy()
    for back in range(n, int(t.max()) + 1, n):
        later = np.flatnonzero(t >= back)
        xi[later] += gamma**back * change[later - back]
    total = np.append(0.0, np.cumsum(xi))
    found = gamma**t * np.maximum(total[rows + 1] - total[rows + 1 - np.minimum(t + 1, n)], 0.0)
    return found / found.mean()


def what_if(w: np.ndarray) -> dict[str, list[dict[str, float]]]:
    """The effective sample size if the weights were clipped at c times their mean, or taken to the power 1/T."""
    w = np.asarray(w, np.float64) / np.mean(w)
    top = float(w.max())
    caps = [{"cap": c, **_concentration(np.minimum(w, c)), "clipped": float((w > c).mean())} for c in CAPS if c < top]
    heated = []
    for temperature in TEMPERATURES:
        powered = (w / top) ** (1 / temperature)
        heated.append({"temperature": temperature, **_concentration(powered)})
    return {"clip": caps, "temperature": heated}


def _concentration(w: np.ndarray) -> dict[str, float]:
    return {"effective_share": effective_size(w) / len(w), "largest_share": float(w.max() / w.sum())}


def compare(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """Two weightings of the same rows: Spearman's rank correlation, overlap of the heaviest rows, shared weight."""
    ra, rb = ranks(a), ranks(b)
    ra, rb = ra - ra.mean(), rb - rb.mean()
    spread = float(np.sqrt((ra @ ra) * (rb @ rb)))
    overlap = {}
    for share in TOP_SHARES:
        k = max(1, round(share * len(a)))
        first, second = (np.argpartition(-x, k - 1)[:k] for x in (a, b))
        overlap[f"top {100 * share:g} %"] = len(np.intersect1d(first, second)) / k
    return {
        "spearman": float(ra @ rb) / spread if spread else None,
        "overlap": overlap,
        "shared_weight": float(np.minimum(a / a.sum(), b / b.sum()).sum()),  # 1 - total variation
    }


# --- where in the state space ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plane:
    """Two coordinates of the state to draw: dimensions of it, or directions of largest spread."""

    axes: np.ndarray  # (2, width)
    names: tuple[str, str]
    centre: np.ndarray
    dims: tuple[int, int] | None = None

    def project(self, states: np.ndarray) -> np.ndarray:
        if self.dims:
            return np.asarray(states[:, list(self.dims)], np.float64)
        return (states - self.centre) @ self.axes.T


def plane(dataset: Dataset, dims: tuple[int, int] | None = None) -> Plane:
    """`dims`, else what the registry says is worth drawing, else the two principal components of the offline states."""
    width = dataset["observations"].shape[1]
    if dims is None and dataset.env in registry.SPECS:
        dims = registry.SPECS[dataset.env].plot_dims
    if dims:
        names = (f"s[{dims[0]}]", f"s[{dims[1]}]")
        return Plane(np.eye(width)[list(dims)], names, np.zeros(width), dims)
    every = max(1, dataset.rows // 50_000)
    centre, std = np.asarray(dataset["mean"], np.float64), np.asarray(dataset["std"], np.float64)
    z = (dataset["observations"][::every] - centre) / std
    _, vectors = np.linalg.eigh(np.atleast_2d(np.cov(z, rowvar=False)) if len(z) > 1 else np.eye(width))
    axes = np.zeros((2, width))  # the second stays 0 where states have one dimension
    axes[:width] = vectors[:, ::-1][:, :2].T / std
    return Plane(axes, ("component 1", "component 2"), centre)


def state_map(dataset: Dataset, w: np.ndarray, seen: Plane, bins: int = 60) -> dict[str, Any]:
    """Shares of offline rows, of weight and of expert states in the cells of one grid.

    Expert states that hold only some dimensions are left out unless those are the drawn ones.
    """
    points = seen.project(dataset["observations"])
    low, high = np.quantile(points, (0.0005, 0.9995), axis=0)
    margin = 0.03 * (high - low) + 1e-6
    edges = [np.linspace(a, b, bins + 1) for a, b in zip(low - margin, high + margin, strict=True)]
    rows = np.histogram2d(points[:, 0], points[:, 1], edges)[0]
    weight = np.histogram2d(points[:, 0], points[:, 1], edges, weights=w)[0]
    expert = expert_points(dataset, seen)
    found = None if expert is None else np.histogram2d(expert[:, 0], expert[:, 1], edges)[0]
    return {
        "names": seen.names,
        "edges": edges,
        "offline": rows / len(points),
        "weighted": weight / w.sum(),
        "expert": None if found is None else found / len(expert),  # type: ignore[arg-type]
    }


def expert_points(dataset: Dataset, seen: Plane) -> np.ndarray | None:
    """The expert's states in the plane; None where they do not hold the drawn dimensions."""
    states = dataset["expert/observations"]
    if len(dataset.dims) == dataset["observations"].shape[1]:
        return seen.project(states)
    if seen.dims and set(seen.dims) <= set(dataset.dims):
        columns = [dataset.dims.index(dim) for dim in seen.dims]
        return np.asarray(states[:, columns], np.float64)
    return None
