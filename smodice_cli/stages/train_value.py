"""train-value: V on the Fenchel dual (Eq. 14), then the importance weight of every row (Eq. 15) into weights.h5."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smodice_cli import artifacts
from smodice_cli.algos.nets import ValueFunction, initialise
from smodice_cli.algos.smodice import bellman_residual, log_importance_weights, value_loss
from smodice_cli.artifacts import Header, Link
from smodice_cli.config import ValueConfig
from smodice_cli.data import Dataset
from smodice_cli.errors import DivergedError
from smodice_cli.inspect.diagnostics import weight_health
from smodice_cli.stages import train_disc
from smodice_cli.stages.runner import Job, Options, Result, run
from smodice_cli.stages.trainer import State, adam, fit, prepare

STAGE = "train-value"
BLOCK = 1 << 16  # rows per block when V is evaluated on the whole data set


def train_value(disc: Path, out: Path, config: ValueConfig, seed: int, options: Options) -> Result:
    """Train V on the dataset that the discriminator names."""
    discriminator = artifacts.load(disc, "disc")
    inputs = {"disc": discriminator, "dataset": artifacts.follow(discriminator, "dataset", "dataset")}
    return run(Job(STAGE, "value", out, config, seed, inputs, options), _work)


def weights_path(value: Path) -> Path:
    """Where the weights of a value artifact lie: value.safetensors -> weights.h5, x.safetensors -> x.weights.h5."""
    return value.with_name("weights.h5" if value.stem == "value" else f"{value.stem}.weights.h5")


def _work(job: Job, began: float) -> Header:
    config: ValueConfig = job.config
    dataset = Dataset.of(job.inputs["dataset"])
    generator, device = prepare(job)
    disc = train_disc.build(dataset, job.inputs["disc"].header.config)
    disc.load_state_dict(job.inputs["disc"].tensors())
    reward = train_disc.rewards(disc.to(device), dataset)

    mean, std = (torch.from_numpy(np.array(dataset[name])) for name in ("mean", "std"))
    value = ValueFunction(mean, std, config.hidden, config.scale)
    initialise(value, generator)
    value.to(device)
    optimiser = adam(value.parameters(), config.lr, config.weight_decay)
    states, next_states = (torch.from_numpy(dataset[n]) for n in ("observations", "next_observations"))
    initial = torch.from_numpy(dataset.initial_observations()).to(device)
    goes_on = _continuation(dataset, config)

    def update(step: int) -> dict[str, Tensor]:
        rows = torch.randint(len(states), (config.batch,), generator=generator)
        starts = torch.randint(len(initial), (config.initial_batch,), generator=generator)
        inputs = torch.cat([states[rows].to(device), next_states[rows].to(device), initial[starts]])
        v, v_next, v0 = value(inputs).split([config.batch, config.batch, config.initial_batch])
        residual = bellman_residual(reward[rows], v, v_next * goes_on[rows].to(device), config.gamma)
        loss, info = value_loss(config.f, residual, v0, config.gamma, config.alpha)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        return {"loss": loss.detach(), **{name: figure.detach() for name, figure in info.items()}}

    state = State({"value": value}, {"value": optimiser}, generator)
    shown = ("loss", "v0")
    fit(job, state, update, steps=config.steps, lr=config.lr, schedule=config.schedule, shown=shown)
    return _write(job, value, dataset, reward, goes_on, began)


def _continuation(dataset: Dataset, config: ValueConfig) -> Tensor:
    """1 where V(s') counts; 0 after a terminal row if the task's end has no value (absorbing data have no ends)."""
    if config.terminal == "bootstrap":
        return torch.ones(dataset.rows)
    return 1.0 - torch.from_numpy(dataset["terminals"]).float()


@torch.no_grad()
def evaluate(value: ValueFunction, states: np.ndarray) -> Tensor:
    """V of every row, block by block."""
    whole = torch.from_numpy(states)
    device = value.scale.device
    return torch.cat([value(whole[i : i + BLOCK].to(device)).cpu() for i in range(0, len(whole), BLOCK)])


def _write(job: Job, value: ValueFunction, dataset: Dataset, reward: Tensor, goes_on: Tensor, began: float) -> Header:
    config: ValueConfig = job.config
    v, v_next = evaluate(value, dataset["observations"]), evaluate(value, dataset["next_observations"])
    residual = bellman_residual(reward.cpu(), v, v_next * goes_on, config.gamma)
    log_w = log_importance_weights(config.f, residual.double(), config.alpha)
    if not bool(torch.isfinite(log_w.max())):
        raise DivergedError(f"{job.stage}: every importance weight is zero", "try a larger alpha or f = soft-chi2")
    columns = {
        "log_w": log_w.numpy(),
        "w": log_w.exp().numpy(),
        "residual": residual.numpy(),
        "reward": reward.cpu().numpy(),
        "v": v.numpy(),
        "v_next": v_next.numpy(),
        "episode": dataset.episode_of_row(),
        "t": dataset.time_of_row(),
        "source": dataset.source_of_row(),
    }
    metrics = weight_health(columns["w"], columns["source"], dataset.sources)
    seconds = time.monotonic() - began
    path = weights_path(job.out)
    weights = Job("train-value", "weights", path, config, job.seed, job.inputs)
    written = artifacts.write_hdf5(path, weights.header(metrics=metrics, seconds=seconds), columns)
    link = {"weights": Link(path.name, written.digest)}
    header = job.header(metrics=metrics, outputs=link, seconds=seconds)
    return artifacts.write_safetensors(job.out, header, value.state_dict())
