"""tabular: SMODICE solved exactly on a gridworld, a text map or transition counts; writes arrays and a picture."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from smodice_cli import artifacts
from smodice_cli.algos import tabular as exact
from smodice_cli.artifacts import Header, Link
from smodice_cli.config import setting
from smodice_cli.envs import gridworld
from smodice_cli.envs.gridworld import Gridworld
from smodice_cli.errors import ConfigError, ForeignFileError, InputError, UsageError
from smodice_cli.stages.runner import Job, Options, Result, run

STAGE = "tabular"
PAPER_TASKS = ("mismatched", "example")
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
Array = np.ndarray


@dataclass(frozen=True)
class TabularConfig:
    """tabular: the finite problem and the variant of the dual; defaults are the paper's gridworlds."""

    task: Literal["mismatched", "example", "map", "counts"] = setting("example", "what is solved")
    size: int = setting(9, "cells along a side of the paper's torus", ge=3)
    gamma: float = setting(0.99, "discount", gt=0, lt=1)
    episodes: int = setting(10_000, "episodes of the random policy", gt=0)
    horizon: int = setting(50, "steps in an episode", gt=0)
    noise: float = setting(0.1, "probability that a move is uniform over the four", ge=0, le=1)
    starts: Literal["auto", "start", "anywhere"] = setting("auto", "where episodes of data begin")
    expert: Literal["goal", "diagonal"] = setting("goal", "the expert: success cells, or a diagonal mover")
    torus: bool = setting(False, "moves wrap around (the paper's grids do)")
    f: Literal["chi2", "kl", "soft-chi2", "chi2-untruncated"] = setting("chi2", "the divergence D_f(d || d^O)")
    alpha: float = setting(1.0, "strength of the regulariser; 1 is the paper", gt=0)
    cap: float = setting(0.0, "bound on the ratio xi; 0 means none", ge=0)
    smoothing: float = setting(1e-4, "added to both occupancies in the log ratio", gt=0)


GRID_FLAGS = ("size", "episodes", "horizon", "noise", "starts", "expert", "torus")


@dataclass(frozen=True)
class Problem:
    """A finite imitation problem: counted transitions, start distribution, expert states; the grid if there is one."""

    counts: sp.csr_array  # (S * A, S)
    initial: Array
    expert: Array  # d^E(s)
    grid: Gridworld | None = None
    expert_path: tuple[int, ...] = ()


def tabular(source: str, out: Path | None, given: dict[str, Any], seed: int, options: Options) -> Result:
    """Solve `mismatched`, `example`, a map file or an HDF5 file of counts; `given` holds the settings that were set."""
    config, path = _configure(source, given)
    out = out or Path("runs") / STAGE / f"{path.stem if path else source}.h5"
    if picture_path(out) == out:
        raise UsageError(f"--out {out}: that is where the picture goes", "name an HDF5 file, e.g. runs/tabular/x.h5")
    _refuse_foreign_picture(picture_path(out), options)
    files = {"source": _file_link(path, out.parent)} if path else {}
    if path:
        _read_source(path, config)  # a bad file is refused before anything is locked, planned or written
    job = Job(STAGE, "tabular", out, config, seed, options=options, files=files)
    result = run(job, lambda job, began: _work(job, began, path))
    if result.header and config.task != "counts" and (result.status == "done" or not picture_path(out).exists()):
        draw(out)
    return result


def picture_path(out: Path) -> Path:
    """Where the picture of an artifact lies: example.h5 -> example.png."""
    return out.with_suffix(".png")


def lines(result: Result) -> list[str]:
    """What came out, for people."""
    if result.header is None:
        return []
    figures = result.header.metrics
    shown = []
    if "success_occupancy" in figures:
        success, others = figures["success_occupancy"], figures["next_largest_occupancy"]
        reached = "reaches success in" if figures["path_reaches_goal"] else "stops short of success after"
        path = f"the path {reached} {figures['path_length']} moves (shortest {figures['shortest_length']})"
        shown = [
            f"d(success) = {success:.4f}, next largest {others:.4f}; {path}",
            f"picture: {picture_path(result.path)}",
        ]
    certificate = f"E[xi] = {figures['mean_ratio']:.9f}, flow residual {figures['flow_residual']:.1e}"
    states = f"{figures['fallback_states']} of {figures['states_in_data']} states in the data without weight"
    shown.append(f"{certificate}, D_f = {figures['f_divergence']:.4f}, {states}")
    return shown + result.header.notes


def draw(out: Path) -> None:
    """Render the picture of a solved gridworld from its artifact alone."""
    from smodice_cli.inspect import tabular_plot

    artifact = artifacts.load(out, "tabular")
    with artifacts.atomic(picture_path(out)) as temporary:
        tabular_plot.save(temporary, artifact.arrays, artifact.header.config, artifact.header.metrics)


# --- settings -------------------------------------------------------------------------------------------------------


def _configure(source: str, given: dict[str, Any]) -> tuple[TabularConfig, Path | None]:
    """The config of a task or file, and the file's path; settings that cannot apply are refused."""
    settings = {name: value for name, value in given.items() if value is not None}
    path = None if source in PAPER_TASKS else Path(source)
    if path is None:
        task = source
        settings |= {"expert": "diagonal" if source == "mismatched" else "goal", "torus": True}
        unusable: tuple[str, ...] = ("expert", "torus")
    else:
        task = "counts" if _is_hdf5(path) else "map"
        unusable = GRID_FLAGS if task == "counts" else ("size",)
    for name in unusable:
        if given.get(name) is not None:
            raise UsageError(f"--{name} does not apply to {source}: it is fixed there")
    config = TabularConfig(**{"task": task, **settings})
    _check(config)
    return config, path


def _check(config: TabularConfig) -> None:
    tests = {
        "gamma": (0 < config.gamma < 1, "strictly between 0 and 1"),
        "size": (config.size >= 3, "at least 3"),
        "episodes": (config.episodes > 0, "at least 1"),
        "horizon": (config.horizon > 0, "at least 1"),
        "noise": (0 <= config.noise <= 1, "between 0 and 1"),
        "alpha": (0 < config.alpha < math.inf, "positive"),
        "cap": (config.cap == 0 or 1 < config.cap < math.inf, "above 1 (the mean ratio is one), or 0 for none"),
        "smoothing": (0 < config.smoothing < math.inf, "positive"),
        "f": (config.f in exact.DIVERGENCES, f"one of {', '.join(exact.DIVERGENCES)}"),
        "starts": (config.starts in ("auto", "start", "anywhere"), "auto, start or anywhere"),
        "expert": (config.expert in ("goal", "diagonal"), "goal or diagonal"),
    }
    for name, (holds, words) in tests.items():
        if not holds:
            raise ConfigError(f"{name} must be {words}, got {getattr(config, name)}")


def _is_hdf5(path: Path) -> bool:
    if not path.exists():
        raise InputError(f"{path} does not exist", "give mismatched, example, a map file or an HDF5 file of counts")
    if path.is_dir():
        raise InputError(f"{path} is a folder", "give mismatched, example, a map file or an HDF5 file of counts")
    with open(path, "rb") as handle:
        return handle.read(len(HDF5_MAGIC)) == HDF5_MAGIC


def _file_link(path: Path, folder: Path) -> Link:
    return Link(os.path.relpath(path.resolve(), folder.resolve()), artifacts.file_digest(path))


def _refuse_foreign_picture(path: Path, options: Options) -> None:
    from smodice_cli.inspect.tabular_plot import is_ours

    if path.exists() and not options.force and not is_ours(path):
        raise ForeignFileError(
            f"{path} exists and was not drawn by smodice", "choose another --out, move it away, or use --force"
        )


# --- problems -------------------------------------------------------------------------------------------------------


def _read_source(path: Path, config: TabularConfig) -> Gridworld | Problem:
    if config.task == "counts":
        return read_counts(path)
    return gridworld.read_map(path, config.noise, config.torus)


def _problem(config: TabularConfig, seed: int, path: Path | None) -> Problem:
    source = _read_source(path, config) if path else gridworld.paper_grid(config.size, config.noise)
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


def begins_anywhere(grid: Gridworld, config: TabularConfig) -> bool:
    """Whether episodes of data begin anywhere: on request, or because no random walk of this length sees the goal."""
    if config.starts != "auto":
        return config.starts == "anywhere"
    return float(grid.distance_to_goal()[list(grid.starts)].max()) > 2.0 * math.sqrt(config.horizon)


def read_counts(path: Path) -> Problem:
    """HDF5 with initial (S,), expert (S,) and counts (S, A, S) or columns state, action, next_state[, count]."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            arrays = {name: np.asarray(item) for name, item in file.items() if isinstance(item, h5py.Dataset)}
    except OSError as error:
        raise InputError(f"{path} cannot be read as HDF5") from error
    for name in ("initial", "expert"):
        if name not in arrays:
            raise InputError(
                f"{path} has no dataset '{name}'", "needed: initial (S,), expert (S,) and counts (S, A, S)"
            )
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "fiu":
            raise InputError(f"{path}: '{name}' must be one number a state, not of shape {arrays[name].shape}")
    states = arrays["initial"].size
    exact.check_distribution(f"{path}: initial", arrays["initial"].astype(float), states)
    exact.check_distribution(f"{path}: expert", arrays["expert"].astype(float), states)
    counts = _dense_counts(path, arrays["counts"], states) if "counts" in arrays else _columns(path, arrays, states)
    exact.check_counts(counts)
    initial, expert = (arrays[name].astype(float) for name in ("initial", "expert"))
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


# --- the work -------------------------------------------------------------------------------------------------------


def _work(job: Job, began: float, path: Path | None) -> Header:
    arrays, metrics, notes = solve(job.config, job.seed, path)
    header = job.header(metrics=metrics, notes=notes, seconds=time.monotonic() - began)
    return artifacts.write_hdf5(job.out, header, arrays)


def solve(
    config: TabularConfig, seed: int, path: Path | None = None
) -> tuple[dict[str, Array], dict[str, Any], list[str]]:
    """The arrays, figures and remarks of one problem, without files."""
    problem = _problem(config, seed, path)
    mdp, behaviour = exact.maximum_likelihood(problem.counts, problem.initial, config.gamma)
    offline = exact.occupancy(mdp, behaviour)
    visits = offline.sum(axis=1)
    notes = _coverage(problem.expert, visits)
    reward = exact.log_ratio_reward(problem.expert, visits, config.smoothing)
    solution = exact.solve(mdp, offline, reward, config.f, config.alpha, config.cap or math.inf, behaviour)
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
        metrics |= _grid_figures(problem.grid, solution.policy, visited)
        arrays |= _grid_arrays(problem, solution.policy)
        if metrics["shortest_length"] * (1.0 - config.gamma) > 1.0:
            away, horizon = metrics["shortest_length"], 1.0 / (1.0 - config.gamma)
            notes.append(f"success is {away} moves away, beyond the horizon 1/(1-gamma) = {horizon:.0f}: raise --gamma")
    return arrays, metrics, notes


def _coverage(expert: Array, visits: Array) -> list[str]:
    """Assumption 1: the data must see the expert's states; refuse if they see none, remark if they miss some."""
    covered = float(expert[visits > 0].sum())
    if covered == 0.0:
        raise InputError(
            "the data never reach a state of the expert",
            "collect more: --episodes, --horizon, or --starts anywhere",
        )
    return [f"the data cover {covered:.1%} of the expert's occupancy"] if covered < 1 - 1e-9 else []


def _certificates(
    problem: Problem, mdp: exact.FiniteMDP, offline: Array, reward: Array, solution: exact.Solution
) -> dict[str, Any]:
    tried = np.asarray(problem.counts.sum(axis=1)).ravel()
    support = (offline.ravel() > 0) & (tried > 0)
    bound = exact.value_error_bound(
        max(1, int(tried[support].min())),
        mdp.n_states,
        mdp.n_actions,
        mdp.gamma,
        float(np.abs(reward).max()),
        float(offline.ravel()[support].min()),
    )
    return {
        "mean_ratio": float(solution.occupancy.sum()),
        "flow_residual": solution.flow_residual,
        "f_divergence": solution.f_divergence,
        "primal": solution.primal,
        "dual": solution.dual,
        "iterations": solution.iterations,
        "states": mdp.n_states,
        "states_in_data": int((offline.sum(axis=1) > 0).sum()),
        "fallback_states": int(solution.fallback[offline.sum(axis=1) > 0].sum()),
        "transitions": int(problem.counts.sum()),
        "value_error_bound": bound,
    }


def _grid_figures(grid: Gridworld, policy: Array, visited: Array) -> dict[str, Any]:
    path = grid.greedy_path(policy)
    others = np.delete(visited, list(grid.goals))
    return {
        "success_occupancy": float(visited[list(grid.goals)].sum()),
        "next_largest_occupancy": float(others.max()),
        "path_length": len(path) - 1,
        "path_reaches_goal": path[-1] in grid.goals,
        "shortest_length": int(grid.distance_to_goal()[grid.starts[0]]),
    }


def _grid_arrays(problem: Problem, policy: Array) -> dict[str, Array]:
    grid = problem.grid
    assert grid is not None
    found: dict[str, Array] = {
        "walls": grid.walls.astype(np.uint8),
        "starts": np.array(grid.starts, dtype=np.int64),
        "goals": np.array(grid.goals, dtype=np.int64),
        "path": np.array(grid.greedy_path(policy), dtype=np.int64),
    }
    if problem.expert_path:
        found["expert_path"] = np.array(problem.expert_path, dtype=np.int64)
    return found
