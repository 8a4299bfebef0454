"""The expert: the states its sources select and, where they are asked for, the actions taken in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from smodice_cli import envs
from smodice_cli.data import Transitions, offsets_of, parse_dims
from smodice_cli.envs import Environment
from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources.source import EVERYTHING, STATE_SELECTIONS, Choice, Source

SEARCHED = 1_000_000  # transitions simulated in search of states before giving up


@dataclass(frozen=True)
class ExpertStates:
    """The states an expert source selects; of whole trajectories also lengths, returns and, if wanted, actions."""

    states: np.ndarray
    lengths: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # of trajectories, in states
    returns: list[float] = field(default_factory=list)
    actions: np.ndarray | None = None
    action_rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # the states they were taken in


def expert_states(
    source: Source, env: str, seed: int, workers: int, *, actions: bool = False, choice: Choice = EVERYTHING
) -> ExpertStates:
    """What an expert source selects."""
    if actions and source.selection in STATE_SELECTIONS:
        raise InputError(f"expert source '{source.text}' selects single states, which have no actions")
    with closing(source.episodes(env, seed, workers, states_only=not actions, choice=choice)) as stream:
        if source.selection not in STATE_SELECTIONS:
            return _trajectories(stream, actions)
        return ExpertStates(_draw(stream, source, env, np.random.default_rng([seed, 1])))


def _trajectories(stream: Iterator[Transitions], actions: bool) -> ExpertStates:
    states, taken, steps, held = [], [], [], []
    returns: list[float] = []
    for block in stream:
        states.append(block.states())
        steps.append(np.diff(block.offsets))
        held.append(block.final_states_held())
        returns += block.returns()
        if actions:
            taken.append(block.actions)
    if not states:
        return ExpertStates(np.empty((0, 0), np.float32))
    final = np.concatenate(held)
    lengths = np.concatenate(steps) + final
    found = ExpertStates(np.concatenate(states), lengths, returns)
    if not actions:
        return found
    rows = np.delete(np.arange(lengths.sum()), np.cumsum(lengths)[final] - 1)  # of all but the final states
    return replace(found, actions=np.concatenate(taken), action_rows=rows)


def _draw(stream: Iterator[Transitions], source: Source, env: str, rng: np.random.Generator) -> np.ndarray:
    """Any states, or success states: all of them, or a uniform draw that never holds more than it needs.

    A simulation, which has no end, stops at twice what is asked (so that a draw is one).
    """
    passes = envs.find(env).success if source.selection == "success" else None
    parts: list[np.ndarray] = []
    keys = np.empty(0)  # a random number a state; the smallest are drawn
    total = searched = 0
    for block in stream:
        states = block.states()
        parts.append(states[passes(states)] if passes else states)
        total += len(parts[-1])
        searched += block.rows
        if source.count is None:
            continue
        keys = np.append(keys, rng.random(len(parts[-1])))
        if len(keys) > source.count:
            kept = np.sort(np.argpartition(keys, source.count)[: source.count])
            parts, keys = [np.concatenate(parts)[kept]], keys[kept]
        if source.endless and (total >= 2 * source.count or searched >= SEARCHED):
            break
    if total < (source.count or 0):
        hint = f"#{source.selection}={total}, or #{source.selection} for all" if total and not source.endless else ""
        raise InputError(f"source '{source.text}' has only {total} such states in {searched:,} transitions", hint)
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def thin(found: ExpertStates, share: float, rng: np.random.Generator) -> ExpertStates:
    """A share of the states, drawn at random; what was not one step apart is now two trajectories, not one."""
    keep = rng.random(len(found.states)) < share
    begins = np.zeros(len(keep), bool)
    begins[offsets_of(found.lengths)[:-1]] = True
    begins |= ~np.roll(keep, 1)
    pieces = np.diff(np.append(np.flatnonzero(begins[keep]), keep.sum())) if len(found.lengths) else found.lengths
    acted = keep[found.action_rows]
    return replace(
        found,
        states=found.states[keep],
        lengths=pieces,
        actions=None if found.actions is None else found.actions[acted],
        action_rows=(np.cumsum(keep) - 1)[found.action_rows[acted]],
    )


def check(found: ExpertStates, source: Source, env: Environment, *, dims: str) -> None:
    """Refuse an expert that cannot be imitated; where `dims` are shared, its states may have another width."""
    who, width = f"expert source '{source.text}'", found.states.shape[1]
    if not len(found.states):
        raise InputError(f"{who} holds no states")
    if not np.isfinite(found.states).all():
        raise InputError(f"{who} holds NaN or infinite states")
    source.check_states(found.states, who)
    if width != env.obs_dim and not dims:
        raise InputError(
            f"{who} has {width} dimensions, the offline states {env.obs_dim}",
            "name the dimensions they share, e.g. --expert-dims 0:2",
        )
    if {0, 1} <= set(parse_dims(dims, min(env.obs_dim, width))):
        env.check_places(who, found.states)
    if found.actions is not None:
        env.check_widths(source.text, actions=found.actions.shape[1])
        if not found.actions.size or not np.isfinite(found.actions).all():
            raise InputError(f"{who} holds no actions, or NaN or infinite ones")
    if not np.isfinite(found.returns).all():
        raise InputError(f"{who} holds NaN or infinite rewards")


def join(
    parts: Sequence[ExpertStates], env: Environment, dims: str, *, absorbing: bool
) -> tuple[dict[str, np.ndarray], list[int]]:
    """The columns that a dataset stores of its expert, and which of the imitator's dimensions its states have."""
    widths = {part.states.shape[1] for part in parts}
    if len(widths) > 1:
        raise InputError("the expert sources differ in their number of dimensions")
    shared = parse_dims(dims, min(env.obs_dim, *widths))
    states = np.concatenate([part.states for part in parts]).astype(np.float32)
    if dims:
        states = states[:, shared]
    elif absorbing:  # none of the expert's states is the absorbing one
        states, shared = np.pad(states, ((0, 0), (0, 1))), [*shared, env.obs_dim]
    arrays = {"expert/observations": states}
    if all(len(part.lengths) for part in parts):
        lengths = np.concatenate([part.lengths for part in parts])
        arrays["expert/offsets"] = offsets_of(lengths).astype(np.int64)
    actions = [part.actions for part in parts if part.actions is not None]
    if actions:
        starts = np.cumsum([0, *(len(part.states) for part in parts[:-1])])
        rows = [start + part.action_rows for start, part in zip(starts, parts, strict=True)]
        arrays["expert/action_rows"] = np.concatenate(rows).astype(np.int64)
        arrays["expert/actions"] = np.clip(np.concatenate(actions), *env.action_range).astype(np.float32)
    return arrays, shared


def expert_return(offline: list[dict[str, Any]], demonstrated: list[dict[str, Any]]) -> float | None:
    """The mean return of the dataset's expert: of the best source of the imitator's own body, offline or expert.

    One expert trajectory is a noisy figure, so where the same policy, or selection of a file, also gives offline
    trajectories, the larger sample counts. An expert of another body, or one given as states, has no return here: then
    the best of several offline sources stands for it, and a single one, which may be a mixture, for nothing (None).
    """
    offline = [source for source in offline if source.get("rewards", True)]
    if not demonstrated and len(offline) < 2:
        return None
    samples: dict[str, dict[str, Any]] = {}
    for source in (*demonstrated, *offline):
        known = samples.get(source["origin"])
        if known is None or source["episodes"] >= known["episodes"]:
            samples[source["origin"]] = source
    return max(float(source["mean_return"]) for source in samples.values())
