"""SEABO (Lyu et al., 2024): offline RL, here IQL, on how near a transition lies to the demonstration.

    r(s, s') = scale exp(-beta d / |A|),   d = min over the expert's transitions of |(s, s') - (s_E, s'_E)|

d by a KD-tree of the states as they are, neither standardised nor with actions (its version from observations); beta is
0.5 and scale 1, the authors' for locomotion (D51).
"""

from __future__ import annotations

from dataclasses import dataclass

from smodice_cli.algos.iql import IQL, Config, IQLLearner
from smodice_cli.config import setting
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError
from smodice_cli.lazy import np

BLOCK = 1 << 14  # rows at a time


@dataclass(frozen=True)
class SEABOConfig(Config):
    """train-policy by SEABO."""

    beta: float = setting(0.5, "how quickly the reward falls with the distance", ge=0)
    scale: float = setting(1.0, "the reward of the expert's own transitions", gt=0)


def distances(data: Dataset) -> np.ndarray:
    """How far every row's (s, s') is from the nearest of the expert's."""
    from scipy.spatial import KDTree

    tree = KDTree(np.concatenate(data.expert_transitions(), axis=1))
    found = np.empty(data.rows)
    for start in range(0, data.rows, BLOCK):
        rows = slice(start, start + BLOCK)
        found[rows] = tree.query(np.concatenate([data["observations"][rows], data["next_observations"][rows]], axis=1))[
            0
        ]
    return found


class SEABOLearner(IQLLearner):
    """IQL on the reward of a search."""

    def rewards(self) -> np.ndarray:
        return self.config.scale * np.exp(-self.config.beta * distances(self.data) / len(self.data["action_low"]))


class SEABO(IQL):
    """IQL on the nearness of the demonstration."""

    Config = SEABOConfig
    Learner = SEABOLearner

    def accepts(self, data: Dataset) -> None:
        if not len(data.expert_transitions()[0]):
            raise InputError("seabo searches the expert's transitions: it needs trajectories of whole states")
