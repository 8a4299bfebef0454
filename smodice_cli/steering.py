"""The importance weights by the numbers of the recordings themselves: to steer somebody else's training with them.

sampler = RowWeights.load("runs/arm/weights.h5").sampler(episode_index, frame_index)
loader = torch.utils.data.DataLoader(dataset, batch_size=256, sampler=sampler)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError
from smodice_cli.lazy import np, torch


@dataclass(frozen=True)
class RowWeights:
    """One weight a row (1 on average), and where each row was recorded."""

    weight: np.ndarray
    source: np.ndarray  # of each row, which of `sources`
    file: np.ndarray  # ... which of the source's files
    episode: np.ndarray  # ... the episode's own number there
    frame: np.ndarray  # ... and the frame's: in its episode, or in a file of plain columns the row
    sources: list[str]
    files: list[list[str]]  # of each source
    names: list[str]  # of each source, how it calls its episodes, e.g. demo_{}; '' where they only have a number

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RowWeights:
        """The weights in a `weights.h5` (or beside a `value.safetensors`), whose dataset must be where it was."""
        found = weights_at(Path(path))
        dataset = artifacts.follow(found, "dataset", "dataset")
        if "episode_origin" not in dataset.arrays:
            raise InputError(f"{dataset.path} does not say where its rows were recorded", "build it again")
        if dataset.header.config.get("keep", 1.0) < 1:
            raise InputError(f"{dataset.path} left rows out at random: what is left has no number of its own", "keep=1")
        data = Dataset.of(dataset)
        real = data.real_rows()  # an absorbing end was never recorded
        where = dataset.arrays["episode_origin"][data.episode_of_row()[real]]
        offline = dataset.header.metrics["offline"]
        return cls(
            weight=np.asarray(found.arrays["w"])[real],
            source=data.source_of_row()[real],
            file=where[:, 0],
            episode=where[:, 1],
            frame=where[:, 2] + data.time_of_row()[real],
            sources=data.sources,
            files=files_of(dataset),
            names=[source.get("episode_name", "") for source in offline],
        )

    def file_names(self) -> np.ndarray:
        """The file of each row; '' where it was simulated."""
        known = [(files or [""]) for files in self.files]
        first = np.cumsum([0, *(len(files) for files in known[:-1])])
        return np.array([name for files in known for name in files])[first[self.source] + self.file]

    @cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of all rows in order, and the rows they belong to."""
        keys = self._keys(self.source, self.file, self.episode, self.frame)
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    def _keys(self, *columns: np.ndarray) -> np.ndarray:
        kind = [(name, np.int64) for name in ("source", "file", "episode", "frame")]
        packed = np.empty(len(columns[-1]), kind)
        for (name, _), column in zip(kind, columns, strict=True):
            packed[name] = column
        return packed

    def at(self, episode: Any, frame: Any, file: Any = 0, source: int = 0) -> np.ndarray:
        """The weights of some frames; 0 for those that are no row, such as an episode's last."""
        frames = np.asarray(frame, np.int64).reshape(-1)
        columns = (np.broadcast_to(np.asarray(part, np.int64), len(frames)) for part in (source, file, episode))
        wanted = self._keys(*columns, frames)
        keys, order = self._order
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[places] == wanted, self.weight[order[places]], 0.0)

    def sampler(
        self,
        episode: Any,
        frame: Any,
        file: Any = 0,
        *,
        source: int = 0,
        count: int | None = None,
        generator: Any = None,
    ) -> torch.utils.data.Sampler:
        """For a data loader: draws item i, which is frame[i] of episode[i], in proportion to its weight."""
        weights = self.at(episode, frame, file, source)
        if not weights.any():
            raise InputError("none of these frames has a weight: are they numbered as in the recording?")
        return torch.utils.data.WeightedRandomSampler(weights.tolist(), count or len(weights), generator=generator)

    def trajectories(self) -> list[dict[str, Any]]:
        """Every episode with its mean weight, the heaviest first."""
        ids, row, counts = np.unique(
            np.stack([self.source, self.file, self.episode], axis=1), axis=0, return_inverse=True, return_counts=True
        )
        means = np.bincount(row.reshape(-1), self.weight) / counts
        names = ("source", "file", "episode")
        return [
            dict(zip(names, ids[k].tolist(), strict=True)) | {"mean_weight": float(means[k])}
            for k in np.argsort(-means, kind="stable")
        ]


def weights_at(path: Path) -> artifacts.Artifact:
    """The weights in a file, or those that were made with the value function in it."""
    kind = artifacts.read_header(path).kind
    if kind == "value":
        return artifacts.follow(artifacts.load(path, kind), "weights", "weights")
    return artifacts.load(path, "weights")


def files_of(dataset: artifacts.Artifact) -> list[list[str]]:
    """The files of each source of a dataset."""
    found: list[list[str]] = [[] for _ in dataset.header.metrics["sources"]]
    for line in filter(None, bytes(dataset.arrays["files"]).decode().split("\n")):
        source, _, name = line.partition("\t")
        found[int(source)].append(name)
    return found
