"""A number without a simulator: the error of a policy's actions on recorded trajectories, weighted as it was trained.

Errors are squared, in units of the actions' variance: 0 is perfect, 1 is about what always giving the mean action does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.artifacts import Artifact
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError, SmodiceError
from smodice_cli.lazy import np

BOOTSTRAP = 2000  # resamples for the interval of the mean
ASKED, KNOWN = 5000, 20_000  # rows whose nearest neighbour is looked for, and rows among which
BLOCK = 500  # rows compared with all others at a time
Act = Callable[["np.ndarray"], "np.ndarray"]


def inputs(policy: Artifact) -> dict[str, Artifact]:
    """What the score is made from: the policy's dataset, its weights, and bc's policy on the same data, if there."""
    dataset = artifacts.follow(policy, "dataset", "dataset")
    found = {"policy": policy, "dataset": dataset}
    folder = policy.path.parent
    for name, kind, places in (
        ("weights", "weights", [folder / "weights.h5", folder.parent / "weights.h5"]),
        ("bc", "policy", [folder / "bc" / "policy.safetensors"]),
    ):
        if name == "weights" and "weights" in policy.header.inputs:
            found[name] = artifacts.follow(policy, "weights", "weights")
        elif other := next(filter(None, (_of_same_data(place, kind, dataset) for place in places)), None):
            found[name] = other
    return found


def _of_same_data(place: Path, kind: str, dataset: Artifact) -> Artifact | None:
    try:
        found = artifacts.load(place, kind)
    except SmodiceError:
        return None
    link = found.header.inputs.get("dataset")
    return found if link and link.digest == dataset.header.digest else None


@dataclass(frozen=True)
class Split:
    """The rows the error is measured on, and those the policy learned from."""

    asked: np.ndarray  # row numbers
    known: np.ndarray
    held_out: bool  # whether the policy never saw the trajectories that are asked about


def split(data: Dataset, held: list[int]) -> Split:
    """By trajectories; where none were held out, all rows are both."""
    real = data.real_rows()
    asked = np.isin(data.episode_of_row(), held) if held else np.ones(data.rows, bool)
    return Split(np.flatnonzero(asked & real), np.flatnonzero((~asked if held else asked) & real), bool(held))


def score(found: dict[str, Artifact], seed: int, draws: int = BOOTSTRAP) -> dict[str, Any]:
    """The payload of eval.json; its intervals come from so many draws of the trajectories."""
    data, policy = Dataset.of(found["dataset"]), found["policy"]
    rows = split(data, policy.header.metrics.get("held_out", []))
    weights = np.asarray(found["weights"].arrays["w"], np.float64) if "weights" in found else np.ones(data.rows)
    weight = weights[rows.asked]
    if not weight.any():
        raise InputError(f"{policy.path}: the held-out trajectories have no weight at all", "hold out more of them")
    rng = np.random.default_rng([seed, 2])
    scale = np.asarray(data["actions"][rows.known], np.float64).std(axis=0)
    near = Neighbours(data, rows.known, weights[rows.known], rng)
    mean = np.average(data["actions"][rows.known], axis=0, weights=weights[rows.known] if weights.any() else None)
    actors: dict[str, Act] = {"policy": NumpyPolicy(policy.arrays).act}
    if "bc" in found and found["bc"].header.metrics.get("held_out", []) == policy.header.metrics.get("held_out", []):
        actors["bc"] = NumpyPolicy(found["bc"].arrays).act
    actors["mean action"] = lambda states: np.broadcast_to(mean, (len(states), len(mean)))
    episode = data.episode_of_row()[rows.asked]
    results = {
        name: _weighted(data, rows.asked, _acted(data, rows.asked, act), scale, weight, episode, draws)
        for name, act in actors.items()
    }
    few = np.sort(rng.choice(len(rows.asked), min(ASKED, len(rows.asked)), replace=False))
    distances: dict[str, float] = {}
    if rows.held_out or near.several:  # a trajectory is no neighbour of itself
        copied = near.actions_beside(rows.asked[few])
        results["nearest neighbour"] = _weighted(data, rows.asked[few], copied, scale, weight[few], episode[few], draws)
        distances = near.distances(rows.asked[few])
    found_score = {
        "action_error": results["policy"]["error"],
        "interval_95": results["policy"]["interval_95"],
        "trajectories": len(np.unique(episode)),
        "rows": len(rows.asked),
        "held_out": rows.held_out,
        "weighted": "weights" in found,
        "beside": {name: result for name, result in results.items() if name != "policy"},
        **distances,
    }
    return {"env": data.env, "score": found_score}


def _acted(data: Dataset, rows: np.ndarray, act: Act) -> np.ndarray:
    """What somebody does in the states of some rows, asked for many at a time."""
    parts = (rows[start : start + (1 << 16)] for start in range(0, len(rows), 1 << 16))
    return np.concatenate([np.asarray(act(data["observations"][part]), np.float32) for part in parts])


def _weighted(
    data: Dataset,
    rows: np.ndarray,
    actions: np.ndarray,
    scale: np.ndarray,
    weight: np.ndarray,
    episode: np.ndarray,
    draws: int,
) -> dict[str, Any]:
    """The weighted error of actions in the states of rows, with an interval from drawing the trajectories again."""
    away = actions.astype(np.float64) - data["actions"][rows]
    error = np.mean((away / np.where(scale > 0, scale, 1.0)) ** 2, axis=1)
    _, which = np.unique(episode, return_inverse=True)
    sums, totals = np.bincount(which, weight * error), np.bincount(which, weight)
    rng = np.random.default_rng(0)
    chosen = (rng.integers(len(sums), size=len(sums)) for _ in range(draws))
    drawn = [sums[draw].sum() / mass for draw in chosen if (mass := totals[draw].sum())]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"error": float(sums.sum() / totals.sum()), "interval_95": [float(low), float(high)]}


class Neighbours:
    """Rows that the policy learned from, drawn in proportion to their weight, and which of them is nearest.

    A row's own trajectory does not count: it may be among what was learned, and its next row is always near.
    """

    def __init__(self, data: Dataset, rows: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> None:
        size = min(KNOWN, int((weights > 0).sum()))
        drawn = rng.choice(len(rows), size, replace=False, p=weights / weights.sum())
        self.data, self.rows, self.episode = data, np.sort(rows[drawn]), data.episode_of_row()
        self.states = self._states(self.rows)
        self.several = bool(np.ptp(self.episode[self.rows]))

    def _states(self, rows: np.ndarray) -> np.ndarray:
        return (self.data["observations"][rows] - self.data["mean"]) / self.data["std"]

    def actions_beside(self, asked: np.ndarray) -> np.ndarray:
        """The actions taken in the nearest of the known states of other trajectories."""
        own = self.episode[self.rows], self.episode[asked]
        return self.data["actions"][self.rows[_nearest(self.states, self._states(asked), own)[0]]]

    def distances(self, asked: np.ndarray) -> dict[str, float]:
        """How far the expert's states, which the policy is to visit, lie from the known ones.

        `expert_far` is the share of them that lie further away than 95 % of the states that were asked about do.
        """
        data = self.data
        dims = [dim for dim in data.dims if dim < self.states.shape[1]]
        expert = (data["expert/observations"][:ASKED, : len(dims)] - data["mean"][dims]) / data["std"][dims]
        own = self.episode[self.rows], self.episode[asked]
        here = _nearest(self.states[:, dims], self._states(asked)[:, dims], own)[1]
        there = _nearest(self.states[:, dims], expert)[1]
        limit = float(np.quantile(here, 0.95))
        return {
            "distance": float(np.median(here)),
            "expert_distance": float(np.median(there)),
            "expert_far": float((there > limit).mean()),
        }


def _nearest(
    known: np.ndarray, asked: np.ndarray, own: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """For each state that is asked about the nearest known one, and how far away it is, in standard deviations.

    With `own`, the trajectories of both, one of another trajectory.
    """
    at, distance = np.empty(len(asked), np.int64), np.empty(len(asked))
    squares = (known**2).sum(axis=1)
    for start in range(0, len(asked), BLOCK):
        part = asked[start : start + BLOCK]
        gaps = squares - 2 * part @ known.T
        if own is not None:
            gaps[own[0] == own[1][start : start + len(part), None]] = np.inf
        best = gaps.argmin(axis=1)
        at[start : start + len(part)] = best
        distance[start : start + len(part)] = np.linalg.norm(part - known[best], axis=1)
    return at, distance / np.sqrt(known.shape[1])


def line(score: dict[str, Any]) -> str:
    """One line for people."""
    low, high = score["interval_95"]
    text = f"action error [bold]{score['action_error']:.3f}[/] (95 % {low:.3f} to {high:.3f})"
    text += "".join(f"  {name} {result['error']:.3f}" for name, result in score["beside"].items())
    seen = "held-out trajectories" if score["held_out"] else "trajectories that it was trained on"
    text += f"  over {score['trajectories']} {seen}"
    far = score.get("expert_far")
    return text if far is None else f"{text}; {100 * far:.0f} % of the expert's states lie far from the data"
