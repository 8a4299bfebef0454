"""Transitions in memory (flat arrays + episode offsets) and on disk (`dataset.h5`, contiguous, memory-mapped).

Data flow: a source yields `Transitions` blocks of whole episodes -> `Spool` appends them to disk with bounded memory ->
`Spool.arrays` maps the result for the artifact writer -> training opens it as `Dataset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smodice_cli.artifacts import Artifact, as_expected
from smodice_cli.errors import InputError, UsageError
from smodice_cli.lazy import np

ROW_COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
STATS_BLOCK, STATS_NUMBERS = 1 << 16, 1 << 22  # rows per block when streaming over a column, fewer of a wide one


@dataclass(frozen=True)
class Transitions:
    """Rows (s, a, r, s') of whole episodes; episode k is rows offsets[k]:offsets[k+1].

    `terminals` marks rows whose next state ends the task, `timeouts` rows after which the episode was cut short.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    offsets: np.ndarray
    origin: np.ndarray | None = None  # of each episode, where it was recorded: file, number there, first frame

    @staticmethod
    def episode(states: Any, actions: Any, rewards: Any, *, terminated: bool) -> Transitions:
        """One whole episode, with a state more than actions; its last row ends the task, or else is cut short."""
        visited = np.asarray(states, np.float32)
        last = np.arange(len(actions)) == len(actions) - 1
        return Transitions(
            observations=visited[:-1],
            actions=np.asarray(actions, np.float32),
            rewards=np.asarray(rewards, np.float32),
            next_observations=visited[1:],
            terminals=last & bool(terminated),
            timeouts=last & (not terminated),
            offsets=np.array([0, len(actions)]),
        )

    @property
    def rows(self) -> int:
        return len(self.observations)

    @property
    def episodes(self) -> int:
        return len(self.offsets) - 1

    def rows_at(
        self, which: slice | np.ndarray, offsets: np.ndarray, episodes: slice | np.ndarray = slice(None)
    ) -> Transitions:
        """Some of the rows, which these offsets divide into episodes, and which of the episodes those are."""
        origin = None if self.origin is None else self.origin[episodes]
        columns = {name: getattr(self, name)[which] for name in ROW_COLUMNS}
        return Transitions(**columns, offsets=offsets, origin=origin)

    def take(self, first: int, last: int) -> Transitions:
        """Episodes first..last-1."""
        offsets = self.offsets[first : last + 1]
        return self.rows_at(slice(offsets[0], offsets[-1]), offsets - offsets[0], slice(first, last))

    def truncate(self, rows: int) -> Transitions:
        """The first `rows` rows; an episode cut by that ends in a timeout."""
        if rows >= self.rows:
            return self
        timeouts = self.timeouts.copy()
        timeouts[rows - 1] |= not self.terminals[rows - 1]
        offsets = np.append(self.offsets[self.offsets < rows], rows)
        return replace(self, timeouts=timeouts).rows_at(slice(rows), offsets, slice(len(offsets) - 1))

    def cut_short(self) -> Transitions:
        """The same episodes, none of them ended by the task; a last row whose next state is not known is left out."""
        ends = self.offsets[1:] - 1
        keep, timeouts = np.ones(self.rows, bool), np.zeros(self.rows, bool)
        keep[ends] = self.final_states_held()
        timeouts[ends] = timeouts[ends[~keep[ends]] - 1] = True
        lengths = np.add.reduceat(keep, self.offsets[:-1], dtype=np.int64)
        found = replace(self, terminals=np.zeros(self.rows, bool), timeouts=timeouts)
        return found.rows_at(keep, offsets_of(lengths[lengths > 0]), lengths > 0)

    def thin(self, share: float, rng: np.random.Generator) -> Transitions:
        """A share of the rows, drawn at random: each keeps its own next state, and one that was not the end is cut."""
        keep = rng.random(self.rows) < share
        lengths = np.add.reduceat(keep, self.offsets[:-1], dtype=np.int64)
        found = self.rows_at(keep, offsets_of(lengths[lengths > 0]), lengths > 0)
        found.timeouts[found.offsets[1:] - 1] = ~found.terminals[found.offsets[1:] - 1].astype(bool)
        return found

    def returns(self) -> list[float]:
        """The sum of each episode's rewards."""
        return np.add.reduceat(self.rewards, self.offsets[:-1], dtype=np.float64).tolist()

    def states(self) -> np.ndarray:
        """Every state of the episodes in order: the observations and each episode's final next observation.

        A final state that the data do not hold repeats the one before it (see `sources.layouts`) and is left out.
        """
        ends = self.offsets[1:][self.final_states_held()]
        return np.insert(self.observations, ends, self.next_observations[ends - 1], axis=0)

    def final_states_held(self) -> np.ndarray:
        """Which episodes' final states the data hold."""
        last = self.offsets[1:] - 1
        return (self.next_observations[last] != self.observations[last]).any(axis=1)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where episodes of these lengths begin, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths)])


def concatenate(blocks: Sequence[Transitions]) -> Transitions:
    """Several blocks as one."""
    columns = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in ROW_COLUMNS}
    offsets = offsets_of(np.concatenate([np.diff(block.offsets) for block in blocks]))
    origins = [block.origin for block in blocks if block.origin is not None]
    return Transitions(**columns, offsets=offsets, origin=np.concatenate(origins) if origins else None)


def check(block: Transitions, origin: str, first: int = 0) -> None:
    """Refuse rows that no learner should see (NaN, infinite); `first` is the block's first row."""
    for name in ("observations", "actions", "rewards", "next_observations"):
        bad = ~np.isfinite(getattr(block, name)).reshape(block.rows, -1).all(axis=1)
        if bad.any():
            row = first + int(bad.argmax())
            raise InputError(f"{origin}: {name} hold NaN or infinite values, first in transition {row}")


def range_of_actions(arrays: dict[str, np.ndarray], absorbing: bool) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest actions of a dataset whose environment is not known, the expert's included."""
    taken = arrays["actions"][arrays["observations"][:, -1] == 0] if absorbing else arrays["actions"]
    parts = [taken, *([arrays["expert/actions"]] if "expert/actions" in arrays else [])]
    low = np.min([part.min(axis=0) for part in parts], axis=0)
    high = np.max([part.max(axis=0) for part in parts], axis=0)
    return low, np.where(high > low, high, low + 1)


def parse_dims(text: str, width: int) -> list[int]:
    """`0:2` or `0,1,5` as indices of a state of `width` dimensions; empty means all."""
    if not text:
        return list(range(width))
    dims: list[int] = []
    try:
        for part in text.split(","):
            first, colon, last = part.partition(":")
            dims += range(max(int(first), -1), min(int(last), width + 1)) if colon else [int(first)]
    except ValueError as error:
        raise UsageError(f"--expert-dims {text}: expected e.g. 0:2 or 0,1,5") from error
    if not dims or min(dims) < 0 or max(dims) >= width or len(set(dims)) != len(dims):
        raise UsageError(f"--expert-dims {text}: indices must be distinct and lie in 0..{width - 1}")
    return dims


class Spool:
    """Appends blocks of episodes to raw column files, so that building a dataset never holds it in memory."""

    def __init__(self, folder: Path, obs_dim: int, act_dim: int, absorbing: bool) -> None:
        self.folder = folder
        self.absorbing = absorbing
        width = obs_dim + absorbing
        shapes = {"observations": (width,), "actions": (act_dim,), "next_observations": (width,)}
        self.shapes: dict[str, tuple[int, ...]] = {name: shapes.get(name, ()) for name in ROW_COLUMNS}
        flags = ("terminals", "timeouts")
        self.dtypes = {name: np.dtype(np.uint8 if name in flags else np.float32) for name in ROW_COLUMNS}
        self.files = {name: open(folder / name, "wb") for name in ROW_COLUMNS}  # noqa: SIM115 (closed in arrays)
        self.lengths: list[np.ndarray] = []
        self.sources: list[np.ndarray] = []
        self.origins: list[np.ndarray] = []
        self.episodes: dict[int, int] = {}  # by source
        self.rows = 0

    def append(self, block: Transitions, source: int) -> None:
        """Add a block of whole episodes under a source label."""
        if self.absorbing:
            block = with_absorbing(block)
        for name, file in self.files.items():
            file.write(np.ascontiguousarray(getattr(block, name), dtype=self.dtypes[name]).data)  # a full disk is told
        lengths = np.diff(block.offsets)
        self.lengths.append(lengths)
        self.sources.append(np.full(len(lengths), source, np.int32))
        self.origins.append(self._origin(block, source))
        self.rows += block.rows

    def _origin(self, block: Transitions, source: int) -> np.ndarray:
        """Where the episodes were recorded; those that never were are counted within their source."""
        before = self.episodes.get(source, 0)
        self.episodes[source] = before + block.episodes
        none = np.zeros(block.episodes, np.int64)
        counted = np.stack([none, before + np.arange(block.episodes), none], axis=1)
        return counted if block.origin is None else block.origin

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns as memory maps, with offsets, source labels and the offline mean and standard deviation."""
        for file in self.files.values():
            file.close()
        maps: dict[str, np.ndarray] = {
            name: np.memmap(self.folder / name, self.dtypes[name], "r", shape=(self.rows, *shape))
            for name, shape in self.shapes.items()
        }
        mean, std = moments(maps["observations"])
        return {
            **maps,
            "episode_offsets": offsets_of(np.concatenate(self.lengths)).astype(np.int64),
            "episode_source": np.concatenate(self.sources),
            "episode_origin": np.concatenate(self.origins).astype(np.int64),
            "mean": mean,
            "std": std,
        }


def with_absorbing(block: Transitions) -> Transitions:
    """Add an indicator dimension; terminal rows lead to the absorbing state (0,..,0,1), whose self-loop row follows.

    The self-loop is a row like any other (it is sampled), so V of the absorbing state is held by its own residual.
    """
    ends = block.offsets[1:]
    terminal = block.terminals[ends - 1].astype(bool)
    at = ends[terminal]
    state = np.append(np.zeros(block.observations.shape[1], np.float32), np.float32(1.0))
    observations = np.pad(block.observations, ((0, 0), (0, 1)))
    next_observations = np.pad(block.next_observations, ((0, 0), (0, 1)))
    next_observations[at - 1] = state
    return Transitions(
        observations=np.insert(observations, at, state, axis=0),
        actions=np.insert(block.actions, at, 0.0, axis=0),
        rewards=np.insert(block.rewards, at, 0.0),
        next_observations=np.insert(next_observations, at, state, axis=0),
        terminals=np.zeros(block.rows + len(at), bool),  # nothing ends: the flow goes on in the absorbing state
        timeouts=np.insert(block.timeouts, at, False),
        offsets=offsets_of(np.diff(block.offsets) + terminal),
        origin=block.origin,
    )


def moments(
    column: np.ndarray, weights: np.ndarray | None = None, constant: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per dimension in one streaming pass; `constant` is that of constant dimensions.

    With weights, those of the rows that have any, counted by them.
    """
    count, mean, m2 = 0.0, np.zeros(column.shape[1]), np.zeros(column.shape[1])
    rows = min(STATS_BLOCK, max(1, STATS_NUMBERS // max(1, column.shape[1])))
    for start in range(0, len(column), rows):
        block = np.asarray(column[start : start + rows], np.float64)
        w = None if weights is None else weights[start : start + rows]
        mass = len(block) if w is None else w.sum()
        if not mass:
            continue
        block_mean = np.average(block, axis=0, weights=w)
        squares = (block - block_mean) ** 2
        delta = block_mean - mean
        total = count + mass
        m2 += (squares if w is None else w[:, None] * squares).sum(axis=0) + delta**2 * count * mass / total
        mean += delta * mass / total
        count = total
    std = np.sqrt(m2 / max(count, 1e-30))
    return mean.astype(np.float32), np.where(std < 1e-6, constant, std).astype(np.float32)


@dataclass(frozen=True)
class Dataset:
    """An opened `dataset.h5`: offline rows, expert states and what training needs to know about them."""

    arrays: dict[str, np.ndarray]
    env: str
    dims: list[int]
    absorbing: bool
    sources: list[str]
    without_rewards: list[str] = field(default_factory=list)  # the sources that hold none
    expert_return: float | None = None
    names: list[str] = field(default_factory=list)  # of the state's dimensions, where the recordings know them
    action_names: list[str] = field(default_factory=list)

    @staticmethod
    def of(artifact: Artifact) -> Dataset:
        config, metrics = artifact.header.config, artifact.header.metrics
        with as_expected(artifact):
            without = [source["label"] for source in metrics.get("offline", []) if not source.get("rewards", True)]
            fixed = (config["env"], metrics["expert_dims"], config["absorbing"], metrics["sources"])
            named = (metrics.get(name, []) for name in ("state_names", "action_names"))
            found = Dataset(artifact.arrays, *fixed, without, metrics.get("expert_return"), *named)
            found.check()
        return found

    @property
    def rewarded(self) -> bool:
        """Whether any of its sources holds rewards."""
        return len(self.without_rewards) < len(self.sources)

    def check(self) -> None:
        """Refuse columns that do not fit together."""
        rows, offsets = len(self.arrays["observations"]), self.arrays["episode_offsets"]
        if any(len(self.arrays[name]) != rows for name in ROW_COLUMNS) or not set(self.dims) <= {*range(self.width)}:
            raise ValueError("its columns differ in their length")
        if len(self.arrays["episode_source"]) != len(offsets) - 1 or offsets[0] != 0 or offsets[-1] != rows:
            raise ValueError("its episodes are not those of its rows")
        if (np.diff(offsets) < 1).any() or self.arrays["expert/observations"].shape[1] != len(self.dims):
            raise ValueError("its episodes or its expert states make no sense")

    @property
    def width(self) -> int:
        """The dimensions of a state."""
        return self.arrays["observations"].shape[1]

    def name_of(self, dim: int) -> str:
        """What a dimension of the state is called: its own name, or s[0]."""
        return self.names[dim] if dim < len(self.names) else f"s[{dim}]"

    def action_name(self, dim: int) -> str:
        """What a dimension of the action is called: its own name, or its number."""
        return self.action_names[dim] if dim < len(self.action_names) else str(dim)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    @property
    def rows(self) -> int:
        return len(self.arrays["observations"])

    @property
    def offsets(self) -> np.ndarray:
        return self.arrays["episode_offsets"]

    def expert_inputs(self, inputs: str) -> np.ndarray:
        """What a discriminator sees of the expert, who may have acted; a final state has no action and is no pair."""
        if inputs == "state":
            return self.arrays["expert/observations"]
        return np.concatenate(self.expert_pairs(), axis=1)

    def expert_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The expert's states and the actions taken in them; there must be some."""
        if "expert/actions" not in self.arrays:
            raise InputError(
                "this dataset holds no expert actions: imitation from observations never reads them",
                "to give them to demodice or bc-expert-only, build the dataset with --set expert_actions=true",
            )
        return self.arrays["expert/observations"][self.arrays["expert/action_rows"]], self.arrays["expert/actions"]

    def expert_is_whole(self) -> bool:
        """Whether expert states have all of the imitator's dimensions, in their order."""
        return self.dims == list(range(self.arrays["observations"].shape[1]))

    def expert_transitions(self) -> tuple[np.ndarray, np.ndarray]:
        """The expert's states and next states; none where it is given as single or partial states."""
        states = self.arrays["expert/observations"]
        whole = self.expert_is_whole() and "expert/offsets" in self.arrays
        before = np.ones(len(states), bool)
        before[self.arrays["expert/offsets"][1:] - 1 if whole else slice(None)] = False
        rows = np.flatnonzero(before)
        return states[rows], states[rows + 1]

    def initial_observations(self) -> np.ndarray:
        """The first state of every episode: samples of mu_0."""
        return self.arrays["observations"][self.offsets[:-1]]

    def episode_of_row(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int32), np.diff(self.offsets))

    def time_of_row(self) -> np.ndarray:
        steps = np.ones(self.rows, np.int32)  # whose running sum starts again at 0 with every episode
        steps[0], steps[self.offsets[1:-1]] = 0, 1 - np.diff(self.offsets)[:-1]
        return np.cumsum(steps, dtype=np.int32, out=steps)

    def source_of_row(self) -> np.ndarray:
        """Labels for diagnosis; training never reads them."""
        return np.repeat(self.arrays["episode_source"], np.diff(self.offsets)).astype(np.int32)

    def real_rows(self) -> np.ndarray:
        """False on the self-loops of the absorbing state, whose actions mean nothing."""
        if not self.absorbing:
            return np.ones(self.rows, bool)
        return self.arrays["observations"][:, -1] == 0
