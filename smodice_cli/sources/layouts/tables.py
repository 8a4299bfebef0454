"""Tables with a row a step, read in batches: which columns are what, and whole episodes cut from the batches."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from smodice_cli.data import Transitions
from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import Layout, arrays
from smodice_cli.sources.source import Blocks, Contents, Parts

BESIDE = ("time", "stamp", "frame", "index", "step", "reward", "done", "terminal", "truncat", "success")


def _is_beside(name: str) -> bool:
    """Whether a column's name says that it is no part of a state."""
    return name.startswith(BESIDE) or name in ("", "t", "dt", "row") or bool(arrays.numbering([name]))


@dataclass(frozen=True)
class Wanted:
    """The columns of a table by what they are; empty where there is none."""

    states: list[str]
    actions: list[str]
    episode: str = ""
    frame: str = ""
    rewards: str = ""
    terminals: str = ""
    timeouts: str = ""

    def all(self) -> list[str]:
        """Every column that is read, once."""
        single = (self.episode, self.frame, self.rewards, self.terminals, self.timeouts)
        return list(dict.fromkeys([*self.states, *self.actions, *filter(None, single)]))


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a table."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    episode: np.ndarray
    frame: np.ndarray

    def part(self, rows: slice) -> Batch:
        return Batch(*(getattr(self, field.name)[rows] for field in fields(self)))

    def after(self, before: Batch | None) -> Batch:
        """These rows behind those of another batch."""
        if before is None:
            return self
        return Batch(*(np.concatenate([getattr(b, f.name) for b in (before, self)]) for f in fields(self)))


class Table(Layout):
    """Columns by name; `--state-columns`, `--action-columns` and `--episode-column` say what they are."""

    numbered = True

    def kinds(self) -> Mapping[str, str]:
        """The columns, with the type of each in words."""
        raise NotImplementedError

    def whole(self) -> set[str]:
        """The columns of whole numbers."""
        raise NotImplementedError

    def width(self, column: str) -> int:
        """How many numbers a row of a column holds."""
        return 1

    def batches(self, names: list[str]) -> Iterator[dict[str, np.ndarray]]:
        """The rows of some columns, in order: a matrix, or a vector, for each."""
        raise NotImplementedError

    def wanted(self) -> Wanted:
        """Which columns are read, refused where the user has not said so."""
        columns, choice = list(self.kinds()), self.choice
        keys = dict(choice.keys)
        states = choice.columns or tuple(filter(None, [keys.get("observations")]))
        if not states:
            guess = " ".join(self.flags())
            raise InputError(
                f"{self.origin} is {self.format} without --state-columns (it has: {', '.join(columns)})",
                f"say which columns are the state and which the action, e.g. {guess}",
            )
        actions = choice.actions or tuple(filter(None, [keys.get("actions")]))
        episode = choice.episode if choice.episode in columns else ""
        if choice.episode and not episode and choice.must_number:
            raise arrays.unnumbered(self.origin, choice.episode, columns)
        if not episode and (likely := arrays.numbering(columns)):
            raise arrays.uncertain(self.origin, likely)
        single = {name: keys.get(name, name) for name in ("rewards", "terminals", "timeouts")}
        marked = episode or single["terminals"] in columns or single["timeouts"] in columns
        if not marked and (likely := arrays.marking(columns)):
            raise arrays.unmarked(self.origin, likely, choice.keys)
        return Wanted(
            arrays.pick(states, columns, self.origin, "--state-columns"),
            [name for pattern in actions for name in fnmatch.filter(columns, pattern)],
            episode,
            **{name: theirs for name, theirs in single.items() if theirs in columns},
        )

    def flags(self) -> list[str]:
        choice, keys = self.choice, dict(self.choice.keys)
        columns = [name for name, kind in self.kinds().items() if "numbers" in kind]
        actions = choice.actions or tuple(filter(None, [keys.get("actions")]))
        actions = actions or tuple(name for name in columns if name.lower().startswith(arrays.ACTING))
        acted = [name for pattern in actions for name in fnmatch.filter(columns, pattern)]
        beside = (*acted, choice.episode, *keys.values(), *filter(lambda name: _is_beside(name.lower()), columns))
        guess = {
            "--state-columns": "" if choice.columns else ",".join(name for name in columns if name not in beside),
            "--action-columns": "" if choice.actions else ",".join(acted),
            "--episode-column": "" if choice.episode else arrays.numbering(columns),
        }
        return [word for flag, value in guess.items() if value for word in (flag, value)]

    def describe(self) -> Contents:
        wanted, kinds = self.wanted(), self.kinds()
        for name in wanted.all():
            if "text" in kinds[name] or "picture" in kinds[name]:
                hint = "number the episodes instead, 0, 1, 2 and so on" if name == wanted.episode else ""
                raise InputError(f"{self.origin}: '{name}' holds {kinds[name]}, not numbers", hint)
        names, acted = (
            tuple(one for name in part for one in self.dimensions(name)) for part in (wanted.states, wanted.actions)
        )
        marked = bool(wanted.episode or wanted.terminals or wanted.timeouts)
        sizes = (len(names), len(acted), bool(wanted.rewards), marked)
        return Contents(*sizes, names=names, action_names=acted, left_out=self.left_out(wanted))

    def dimensions(self, column: str) -> list[str]:
        """The names of the dimensions of a column."""
        return arrays.dimensions(column, self.width(column))

    def left_out(self, wanted: Wanted) -> Parts:
        """What else was observed."""
        return ()

    def episodes(self, horizon: int, *, states_only: bool = False) -> Blocks:
        wanted = self.wanted()
        self.describe()
        if not states_only:
            self._check_actions(wanted)
        for block in cut(self._rows(wanted), self.origin, renumber=not wanted.episode):
            if (found := arrays.shifted(block, states_only)).episodes:
                yield found

    def _check_actions(self, wanted: Wanted) -> None:
        if not wanted.actions:
            said = ",".join(self.choice.actions)
            what = f"has no '{said}', which --action-columns names" if said else "is read without --action-columns"
            raise InputError(f"{self.origin} {what} (it has: {', '.join(self.kinds())})")
        if set(wanted.actions) <= self.whole():
            raise InputError(
                f"{self.origin}: {', '.join(wanted.actions)} hold whole numbers, as a choice among actions does: "
                "only quantities can be imitated",
                "if they are quantities, write them with a decimal point",
            )

    def _rows(self, wanted: Wanted) -> Iterator[Batch]:
        first = 0
        for found in self.batches(wanted.all()):
            rows = len(found[wanted.states[0]])
            terminals, timeouts = (
                arrays.flags(found, name, rows, self.origin) for name in (wanted.terminals, wanted.timeouts)
            )
            rewards = found[wanted.rewards].reshape(-1) if wanted.rewards else np.zeros(rows)
            counts = {
                name: arrays.whole_numbers(found[name], self.origin, name)
                for name in filter(None, (wanted.frame, wanted.episode))
            }
            frame = counts.get(wanted.frame, first + np.arange(rows))
            episode = counts.get(wanted.episode, np.zeros(rows, np.int64))
            states, actions = (_side_by_side(found, part, rows) for part in (wanted.states, wanted.actions))
            yield Batch(states, actions, rewards.astype(np.float32), terminals, timeouts, episode, frame)
            first += rows


def _side_by_side(found: Mapping[str, np.ndarray], names: list[str], rows: int) -> np.ndarray:
    parts = [found[name].reshape(rows, -1) for name in names]
    with np.errstate(over="ignore"):
        return np.concatenate(parts, axis=1).astype(np.float32) if parts else np.zeros((rows, 0), np.float32)


def cut(batches: Iterator[Batch], origin: str, *, renumber: bool) -> Iterator[Transitions]:
    """Whole episodes, as they become complete; `renumber` counts them where they have no number of their own."""
    waiting: Batch | None = None
    seen: set[int] = set()
    any_rows = False
    for batch in batches:
        any_rows |= len(batch.states) > 0
        waiting = batch.after(waiting)
        ends = _ends(waiting)
        if len(ends):
            yield _block(waiting.part(slice(0, ends[-1] + 1)), ends, seen, origin, renumber)
            waiting = waiting.part(slice(ends[-1] + 1, None))
    if not any_rows:
        raise InputError(f"{origin} has no rows")
    if waiting is not None and len(waiting.states):
        yield _block(waiting, np.array([len(waiting.states) - 1]), seen, origin, renumber)


def _ends(rows: Batch) -> np.ndarray:
    """The last rows of the episodes that are complete: the next row is of another, or a mark says so."""
    changes = np.append(rows.episode[1:] != rows.episode[:-1], False)
    return np.flatnonzero(changes | rows.terminals | rows.timeouts)


def _block(rows: Batch, ends: np.ndarray, seen: set[int], origin: str, renumber: bool) -> Transitions:
    offsets = np.append(0, ends + 1)
    numbers = len(seen) + np.arange(len(ends)) if renumber else rows.episode[offsets[:-1]]
    for number in numbers.tolist():  # one an episode
        if number in seen:
            raise InputError(
                f"{origin}: episode {number} comes again after others", "keep the rows of an episode together, in order"
            )
        seen.add(number)
    inside = np.ones(len(rows.frame) - 1, bool)
    inside[ends[:-1]] = False
    jumps = np.flatnonzero(inside & (np.diff(rows.frame) != 1))
    if len(jumps):
        at = int(jumps[0])
        episode = int(numbers[np.searchsorted(ends, at)])
        raise InputError(
            f"{origin}: episode {episode} goes from frame {rows.frame[at]} to {rows.frame[at + 1]}: frames are missing"
        )
    last = np.zeros(len(rows.states), bool)
    last[ends] = True
    where = np.stack([np.zeros_like(numbers), numbers, rows.frame[offsets[:-1]]], axis=1)
    steps = (rows.states, rows.actions, rows.rewards, rows.states, rows.terminals, last & ~rows.terminals)
    return Transitions(*steps, offsets, where)


def matrix_of(array: Any, origin: str, name: str) -> np.ndarray:
    """A column of an Arrow batch as numbers: a vector, or of lists of one length a matrix."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.null_count:
        raise InputError(f"{origin}: '{name}' has rows without a value")
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        rows, flat = len(array), array.flatten()
        lengths = pc.min_max(pc.list_value_length(array))
        if rows and lengths["min"] != lengths["max"]:
            raise InputError(f"{origin}: '{name}' holds {lengths['min']} to {lengths['max']} numbers a row")
        return matrix_of(flat, origin, name).reshape(rows, -1)
    return array.to_numpy(zero_copy_only=False)
