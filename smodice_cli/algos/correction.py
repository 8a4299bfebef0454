"""Corrections (D55): what to do in a state that lies a little beside a recorded one.

An imitator is never quite where the recording was, and a few recorded paths show where to be but not how to come back.
The rows of all the data, good or bad, show what actions do. Two linear maps of standardised states x and actions u:

    inverse   u  = x B + (x' - x) C + const      so from x + d the action u + d (B - C) leads to the same x'
    forward   x' = x A + u G + const             so an error e of an action leaves e G A a step later,
                                                 and e G (A + (B - C) G) where the next action is corrected

The policy is cloned on states with noise d and actions with d (B - C) added, but only where the maps can be trusted:
where the inverse one explains the actions of trajectories that it never saw, and the correction takes back most of an
error. That is so for arms and carts that follow positions or velocities, and not for bodies that walk.
"""

from __future__ import annotations

from dataclasses import dataclass

from smodice_cli.data import Dataset
from smodice_cli.lazy import np

ROWS = 1 << 17  # as many as the maps are fitted to, evenly spaced
BLOCK, NUMBERS = 1 << 13, 1 << 20  # rows at a time, fewer of wide states
WIDEST = 1000  # dimensions of a state: the sums of products have the square of twice as many
UNSEEN = 5  # every fifth trajectory judges the inverse map, of fewer the last
LEAST_SPREAD = 1e-9  # variance of actions in [-1, 1]
RIDGE = 1e-3  # of each input's mean square
LEAST_MOVING = 0.1  # deviations: constant dimensions, and those that hold nothing but noise, are left alone (D15)
LEAST_LASTING = 0.1  # share of what an error does that must still be there a step later, for a correction to matter
LEAST_EXPLAINED, LEAST_UNDONE = 0.9, 0.5  # of the actions' variance; of an error. docs/kitchen.md has the measurements


@dataclass(frozen=True)
class Correction:
    """How actions in [-1, 1] follow a change of the state, and how far that is to be trusted."""

    gain: np.ndarray  # (state, action): the action's change for a change of the raw state; 0 where a dimension rests
    explained: float  # share of the actions' variance, on trajectories that took no part
    undone: float  # share of an action's error that the next action takes back

    @property
    def trusted(self) -> bool:
        return self.explained >= LEAST_EXPLAINED and self.undone >= LEAST_UNDONE

    def __str__(self) -> str:
        return f"the data explain {self.explained:.0%} of the actions and undo {self.undone:.0%} of an error"


def find(data: Dataset) -> Correction | None:
    """The correction that these data show.

    None where one trajectory has nothing to be judged by, where actions never differ, and of very wide states.
    """
    if data.width > WIDEST:
        return None
    fitted, judged = _products(data)
    count = fitted[-1, -1]
    if not count or not judged[-1, -1]:
        return None
    width, one = data.width, np.array([-1])
    deviation = np.sqrt(np.maximum(np.diag(fitted) / count - np.square(fitted[-1] / count), 0.0))
    moving = np.flatnonzero(deviation[:width] > LEAST_MOVING)
    x, change, u = moving, width + moving, np.arange(2 * width, len(fitted) - 1)

    inverse = _regression(fitted, np.r_[x, change, one], u)
    missed = _squared_error(judged, np.r_[x, change, one], u, inverse)
    spread = _squared_error(judged, one, u, fitted[np.ix_(one, u)] / count)  # beside the mean action
    if not spread > LEAST_SPREAD * judged[-1, -1]:
        return None
    gain = inverse[: len(x)] - inverse[len(x) : -1]

    forward = _regression(fitted, np.r_[x, u, one], change)
    after, effect = np.eye(len(x)) + forward[: len(x)], forward[len(x) : -1]
    error = deviation[u, None] * effect
    first, left, alone = (
        float(np.linalg.norm(error @ step)) for step in (np.eye(len(x)), after + gain @ effect, after)
    )
    undone = 1 - left / alone if alone > LEAST_LASTING * first else 0.0  # else it goes by itself
    raw = np.zeros((width, len(u)), np.float32)
    raw[moving] = gain / data["std"][moving, None]
    return Correction(raw, 1 - missed / spread, undone)


def _products(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Sums of products of all columns (x, x' - x, u, 1), of the trajectories to fit and of those to judge by."""
    rows = np.linspace(0, data.rows, min(data.rows, ROWS), endpoint=False, dtype=np.int64)
    if data.absorbing:  # neither being in the absorbing state nor the step into it is anybody's doing
        rows = rows[(data["observations"][rows, -1] == 0) & (data["next_observations"][rows, -1] == 0)]
    every = min(UNSEEN, len(data.offsets) - 1)
    unseen = (np.searchsorted(data.offsets, rows, side="right") - 1) % every == every - 1
    mean, std, low, high = (data[name].astype(np.float64) for name in ("mean", "std", "action_low", "action_high"))
    size = 2 * len(mean) + len(low) + 1
    fitted, judged = np.zeros((size, size)), np.zeros((size, size))
    for total, own in ((fitted, rows[~unseen]), (judged, rows[unseen])):
        at_a_time = min(BLOCK, NUMBERS // data.width)
        for start in range(0, len(own), at_a_time):
            block = own[start : start + at_a_time]
            x, after = ((data[name][block] - mean) / std for name in ("observations", "next_observations"))
            u = 2 * (data["actions"][block] - low) / np.maximum(high - low, 1e-30) - 1
            columns = np.concatenate([x, after - x, u, np.ones((len(x), 1))], axis=1)
            total += columns.T @ columns
    return fitted, judged


def _regression(products: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The ridge regression of outputs on inputs, each by its own scale; the constant, which comes last, is free."""
    scale = np.sqrt(np.maximum(np.diag(products)[inputs], 1e-12))
    penalty = np.diag(np.append(np.full(len(inputs) - 1, RIDGE), 0.0))
    moments = products[np.ix_(inputs, inputs)] / np.outer(scale, scale) + penalty
    return np.linalg.solve(moments, products[np.ix_(inputs, outputs)] / scale[:, None]) / scale[:, None]


def _squared_error(products: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, found: np.ndarray) -> float:
    """The sum of squared errors of a linear map, from the sums of products."""
    among, across = products[np.ix_(inputs, inputs)], products[np.ix_(inputs, outputs)]
    return float(np.diag(products)[outputs].sum() + (found * (among @ found - 2 * across)).sum())
