"""build-dataset: sources -> dataset.h5, streamed, checked, float32, contiguous."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.artifacts import Header
from smodice_cli.config import DatasetConfig
from smodice_cli.console import console
from smodice_cli.data import Spool, check, check_zeros, parse_dims
from smodice_cli.envs import registry
from smodice_cli.errors import InputError, UsageError
from smodice_cli.sources import recorded, specs
from smodice_cli.stages.runner import Job, Options, Result, run

STAGE = "build-dataset"


def build_dataset(out: Path, config: DatasetConfig, seed: int, options: Options) -> Result:
    """Read or simulate the sources and write one dataset artifact."""
    if not config.env:
        raise UsageError("which environment? pass --env, e.g. --env pointmass-4direction")
    if config.env != registry.DATA:
        registry.spec(config.env)
    if not config.offline or not config.expert:
        raise UsageError(f"no {'offline' if not config.offline else 'expert'} source was given")
    offline = [specs.parse(text) for text in config.offline]
    expert = [specs.parse(text) for text in config.expert]
    for spec in offline:
        specs.check_offline(spec, config.env)
    if config.env == registry.DATA:
        config = replace(config, env=_sizes_of(offline[0], fetch=not options.dry_run))
    parse_dims(config.expert_dims, registry.spec(config.env).obs_dim)
    for spec in expert:
        specs.check_expert(spec, config.env)
        if config.expert_actions and (config.expert_dims or specs.body_of(spec) not in ("", config.env)):
            raise UsageError(f"expert source '{spec.text}' is another body, whose actions are not the imitator's")
    files = specs.linked_files([*offline, *expert], out.parent, fetch=not options.dry_run)
    _check_files(offline, config.env)
    return run(Job(STAGE, "dataset", out, config, seed, options=options, files=files), _work)


def _sizes_of(spec: specs.Spec, *, fetch: bool) -> str:
    """The environment `data` in full: the sizes of state and action are those of the first recording."""
    path = specs.local_file(spec, fetch=fetch)
    if path is None:
        raise UsageError(f"--env {registry.DATA}: '{spec.text}' is not there yet to be measured")
    observations, actions = recorded.widths(path)
    if not actions:
        raise InputError(f"{spec.text} holds no actions")
    return f"{registry.DATA}:{observations}x{actions}"


def _check_files(offline: list[specs.Spec], env: str) -> None:
    """Refuse recordings of another environment before anything is simulated."""
    entry = registry.spec(env)
    for spec in offline:
        path = specs.local_file(spec, fetch=False)
        if path is not None:
            observations, actions = recorded.widths(path, entry.observation_parts)
            _check_widths(spec, entry, observations=observations, actions=actions)


def _work(job: Job, began: float) -> Header:
    config: DatasetConfig = job.config
    env = registry.spec(config.env)
    notes: list[str] = []
    expert, extra, dims, demonstrated = _expert(job, notes)
    with tempfile.TemporaryDirectory(dir=job.out.parent, prefix=f".{job.out.name}.", suffix=".tmp") as folder:
        with artifacts.writing(job.out):
            spool = Spool(Path(folder), env.obs_dim, env.act_dim, config.absorbing)
        described = [_offline(job, spool, index, specs.parse(text), notes) for index, text in enumerate(config.offline)]
        if spool.rows == 0:
            raise InputError("the offline sources hold no transitions")
        with artifacts.writing(job.out):
            offline = spool.arrays()
        low, high = _action_range(env, offline, extra, config.absorbing)
        arrays = offline | {
            "expert/observations": expert[:, dims] if config.expert_dims else expert,
            "action_low": low,
            "action_high": high,
            **extra,
        }
        if config.absorbing and not config.expert_dims:
            arrays["expert/observations"] = np.pad(expert, ((0, 0), (0, 1)))
            dims = [*dims, env.obs_dim]
        metrics: dict[str, Any] = {
            "rows": spool.rows,
            "episodes": len(arrays["episode_source"]),
            "expert_states": len(expert),
            "expert_dims": dims,
            "expert_return": expert_return(described, demonstrated),
            "sources": specs.labels([specs.parse(text) for text in job.config.offline]),
            "offline": described,
        }
        header = job.header(metrics=metrics, notes=notes, seconds=time.monotonic() - began)
        return artifacts.write_hdf5(job.out, header, arrays)


def _action_range(
    env: registry.EnvSpec, offline: dict[str, np.ndarray], extra: dict[str, np.ndarray], absorbing: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest actions: the environment's, or, where there is none, those of the data."""
    if np.isfinite(env.action_range).all():
        low, high = (np.full(env.act_dim, limit, np.float32) for limit in env.action_range)
        return low, high
    taken = offline["actions"][offline["observations"][:, -1] == 0] if absorbing else offline["actions"]
    parts = [taken, *([extra["expert/actions"]] if "expert/actions" in extra else [])]
    low = np.min([part.min(axis=0) for part in parts], axis=0)
    high = np.max([part.max(axis=0) for part in parts], axis=0)
    return low, np.where(high > low, high, low + 1)


def _offline(job: Job, spool: Spool, index: int, spec: specs.Spec, notes: list[str]) -> dict[str, Any]:
    env = registry.spec(job.config.env)
    wanted = spec.count if spec.selection == "steps" else None
    rows = clipped = longest = 0
    held = specs.contents(spec)
    returns: list[float] = []
    seed = job.seed + 1000 * index  # two sources of one kind must not repeat each other
    with console.progress(f"{STAGE} {spec.label}", wanted or 0) as bar:
        for block in specs.episodes(spec, job.config.env, seed, job.options.threads):
            widths = {name: getattr(block, name).shape[1] for name in ("observations", "next_observations", "actions")}
            _check_widths(spec, env, **widths)
            check(block, spec.text, rows)
            if spec.scheme != "sim":
                check_zeros(block.observations, spec.text, rows)
            low, high = env.action_range
            clipped += int(((block.actions < low) | (block.actions > high)).any(axis=1).sum())
            np.clip(block.actions, low, high, out=block.actions)
            with artifacts.writing(job.out):
                spool.append(block, index)
            rows += block.rows
            longest = max(longest, int(np.diff(block.offsets).max()))
            returns += np.add.reduceat(block.rewards, block.offsets[:-1], dtype=np.float64).tolist()
            bar.update(rows, episodes=len(returns))
    if clipped:
        _warn(notes, f"{spec.text}: {clipped} of {rows} actions lay outside {_span(env)} and were clipped to it")
    if longest > env.horizon:
        _warn(notes, f"{spec.text}: an episode has {longest} steps, where {env.name} ends after {env.horizon}")
    if not held.ends and len(returns) == 1:
        _warn(notes, f"{spec.text}: nothing marks an end among its {rows} rows, so they count as one episode")
    return _described(spec, rows, returns, held.rewards)


def _warn(notes: list[str], text: str) -> None:
    """Say it now, and in the artifact's header."""
    notes.append(text)
    console.warn(text)


def _span(env: registry.EnvSpec) -> str:
    """The range of actions in words."""
    low, high = env.action_range
    return f"[{low:g}, {high:g}]" if np.ndim(low) == 0 else f"the range of {env.name}'s"


def _described(spec: specs.Spec, rows: int, returns: list[float], rewards: bool = True) -> dict[str, Any]:
    """A source as the header tells of it; one without rewards says so."""
    mean_return = float(np.mean(returns)) if returns else 0.0
    return {
        "label": spec.label,
        "origin": spec.origin,
        "rows": rows,
        "episodes": len(returns),
        "mean_return": mean_return,
        **({} if rewards else {"rewards": False}),
    }


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


def _check_widths(spec: specs.Spec, env: registry.EnvSpec, **widths: int) -> None:
    for what, width in widths.items():
        wanted = env.act_dim if what == "actions" else env.obs_dim
        if width != wanted and not (what == "actions" and width == 0):  # no actions at all is another error
            raise InputError(f"{spec.text}: {what} have {width} dimensions, but {env.name} has {wanted}")


def _expert(job: Job, notes: list[str]) -> tuple[np.ndarray, dict[str, np.ndarray], list[int], list[dict[str, Any]]]:
    """The expert's states, what else is stored of it, the matched dimensions, and its sources of this body."""
    config: DatasetConfig = job.config
    env = registry.spec(config.env)
    parts: list[specs.ExpertStates] = []
    demonstrated: list[dict[str, Any]] = []
    for index, text in enumerate(config.expert):
        spec = specs.parse(text)
        seed = job.seed + 1000 * (index + 500)  # the expert's episodes are not the offline ones
        found = specs.expert_states(spec, config.env, seed, job.options.threads, actions=config.expert_actions)
        states = found.states
        if not len(states):
            raise InputError(f"expert source '{text}' holds no states")
        if not np.isfinite(states).all():
            raise InputError(f"expert source '{text}' holds NaN or infinite states")
        if spec.scheme != "sim":
            check_zeros(states, f"expert source '{text}'")
        if states.shape[1] != env.obs_dim and not config.expert_dims:
            raise InputError(
                f"expert source '{text}' has {states.shape[1]} dimensions, the offline states {env.obs_dim}",
                "name the dimensions they share, e.g. --expert-dims 0:2",
            )
        if found.actions is not None:
            _check_widths(spec, env, actions=found.actions.shape[1])
            if not found.actions.size or not np.isfinite(found.actions).all():
                raise InputError(f"expert source '{text}' holds no actions, or NaN or infinite ones")
            low, high = env.action_range
            if clipped := int(((found.actions < low) | (found.actions > high)).any(axis=1).sum()):
                _warn(notes, f"{text}: {clipped} expert actions lay outside {_span(env)} and were clipped to it")
        parts.append(found)
        if not np.isfinite(found.returns).all():
            raise InputError(f"expert source '{text}' holds NaN or infinite rewards")
        if any(found.returns) and not config.expert_dims and specs.body_of(spec) in ("", config.env):
            demonstrated.append(_described(spec, len(states), found.returns))
    if len({part.states.shape[1] for part in parts}) > 1:
        raise InputError("the expert sources differ in their number of dimensions")
    dims = parse_dims(config.expert_dims, min(env.obs_dim, parts[0].states.shape[1]))
    states = np.concatenate([part.states for part in parts]).astype(np.float32)
    return states, _expert_extra(parts, env), dims, demonstrated


def _expert_extra(parts: list[specs.ExpertStates], env: registry.EnvSpec) -> dict[str, np.ndarray]:
    """Where the expert's trajectories begin and end, if it has any, and its actions, if they were asked for."""
    extra: dict[str, np.ndarray] = {}
    if all(len(part.lengths) for part in parts):
        lengths = np.concatenate([part.lengths for part in parts])
        extra["expert/offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    actions = [part.actions for part in parts if part.actions is not None]
    if actions:
        starts = np.cumsum([0, *(len(part.states) for part in parts[:-1])])
        rows = [start + part.action_rows for start, part in zip(starts, parts, strict=True)]
        extra["expert/action_rows"] = np.concatenate(rows).astype(np.int64)
        extra["expert/actions"] = np.clip(np.concatenate(actions), *env.action_range).astype(np.float32)
    return extra
