"""What the weights chose: expert against the rest, histogram, Lorenz curve, trajectories, what-if, comparison (numpy).

Labels (sources, success) serve these views only; no stage of training reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smodice_cli import envs
from smodice_cli.algos.segments import occupancy
from smodice_cli.data import Dataset
from smodice_cli.errors import SmodiceError
from smodice_cli.lazy import np
from smodice_cli.statistics import auroc, effective_size, ranks

CAPS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # in units of the mean weight
TEMPERATURES = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
TOP_SHARES = (0.001, 0.01, 0.1)
LORENZ_POINTS = 201
EQUAL = "rows counted alike"
NEVER = 1 << 62  # the step of what is not done
DECADES = 8  # of log10 weight that a histogram shows below its largest weight


@dataclass(frozen=True)
class Chosen:
    """The rows that a good imitator would choose, as far as labels tell."""

    name: str  # what they are, e.g. "hopper-expert-v2"
    how: str  # by which label
    rows: np.ndarray  # bool


def usable(column: np.ndarray) -> np.ndarray:
    """Weights as views use them: what is no number, or negative, counts as no weight (and is reported as such)."""
    w = np.asarray(column, np.float64)
    return np.where(np.isfinite(w) & (w > 0), w, 0.0)


def chosen_rows(dataset: Dataset | None) -> Chosen | None:
    """Rows of the source named expert, else of the source with the best returns, else of episodes that succeed.

    Returns compare sources that all hold rewards, and that do not all hold the same.
    """
    if dataset is None:
        return None
    source, labels = dataset.source_of_row(), dataset.sources
    if len(labels) > 1:
        named = [index for index, label in enumerate(labels) if "expert" in label]
        if len(named) == 1:
            return Chosen(labels[named[0]], "by its source", source == named[0])
        returns, _ = episode_returns(dataset)
        means = [returns[dataset["episode_source"] == index].mean() for index in range(len(labels))]
        if not dataset.without_rewards and max(means) > min(means):
            best = int(np.argmax(means))
            return Chosen(labels[best], "the source with the highest return", source == best)
    if (env := _environment(dataset)) is None or (test := env.success) is None:
        return None
    width = env.obs_dim
    last = dataset.offsets[1:] - 1
    reached = test(dataset["next_observations"][last][:, :width])
    if dataset.absorbing:  # the state before the absorbing one
        reached |= test(dataset["observations"][np.maximum(last, 0)][:, :width])
        reached |= test(dataset["observations"][np.maximum(last - 1, 0)][:, :width])
    if reached.all() or not reached.any():
        return None
    rows = np.repeat(reached, np.diff(dataset.offsets))
    return Chosen("episodes that succeed", "by the task's own success test", rows)


def _environment(dataset: Dataset) -> envs.Environment | None:
    """The data's environment; None where it is one that is not known here."""
    try:
        return envs.find_in_file(dataset.env)
    except SmodiceError:
        return None


def episode_returns(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return and length of every episode."""
    return episode_sums(dataset["rewards"], dataset.offsets), np.diff(dataset.offsets)


def episode_sums(column: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The sum of a column over each episode, in double precision."""
    return np.add.reduceat(np.asarray(column), offsets[:-1], dtype=np.float64)


def parts(chosen: Chosen | None, rows: int) -> dict[str, np.ndarray]:
    """The chosen rows and the rest; all rows where nothing tells them apart."""
    return {chosen.name: chosen.rows, "the rest": ~chosen.rows} if chosen else {"all rows": np.ones(rows, bool)}


def groups(source: np.ndarray, labels: list[str], chosen: Chosen | None) -> dict[str, np.ndarray]:
    """Rows by source; where there is one source only, by whether they are the chosen ones."""
    if len(labels) == 1 and chosen:
        return parts(chosen, len(source))
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
    """Every episode with its source, return, length, mean weight and share of all weight, heaviest mean first.

    Without rewards there is no return.
    """
    returns, lengths = episode_returns(dataset)
    sums = episode_sums(w, dataset.offsets)
    share = sums / sums.sum()
    means = sums / lengths
    return [
        {
            "id": int(k),
            "source": dataset.sources[int(dataset["episode_source"][k])],
            **({"return": float(returns[k])} if dataset.rewarded else {}),
            "length": int(lengths[k]),
            "mean_weight": float(means[k]),
            "share": float(share[k]),
        }
        for k in np.argsort(-means, kind="stable")
    ]


def branches(w: np.ndarray, dataset: Dataset) -> list[dict[str, Any]]:
    """Where the rows lead, by the tasks that their trajectory has done so far and the one that it does next.

    Each with its share of all weight, and its shares of rows and of weight among those that have done the same; none
    where the environment declares no tasks.
    """
    if (env := _environment(dataset)) is None or not env.tasks:
        return []
    states, offsets, names = dataset["next_observations"][:, : env.obs_dim], dataset.offsets, [*env.tasks, "nothing"]
    first = np.full((len(offsets) - 1, len(env.tasks)), NEVER)  # the step in which an episode first does a task
    for column, test in enumerate(env.tasks.values()):
        hits = np.flatnonzero(test(states))
        episodes, at = np.unique(np.searchsorted(offsets, hits, "right") - 1, return_index=True)
        first[episodes, column] = hits[at] - offsets[episodes]
    orders = np.argsort(first, axis=1, kind="stable")
    orders[np.take_along_axis(first, orders, axis=1) == NEVER] = len(env.tasks)
    known, order = np.unique(orders, axis=0, return_inverse=True)
    episode, t = dataset.episode_of_row(), dataset.time_of_row()
    so_far = sum((first[episode, column] < t).astype(np.int64) for column in range(len(env.tasks)))
    place = order.reshape(-1)[episode] * len(names) + so_far
    sums = [np.bincount(place, x, len(known) * len(names)) for x in (np.ones(len(w)), w / w.sum())]
    found: dict[tuple[str, str], np.ndarray] = {}
    for index in np.flatnonzero(sums[0]):
        doing = [names[task] for task in (*known[index // len(names)], len(env.tasks))]
        key = " > ".join(doing[: index % len(names)]) or "nothing", doing[index % len(names)]
        found[key] = found.get(key, 0) + np.array([total[index] for total in sums])
    here = {done: np.sum([found[key] for key in found if key[0] == done], axis=0) for done, _ in found}
    return [
        {
            "done": done,
            "next": then,
            "rows_here": float(rows / here[done][0]),
            "weight_here": float(weight / here[done][1]) if here[done][1] else 0.0,
            "share": float(weight),
        }
        for (done, then), (rows, weight) in sorted(found.items(), key=lambda one: (-here[one[0][0]][1], -one[1][1]))
    ]


def heaviest(episode: np.ndarray, w: np.ndarray) -> int:
    """The trajectory with the largest mean weight."""
    return int(np.argmax(np.bincount(episode, w) / np.maximum(np.bincount(episode), 1)))


def along_time(arrays: dict[str, np.ndarray], k: int, dataset: Dataset | None) -> dict[str, list[float]]:
    """One episode row by row: weight, R (the discriminator's logit), V, residual and the task's reward."""
    rows = np.flatnonzero(np.asarray(arrays["episode"]) == k)
    names = {"t": "t", "weight": "w", "R": "reward", "V": "v", "residual": "residual"}
    columns = {shown: np.asarray(arrays[name])[rows].tolist() for shown, name in names.items()}
    if dataset is not None and dataset.rewarded:
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


def on_equal_rows(w: np.ndarray, t: np.ndarray, config: Mapping[str, Any]) -> np.ndarray | None:
    """The weights as the paper draws them, on rows that count alike; None where they already are (see D10)."""
    if config.get("estimator") != "dual" or config.get("sampling") != "discounted":
        return None
    return occupancy(w, t, config["n_step"], config["gamma"])


def look_alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether no picture could tell two weightings of the same rows apart."""
    return shared_weight(a, b) > 0.98


def shared_weight(a: np.ndarray, b: np.ndarray) -> float:
    """What two weightings have in common: 1 less their total variation."""
    return float(np.minimum(a / a.sum(), b / b.sum()).sum())


def what_if(w: np.ndarray) -> dict[str, list[dict[str, float]]]:
    """The effective sample size if the weights were clipped at c times their mean, or taken to the power 1/T."""
    w = np.asarray(w, np.float64) / np.mean(w)
    top = float(w.max())
    caps = [{"cap": c, **_concentration(np.minimum(w, c)), "clipped": float((w > c).mean())} for c in CAPS if c < top]
    heated = [{"temperature": T, **_concentration((w / top) ** (1 / T))} for T in TEMPERATURES]
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
        "shared_weight": shared_weight(a, b),
    }
