"""train-value: V on the Fenchel dual (Eq. 14), then the importance weight of every row (Eq. 15) into weights.h5."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smodice_cli import artifacts
from smodice_cli.algos.nets import ValueFunction, initialise
from smodice_cli.algos.segments import Segments, absorb, return_weights, row_weights, segments
from smodice_cli.algos.smodice import bellman_residual, importance_weights, solve_normaliser, value_loss
from smodice_cli.artifacts import Header, Link
from smodice_cli.config import ValueConfig
from smodice_cli.console import console
from smodice_cli.data import Dataset
from smodice_cli.errors import ConfigError, DivergedError
from smodice_cli.inspect.diagnostics import flow_residual, health_warnings, weight_health
from smodice_cli.stages import train_disc
from smodice_cli.stages.runner import Job, Options, Result, run
from smodice_cli.stages.trainer import State, adam, descend, fit, prepare, row_sampler

STAGE = "train-value"
BLOCK = 1 << 16  # rows per block when V is evaluated on the whole data set
HELD_OUT_ROWS = 8192  # segments and initial states of the held-out trajectories that the objective is watched on
NORMALISER_RATE = 10.0  # the normaliser's learning rate in units of V's: one number, in log-weight units


def train_value(disc: Path, out: Path, config: ValueConfig, seed: int, options: Options) -> Result:
    """Train V on the dataset that the discriminator names."""
    discriminator = artifacts.load(disc, "disc")
    inputs = {"disc": discriminator, "dataset": artifacts.follow(discriminator, "dataset", "dataset")}
    if train_disc.inputs_of(discriminator) != "state" and (
        config.terminal == "absorb" or config.estimator == "returns"
    ):
        raise ConfigError(
            "a discriminator of states with actions gives an end state, where nobody acts, no reward",
            "train-value --algo demodice, or --set terminal=zero with the dual",
        )
    if config.f == "auto":
        from smodice_cli.stages import select_f  # which itself trains V

        found = select_f.choose(disc, config, seed, options)
        if found is None:
            return Result(out, None, "would run", "value.f = auto: select-f runs first")
        config = replace(config, f=found)
    return run(Job(STAGE, "value", out, config, seed, inputs, options, beside=(weights_path(out),)), _work)


def weights_path(value: Path) -> Path:
    """Where the weights of a value artifact lie: value.safetensors -> weights.h5, x.safetensors -> x.weights.h5."""
    return value.with_name("weights.h5" if value.stem == "value" else f"{value.stem}.weights.h5")


@dataclass(frozen=True)
class Problem:
    """The dual of one data set: its segments, whether V goes on after them, and how often each is sampled."""

    dataset: Dataset
    config: ValueConfig
    segments: Segments
    go_on: np.ndarray  # factor of V(s'): 0 where the task ended and its end counts as nothing
    probability: np.ndarray  # unnormalised

    @property
    def alpha(self) -> float:
        """The regulariser's strength for a whole segment: alpha per step times the discounted steps in n."""
        c = self.config
        return c.alpha * (1 - c.gamma**c.n_step) / (1 - c.gamma)

    @property
    def cap(self) -> float:
        return self.config.cap or math.inf

    @property
    def gamma(self) -> float:
        """The discount of a whole segment."""
        return self.config.gamma**self.config.n_step


def pose(dataset: Dataset, reward: np.ndarray, end_reward: np.ndarray, config: ValueConfig) -> Problem:
    """Set up the dual; `reward` is R(s) of every row, `end_reward` R of each episode's final next state."""
    last_rows = dataset.offsets[1:] - 1
    terminal = dataset["terminals"][last_rows] != 0
    ends = last_rows[terminal]
    found = segments(reward, dataset.offsets, config.n_step, config.gamma)
    ended = np.isin(found.last, ends)
    discounted = config.sampling == "discounted"
    probability = config.gamma**found.time if discounted else np.ones(dataset.rows)
    if config.timeout == "drop":
        probability = probability * ~((dataset["timeouts"][found.last] != 0) & ~ended)
    go_on = np.ones(dataset.rows) if config.terminal == "bootstrap" else 1.0 - ended
    if config.terminal == "absorb":
        found = absorb(found, ends, end_reward[terminal], config.n_step, config.gamma)
        go_on = np.ones(len(found.reward))
        stays = config.gamma ** found.time[dataset.rows :] if discounted else np.ones(len(ends))
        probability = np.append(probability, stays)
    return Problem(dataset, config, found, go_on, probability)


def _work(job: Job, began: float) -> Header:
    config: ValueConfig = job.config
    dataset = Dataset.of(job.inputs["dataset"])
    generator, device = prepare(job)
    disc, inputs = train_disc.load(job.inputs["disc"], dataset, device), train_disc.inputs_of(job.inputs["disc"])
    reward = train_disc.row_rewards(disc, dataset, inputs).cpu().numpy()
    ends = dataset["next_observations"][dataset.offsets[1:] - 1]
    end_reward = train_disc.rewards(disc, ends).cpu().numpy() if inputs == "state" else np.zeros(len(ends))
    problem = pose(dataset, reward, end_reward, config)
    value, normaliser = build(dataset, config, generator)
    value.to(device)
    held_out: dict[str, float] = {}
    if config.estimator == "dual":
        held_out = _train(job, problem, value, normaliser, generator, device)
    v, v_next = values(value, dataset)
    if config.estimator == "dual":
        xi = _ratios(problem, v, v_next)
        held_out["raw_mean"] = float(np.average(xi, weights=problem.probability))
        w = row_weights(xi[: dataset.rows], dataset.offsets, config.n_step, config.gamma)
    else:
        w = return_weights(reward, end_reward, dataset.offsets, config.gamma, config.alpha)
    return _write(job, dataset, value, {"reward": reward, "v": v, "v_next": v_next, "w": w}, held_out, began)


def build(
    dataset: Dataset, config: ValueConfig, generator: torch.Generator
) -> tuple[ValueFunction, torch.nn.ParameterDict]:
    """V, and the normaliser in a module of its own."""
    mean, std = (torch.from_numpy(np.array(dataset[name])) for name in ("mean", "std"))
    value = ValueFunction(mean, std, config.hidden, config.scale)
    initialise(value, generator)
    return value, torch.nn.ParameterDict({"nu": torch.nn.Parameter(torch.zeros(()))})


def _train(
    job: Job,
    problem: Problem,
    value: ValueFunction,
    normaliser: torch.nn.ParameterDict,
    generator: torch.Generator,
    device: torch.device,
) -> dict[str, float]:
    config, dataset = problem.config, problem.dataset
    training, watched = _split(dataset, config, generator)
    normaliser.to(device)
    states, next_states = (torch.from_numpy(dataset[n]) for n in ("observations", "next_observations"))
    reward = torch.from_numpy(problem.segments.reward).float()
    discount = torch.from_numpy(problem.segments.discount * problem.go_on).float()
    last = torch.from_numpy(problem.segments.last)
    initial = torch.from_numpy(dataset.initial_observations()[training]).to(device)
    trains = training[dataset.episode_of_row()[problem.segments.last]]
    sample = row_sampler(problem.probability * trains, generator)
    nu = normaliser["nu"] if config.normaliser else None

    def residual_on(rows: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        after = next_states[last[rows]]
        staying = rows >= dataset.rows
        before = torch.where(staying[:, None], after, states[rows.where(~staying, last[rows])])
        v, v_next, v0 = value(torch.cat([before.to(device), after.to(device), starts])).split(
            [len(rows), len(rows), len(starts)]
        )
        return bellman_residual(reward[rows].to(device), v, v_next, discount[rows].to(device)), v0

    def loss_on(residual: Tensor, v0: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return value_loss(config.f, residual, v0, problem.gamma, problem.alpha, problem.cap, nu)

    optimisers = {"value": adam(value.parameters(), config.lr, config.weight_decay)}
    if config.normaliser:
        optimisers["normaliser"] = adam(normaliser.parameters(), config.lr)

    def update(step: int) -> dict[str, Tensor]:
        starts = initial[torch.randint(len(initial), (config.initial_batch,), generator=generator)]
        loss, info = loss_on(*residual_on(sample(config.batch), starts))
        descend(loss, optimisers.values())
        return {"loss": loss.detach(), **{name: figure.detach() for name, figure in info.items()}}

    modules = {"value": value, "normaliser": normaliser}
    best = {f"best_{name}": copy.deepcopy(module) for name, module in modules.items()}
    record = torch.tensor([math.inf, 0.0], dtype=torch.float64)  # best held-out objective, checks since
    rows = _watched_rows(problem.probability * ~trains, generator)
    watched_starts = torch.from_numpy(dataset.initial_observations()[watched][:HELD_OUT_ROWS]).to(device)

    @torch.no_grad()
    def check(step: int) -> tuple[dict[str, float], bool]:
        residual, v0 = residual_on(rows, watched_starts)
        objective = float(loss_on(residual, v0)[0])
        xi = importance_weights(config.f, residual, problem.alpha, problem.cap, None if nu is None else float(nu))
        shares = xi / xi.sum().clamp(min=1e-30)
        health = {
            "effective_share": float(1 / shares.square().sum().clamp(min=1e-30) / len(xi)) if xi.any() else 0.0,
            "largest_share": float(shares.max()),
            "mean_ratio": float(xi.mean()),
        }
        record[1] += 1
        if objective < record[0]:
            record[0], record[1] = objective, 0.0
            for name, module in modules.items():
                best[f"best_{name}"].load_state_dict(module.state_dict())
        return {"held_out": objective, **health}, bool(config.patience and record[1] >= config.patience)

    state = State({**modules, **best}, optimisers, generator, {"record": record})
    fit(
        job,
        state,
        update,
        steps=config.steps,
        lr=config.lr,
        rates={"normaliser": NORMALISER_RATE},
        schedule=config.schedule,
        shown=("loss", "held_out", "effective_share", "mean_ratio"),
        check=check if len(rows) else None,
    )
    if not len(rows):
        return {}
    for name, module in modules.items():
        module.load_state_dict(best[f"best_{name}"].state_dict())
    return {"held_out_objective": float(record[0])}


def _watched_rows(probability: np.ndarray, generator: torch.Generator) -> Tensor:
    """A fixed sample of the held-out segments; empty where nothing is held out."""
    if not probability.any():
        return torch.empty(0, dtype=torch.int64)
    return row_sampler(probability, generator)(HELD_OUT_ROWS)


def _split(dataset: Dataset, config: ValueConfig, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Which episodes train and which are only watched."""
    episodes = len(dataset.offsets) - 1
    held = int(config.holdout * episodes)
    order = torch.randperm(episodes, generator=generator).numpy()
    watched = np.zeros(episodes, bool)
    watched[order[:held]] = True
    return ~watched, watched


@torch.no_grad()
def evaluate(value: ValueFunction, states: np.ndarray) -> np.ndarray:
    """V of every row, block by block."""
    whole = torch.from_numpy(states)
    device = value.scale.device
    parts = [value(whole[i : i + BLOCK].to(device)).cpu() for i in range(0, len(whole), BLOCK)]
    return torch.cat(parts).numpy()


def values(value: ValueFunction, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """V of every row's state and next state; a next state that is the following row's state is not computed twice."""
    v = evaluate(value, dataset["observations"])
    v_next = np.roll(v, -1)
    other = np.ones(dataset.rows, bool)
    for start in range(0, dataset.rows - 1, BLOCK):
        stop = min(start + BLOCK, dataset.rows - 1)
        after = dataset["observations"][start + 1 : stop + 1]
        other[start:stop] = (dataset["next_observations"][start:stop] != after).any(axis=1)
    rows = np.flatnonzero(other)
    v_next[rows] = evaluate(value, dataset["next_observations"][rows])
    return v, v_next


def _ratios(problem: Problem, v: np.ndarray, v_next: np.ndarray) -> np.ndarray:
    """xi of every segment (Eq. 15), on the whole data set."""
    config, found = problem.config, problem.segments
    after = v_next[found.last]
    before = np.append(v, after[len(v) :])
    residual = found.reward + found.discount * problem.go_on * after - before
    y = torch.from_numpy(residual)
    q = torch.from_numpy(problem.probability / problem.probability.sum())
    nu = solve_normaliser(config.f, y, q, problem.alpha, problem.cap) if config.normaliser else None
    return importance_weights(config.f, y, problem.alpha, problem.cap, nu).numpy()


def _write(
    job: Job,
    dataset: Dataset,
    value: ValueFunction,
    columns: dict[str, np.ndarray],
    figures: dict[str, float],
    began: float,
) -> Header:
    w = columns["w"]
    if not np.isfinite(w).all() or w.sum() <= 0:
        raise DivergedError(f"{job.stage}: the importance weights are all zero or not finite", "try a larger alpha")
    w = w / w.mean()
    gamma = job.config.gamma
    with np.errstate(divide="ignore"):
        log_w = np.log(w)
    columns = columns | {
        "w": w,
        "log_w": log_w,
        "residual": (columns["reward"] + gamma * columns["v_next"] - columns["v"]).astype(np.float32),
        "episode": dataset.episode_of_row(),
        "t": dataset.time_of_row(),
        "source": dataset.source_of_row(),
    }
    metrics = weight_health(w, columns["source"], dataset.sources) | figures
    metrics["flow_residual"] = flow_residual(dataset, w, gamma)
    unusual = {name: job.inputs["disc"].header.config.get(name) for name in ("inputs", "loss")}
    if any(unusual.values()):
        metrics["disc"] = {name: found for name, found in unusual.items() if found}  # train-policy asks
    for warning in health_warnings(metrics):
        console.warn(f"{job.stage}: {warning}")
    seconds = time.monotonic() - began
    path = weights_path(job.out)
    weights = Job(STAGE, "weights", path, job.config, job.seed, job.inputs)
    written = artifacts.write_hdf5(path, weights.header(metrics=metrics, seconds=seconds), columns)
    link = {"weights": Link(path.name, written.digest)}
    header = job.header(metrics=metrics, outputs=link, seconds=seconds)
    return artifacts.write_safetensors(job.out, header, value.state_dict())
