"""The oracle: cloning of the rows of the best source alone, by their labels. What perfect weights would give.

No other algorithm reads which source a row came from. This one tells what is the cloning's fault from what is the
weights'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smodice_cli.algos import Algorithm, PolicyLearner, clone
from smodice_cli.artifacts import Arrays
from smodice_cli.config import setting
from smodice_cli.data import Dataset
from smodice_cli.errors import ConfigError, nearest
from smodice_cli.lazy import Device, Generator, np


@dataclass(frozen=True)
class Config(clone.TrajectoryConfig):
    """train-policy by cloning one source."""

    source: str = setting("", "the source whose rows are cloned, as inspect calls it; '' is the highest mean return's")


def best_source(data: Dataset) -> int:
    """The source with the highest mean return."""
    if data.without_rewards or not data["rewards"].any():
        raise ConfigError("the data hold no rewards to tell the best source by", "name it: --set policy.source=NAME")
    returns = np.add.reduceat(data["rewards"], data.offsets[:-1], dtype=np.float64)
    total, episodes = (np.bincount(data["episode_source"], each) for each in (returns, np.ones(len(returns))))
    return int(np.where(episodes > 0, total / np.maximum(episodes, 1), -np.inf).argmax())


class Oracle(Algorithm):
    """Behaviour cloning of one source's rows."""

    Config = Config

    def learner(self, data: Dataset, config: Any, upstream: Arrays, rng: Generator, device: Device) -> PolicyLearner:
        if config.source and config.source not in data.sources:
            known = nearest(config.source, data.sources)
            raise ConfigError(f"policy.source: there is no source '{config.source}'", known)
        chosen = data.sources.index(config.source) if config.source else best_source(data)
        learner = clone.clone_rows(data, (data.source_of_row() == chosen).astype(np.float64), config, rng, device)
        learner.notes = (*learner.notes, f"the rows of {data.sources[chosen]} alone")
        return learner
