"""What the other artifacts show: dataset, discriminator, value, policy, scores (numpy; networks run in numpy too)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.data import Dataset
from smodice_cli.errors import SmodiceError
from smodice_cli.inspect import weights
from smodice_cli.inspect.returns import of_scores, steady, worst_deviation
from smodice_cli.inspect.subject import Subject

SAMPLE = 50_000  # rows on which networks are looked at
SATURATED = 5.0  # |R| beyond which the classifier is all but certain (c above 0.993 or below 0.007)
AT_LIMIT = 0.99  # of the action range
HISTOGRAM_BINS = 24


def spread(values: np.ndarray) -> dict[str, float]:
    """Mean, deviation, smallest and largest."""
    values = np.asarray(values, np.float64)
    named = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    return {name: float(value) for name, value in named.items()}


def sample_rows(dataset: Dataset, count: int = SAMPLE) -> np.ndarray:
    """Evenly spaced rows, all where there are few."""
    return np.unique(np.linspace(0, dataset.rows - 1, min(count, dataset.rows)).astype(np.int64))


# --- dataset ---------------------------------------------------------------------------------------------------------


def dataset_view(subject: Subject) -> dict[str, Any]:
    """Episodes, lengths and returns by source; ranges of states and actions, offline and expert."""
    dataset = subject.dataset
    assert dataset is not None
    returns, lengths = weights.episode_returns(dataset)
    ends = dataset.offsets[1:] - 1
    sources = []
    for index, label in enumerate(dataset.sources):
        mine = dataset["episode_source"] == index
        if mine.any():
            ended = dataset["terminals"][ends[mine]] != 0
            sources.append(
                {
                    "source": label,
                    "episodes": int(mine.sum()),
                    "rows": int(lengths[mine].sum()),
                    "length": spread(lengths[mine]),
                    "return": spread(returns[mine]),
                    "ended_by_task": float(ended.mean()),
                }
            )
    return {
        "sources": sources,
        "states": state_ranges(dataset),
        "actions": action_ranges(dataset),
        "expert_states": len(dataset["expert/observations"]),
    }


def state_ranges(dataset: Dataset) -> list[dict[str, Any]]:
    """Each dimension's range in the offline states and, where the expert shares it, in the expert's."""
    states, expert = dataset["observations"], dataset["expert/observations"]
    low, high = states.min(axis=0), states.max(axis=0)
    found = []
    for dim in range(states.shape[1]):
        entry: dict[str, Any] = {
            "dim": dim,
            "min": float(low[dim]),
            "mean": float(dataset["mean"][dim]),
            "std": float(dataset["std"][dim]),
            "max": float(high[dim]),
        }
        if dim in dataset.dims:
            column = np.asarray(expert[:, dataset.dims.index(dim)], np.float64)
            entry |= {"expert_min": float(column.min()), "expert_mean": float(column.mean())}
            entry |= {"expert_max": float(column.max())}
        found.append(entry)
    return found


def action_ranges(dataset: Dataset) -> list[dict[str, float]]:
    """Each action's range, and how often it sits at its limit."""
    actions = dataset["actions"]
    limit = at_limit(dataset, actions).mean(axis=0)
    return [{"dim": dim, **spread(actions[:, dim]), "at_limit": float(limit[dim])} for dim in range(actions.shape[1])]


def at_limit(dataset: Dataset, actions: np.ndarray) -> np.ndarray:
    """Which actions are as far from the middle of their range as they can be."""
    low, high = dataset["action_low"], dataset["action_high"]
    return np.abs(actions - (low + high) / 2) >= AT_LIMIT * (high - low) / 2


# --- discriminator ---------------------------------------------------------------------------------------------------


def disc_view(subject: Subject) -> dict[str, Any]:
    """How well R tells expert from offline states, its histogram by source, and how often it is saturated."""
    dataset = subject.dataset
    if dataset is None:
        return {}
    rows = sample_rows(dataset)
    inputs = subject.artifact.header.config.get("inputs", "state")
    offline = disc_logits(subject, dataset.offline_inputs(inputs, rows), whole=True)
    expert = disc_logits(subject, dataset.expert_inputs(inputs))
    both = np.concatenate([expert, offline])
    source = dataset.source_of_row()[rows]
    groups = {"expert states": expert}
    groups |= {label: offline[source == i] for i, label in enumerate(dataset.sources) if (source == i).any()}
    chosen = weights.chosen_rows(dataset)
    found: dict[str, Any] = {
        "auc": weights.auroc(both, np.arange(len(both)) < len(expert)),
        "groups": {
            name: {**spread(values), "saturated": float((np.abs(values) > SATURATED).mean()), "states": len(values)}
            for name, values in groups.items()
        },
        "histogram": shared_histogram(groups),
    }
    if chosen is not None and chosen.rows[rows].any() and not chosen.rows[rows].all():
        found["label"] = {"name": chosen.name, "auc": weights.auroc(offline, chosen.rows[rows])}
    if "auc" in subject.artifact.header.metrics:
        found["held_out_auc"] = subject.artifact.header.metrics["auc"]
    return {"reward": found}


def disc_logits(subject: Subject, states: np.ndarray, whole: bool = False) -> np.ndarray:
    """R(s) of `states`, which hold all dimensions (`whole`) or only those the discriminator looks at."""
    t = subject.artifact.arrays
    x = np.asarray(states[:, t["dims"]] if whole else states, np.float32)
    x = (x - t["normaliser.mean"]) / t["normaliser.std"]
    for layer in (0, 2):
        x = np.tanh(x @ t[f"body.{layer}.weight"].T + t[f"body.{layer}.bias"])
    return (x @ t["body.4.weight"].T + t["body.4.bias"])[:, 0].astype(np.float64)


def shared_histogram(groups: dict[str, np.ndarray], bins: int = HISTOGRAM_BINS) -> dict[str, Any]:
    """Shares of each group's values on common edges."""
    together = np.concatenate(list(groups.values()))
    low, high = np.quantile(together, (0.001, 0.999))
    edges = np.linspace(low, max(high, low + 1e-9), bins + 1)
    clipped = {name: np.clip(values, edges[0], edges[-1]) for name, values in groups.items()}
    counts = {name: (np.histogram(v, edges)[0] / len(v)).tolist() for name, v in clipped.items()}
    return {"edges": edges.tolist(), "shares": counts}


# --- value -----------------------------------------------------------------------------------------------------------


def value_view(subject: Subject) -> dict[str, Any]:
    """V from the start to the end of the trajectories, by label; the loss curves are in `curves`."""
    if subject.artifact.header.config.get("estimator") == "returns":
        return {"without_value": "there is no V: the weights are those of trajectory returns (value.estimator)"}
    try:
        arrays = artifacts.follow(subject.artifact, "weights", "weights").arrays
    except SmodiceError as error:
        return {"without_value": f"without its weights: {error.message}"}
    v, t = np.asarray(arrays["v"], np.float64), np.asarray(arrays["t"])
    chosen = weights.chosen_rows(subject.dataset) if subject.dataset else None
    groups = {chosen.name: chosen.rows, "the rest": ~chosen.rows} if chosen else {"all rows": np.ones(len(v), bool)}
    lengths = np.bincount(arrays["episode"])[arrays["episode"]]
    phase = np.minimum((5 * t) // np.maximum(lengths, 1), 4)
    found = {}
    for name, rows in groups.items():
        parts = [v[rows & (phase == part)] for part in range(5)]
        fifths = [float(part.mean()) if len(part) else None for part in parts]
        found[name] = {"fifths": fifths, **weights.profile(v, t, rows)}
    return {"value": found}


# --- policy ----------------------------------------------------------------------------------------------------------


def policy_view(subject: Subject) -> dict[str, Any]:
    """The policy's actions on the data, weighted as it learned from them, against the data's own."""
    dataset = subject.dataset
    if dataset is None:
        return {}
    weighted = True
    try:
        w = np.asarray(artifacts.follow(subject.artifact, "weights", "weights").arrays["w"], np.float64)
    except SmodiceError:
        w, weighted = np.ones(dataset.rows), False
    w = np.where(dataset.real_rows(), w, 0.0)
    rows = np.random.default_rng(0).choice(dataset.rows, min(SAMPLE, dataset.rows), p=w / w.sum())
    data, acted = dataset["actions"][rows], policy_actions(subject, dataset["observations"][rows])
    limits = {"data": at_limit(dataset, data), "policy": at_limit(dataset, acted)}
    found = []
    for dim in range(data.shape[1]):
        pair = {"data": data[:, dim], "policy": acted[:, dim]}
        limit = {name: float(reached[:, dim].mean()) for name, reached in limits.items()}
        error = float(np.square(pair["data"] - pair["policy"]).mean())
        variance = float(pair["data"].var())
        found.append(
            {
                "dim": dim,
                "data": {**spread(pair["data"]), "at_limit": limit["data"]},
                "policy": {**spread(pair["policy"]), "at_limit": limit["policy"]},
                "squared_error": error,
                "explained": 1 - error / variance if variance else None,
                "histogram": shared_histogram(pair),
            }
        )
    return {"actions": found, "weighted": weighted}


def policy_actions(subject: Subject, states: np.ndarray) -> np.ndarray:
    """The mode of the policy in each state."""
    from smodice_cli.algos.acting import NumpyPolicy

    return np.asarray(NumpyPolicy.load(subject.artifact.path).act(states, None))


# --- scores ----------------------------------------------------------------------------------------------------------


def eval_view(subject: Subject) -> dict[str, Any]:
    """Scores, returns and lengths of the episodes, and how they ended."""
    payload = artifacts.read_payload(subject.artifact.path)
    episodes = payload["per_episode"]
    returns = np.array([episode["return"] for episode in episodes])
    return {
        "score": payload["score"],
        "episodes": {
            "count": len(episodes),
            "return": spread(returns),
            "length": spread(np.array([episode["length"] for episode in episodes])),
            "ended": dict(Counter(episode["ended"] for episode in episodes)),
            "quantiles": {str(q): float(np.quantile(returns, q)) for q in (0.0, 0.25, 0.5, 0.75, 1.0)},
        },
        "per_episode": episodes,
    } | curve_view(payload.get("curve") or [])


def curve_view(curve: list[dict[str, Any]]) -> dict[str, Any]:
    """The return over training and whether it is steady; nothing where no snapshots were scored."""
    lines = of_scores(curve)
    if not lines:
        return {}
    curves = {name: {"steps": line["steps"], "values": line["mean"]} for name, line in lines.items()}
    deviation = worst_deviation(lines["normalized"])
    return {"curve": curve, "curves": curves, "steady": steady(deviation), "worst_deviation": deviation}
