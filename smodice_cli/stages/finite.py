"""Finite problems for `smodice tabular`: the paper's gridworlds, a text map or counts, and their solution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse as sp

from smodice_cli.algos import tabular as exact
from smodice_cli.containers import open_hdf5
from smodice_cli.envs import gridworld
from smodice_cli.envs.gridworld import Gridworld
from smodice_cli.errors import DivergedError, InputError
from smodice_cli.sources import layouts
from smodice_cli.sources.layouts import outside
from smodice_cli.sources.layouts.arrays import check_held
from smodice_cli.stages.tabular import Config

Array = np.ndarray
COUNTED = ("initial", "expert", "counts", "state", "action", "next_state", "count")


@dataclass(frozen=True)
class Problem:
    """A finite imitation problem: counted transitions, start distribution, expert states; the grid if there is one."""

    counts: sp.csr_array  # (S * A, S)
    initial: Array
    expert: Array  # d^E(s)
    grid: Gridworld | None = None
    expert_path: tuple[int, ...] = ()


def read_source(path: Path, config: Config) -> Gridworld | Problem:
    if config.task == "counts":
        return read_counts(path)
    return gridworld.read_map(path, config.noise, config.torus)


def _problem(config: Config, seed: int, path: Path | None) -> Problem:
    source = read_source(path, config) if path else gridworld.paper_grid(config.size, config.noise)
    if isinstance(source, Problem):
        return source
    counts = gridworld.collect(source, config.episodes, config.horizon, seed, begins_anywhere(source, config))
    if config.expert == "goal":  # example-based imitation: d^E is uniform over the success states
        expert = np.zeros(source.n_states)
        expert[list(source.goals)] = 1.0 / len(source.goals)
        return Problem(counts, source.initial, expert, source)
    policy = source.expert_policy(diagonal=True)
    expert_mdp = exact.FiniteMDP(source.transition(diagonal=True), source.initial, config.gamma)
    expert = exact.occupancy(expert_mdp, policy).sum(axis=1)
    return Problem(counts, source.initial, expert, source, tuple(source.greedy_path(policy, diagonal=True)))


def begins_anywhere(grid: Gridworld, config: Config) -> bool:
    """Whether episodes of data begin anywhere: on request, or because no random walk of this length sees the goal."""
    if config.starts != "auto":
        return config.starts == "anywhere"
    return float(grid.distance_to_goal()[list(grid.starts)].max()) > 2.0 * math.sqrt(config.horizon)


def read_counts(path: Path) -> Problem:
    """HDF5 with initial (S,), expert (S,) and counts (S, A, S) or columns state, action, next_state[, count]."""
    with layouts.damage_explained(path, "an HDF5 file"), open_hdf5(path) as file:
        outside.named(file)
        present = {name: file[name] for name in COUNTED if isinstance(file.get(name), h5py.Dataset)}
        for column in present.values():
            check_held(column)
        arrays = {name: np.asarray(column) for name, column in present.items()}
    given = []
    for name in ("initial", "expert"):
        if name not in arrays:
            hint = "needed: initial (S,), expert (S,) and counts (S, A, S)"
            raise InputError(f"{path} has no dataset '{name}'", hint)
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "fiu":
            raise InputError(f"{path}: '{name}' must be one number a state, not of shape {arrays[name].shape}")
        given.append(arrays[name].astype(float))
    initial, expert = given
    states = initial.size
    exact.check_distribution(f"{path}: initial", initial, states)
    exact.check_distribution(f"{path}: expert", expert, states)
    counts = _dense_counts(path, arrays["counts"], states) if "counts" in arrays else _columns(path, arrays, states)
    exact.check_counts(counts)
    return Problem(counts, initial / initial.sum(), expert / expert.sum())


def _dense_counts(path: Path, counts: Array, states: int) -> sp.csr_array:
    if counts.ndim != 3 or counts.shape[0] != states or counts.shape[2] != states or counts.dtype.kind not in "fiu":
        raise InputError(f"{path}: counts have shape {counts.shape}, expected ({states}, actions, {states})")
    return sp.csr_array(counts.reshape(-1, states).astype(float))


def _columns(path: Path, arrays: dict[str, Array], states: int) -> sp.csr_array:
    names = ("state", "action", "next_state")
    if missing := [name for name in names if name not in arrays]:
        raise InputError(f"{path} has neither 'counts' nor '{missing[0]}'", f"needed: counts, or {', '.join(names)}")
    columns = [arrays[name] for name in names]
    times = arrays.get("count", np.ones(columns[0].shape))
    whole = all(c.ndim == 1 and c.shape == times.shape and c.dtype.kind in "iu" for c in columns)
    if not whole or times.dtype.kind not in "fiu":
        raise InputError(f"{path}: state, action, next_state and count must be columns of one length (whole numbers)")
    if times.size == 0:
        raise InputError(f"{path} holds no transitions")
    state, action, following = columns
    if min(c.min() for c in columns) < 0 or max(state.max(), following.max()) >= states:
        raise InputError(f"{path}: a state or action is out of range (there are {states} states)")
    actions = int(action.max()) + 1
    rows = state.astype(np.int64) * actions + action
    return sp.csr_array((times.astype(float), (rows, following.astype(np.int64))), shape=(states * actions, states))


# --- the solution ---------------------------------------------------------------------------------------------------


def solve(config: Config, seed: int, path: Path | None = None) -> tuple[dict[str, Array], dict[str, Any], list[str]]:
    """The arrays, figures and remarks of one problem, without files."""
    problem = _problem(config, seed, path)
    mdp, behaviour = exact.maximum_likelihood(problem.counts, problem.initial, config.gamma)
    offline = exact.occupancy(mdp, behaviour)
    visits = offline.sum(axis=1)
    notes = _coverage(problem.expert, visits)
    reward = exact.log_ratio_reward(problem.expert, visits, config.smoothing)
    try:
        with np.errstate(all="ignore"):  # of a solution that is no number, the error below tells
            solution = exact.solve(mdp, offline, reward, config.f, config.alpha, config.cap or math.inf, behaviour)
    except RuntimeError as error:  # a singular matrix
        raise DivergedError(f"tabular: there is no solution ({error})", "look at the counts") from error
    if not all(np.isfinite(found).all() for found in (solution.ratio, solution.primal, solution.dual)):
        raise DivergedError("tabular: the solution is not finite", "try a larger --alpha")
    truth = exact.FiniteMDP(problem.grid.transition(), problem.initial, config.gamma) if problem.grid else mdp
    visited = exact.occupancy(truth, solution.policy).sum(axis=1)
    shape = (mdp.n_states, mdp.n_actions)
    entries = problem.counts.tocoo()
    arrays = {
        "value": solution.value,
        "ratio": solution.ratio.reshape(shape),
        "occupancy": solution.occupancy.reshape(shape),
        "policy": solution.policy,
        "fallback": solution.fallback.astype(np.uint8),
        "state_occupancy": visited,
        "behaviour": behaviour,
        "offline": offline,
        "expert": problem.expert,
        "initial": problem.initial,
        "reward": reward,
        "state": (entries.row // mdp.n_actions).astype(np.int64),
        "action": (entries.row % mdp.n_actions).astype(np.int64),
        "next_state": entries.col.astype(np.int64),
        "count": entries.data,
    }
    metrics = _certificates(problem, mdp, offline, reward, solution)
    if problem.grid:
        drawn, figures = _on_grid(problem.grid, problem.expert_path, solution.policy, visited)
        arrays, metrics = arrays | drawn, metrics | figures
        away, horizon = figures["shortest_length"], 1.0 / (1.0 - config.gamma)
        if away * (1.0 - config.gamma) > 1.0:
            notes.append(f"success is {away} moves away, beyond the horizon 1/(1-gamma) = {horizon:.0f}: raise --gamma")
    return arrays, metrics, notes


def _coverage(expert: Array, visits: Array) -> list[str]:
    """Assumption 1: the data must see the expert's states; refuse if they see none, remark if they miss some."""
    covered = float(expert[visits > 0].sum())
    if covered == 0.0:
        hint = "collect more: --episodes, --horizon, or --starts anywhere"
        raise InputError("the data never reach a state of the expert", hint)
    return [f"the data cover {covered:.1%} of the expert's occupancy"] if covered < 1 - 1e-9 else []


def _certificates(
    problem: Problem, mdp: exact.FiniteMDP, offline: Array, reward: Array, solution: exact.Solution
) -> dict[str, Any]:
    tried = np.asarray(problem.counts.sum(axis=1)).ravel()
    support = (offline.ravel() > 0) & (tried > 0)
    rarest, least = max(1, int(tried[support].min())), float(offline.ravel()[support].min())
    largest, seen = float(np.abs(reward).max()), offline.sum(axis=1) > 0
    return {
        "mean_ratio": float(solution.occupancy.sum()),
        "flow_residual": solution.flow_residual,
        "f_divergence": solution.f_divergence,
        "primal": solution.primal,
        "dual": solution.dual,
        "iterations": solution.iterations,
        "states": mdp.n_states,
        "states_in_data": int(seen.sum()),
        "fallback_states": int(solution.fallback[seen].sum()),
        "transitions": int(problem.counts.sum()),
        "value_error_bound": exact.value_error_bound(rarest, mdp.n_states, mdp.n_actions, mdp.gamma, largest, least),
    }


def _on_grid(
    grid: Gridworld, expert_path: tuple[int, ...], policy: Array, visited: Array
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays and figures that only a grid has."""
    path, goals = grid.greedy_path(policy), list(grid.goals)
    cells = {"starts": grid.starts, "goals": grid.goals, "path": path, "expert_path": expert_path}
    arrays = {name: np.array(found, np.int64) for name, found in cells.items() if found}
    return {"walls": grid.walls.astype(np.uint8), **arrays}, {
        "success_occupancy": float(visited[goals].sum()),
        "next_largest_occupancy": float(np.delete(visited, goals).max()),
        "path_length": len(path) - 1,
        "path_reaches_goal": path[-1] in goals,
        "shortest_length": int(grid.distance_to_goal()[grid.starts[0]]),
    }
