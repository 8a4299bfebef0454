"""train-policy: behaviour cloning weighted by xi (Eq. 16)."""

from __future__ import annotations

import copy
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smodice_cli import artifacts
from smodice_cli.algos.nets import TanhGaussianPolicy, initialise
from smodice_cli.algos.smodice import average, policy_entropy, policy_mse, policy_nll
from smodice_cli.artifacts import Header
from smodice_cli.config import PolicyConfig
from smodice_cli.data import Dataset
from smodice_cli.errors import ConfigError
from smodice_cli.stages.runner import Job, Options, Result, run
from smodice_cli.stages.snapshots import Snapshots, snapshots_path
from smodice_cli.stages.trainer import State, Update, adam, descend, fit, prepare, row_sampler

STAGE = "train-policy"


def train_policy(value: Path, out: Path, config: PolicyConfig, seed: int, options: Options) -> Result:
    """Clone the dataset's actions under the weights that the value artifact names."""
    if config.entropy and config.loss != "nll":
        raise ConfigError("policy.entropy needs policy.loss = nll: squared error has no spread to constrain")
    trained = artifacts.load(value, "value")
    weights = artifacts.follow(trained, "weights", "weights")
    inputs = {"weights": weights, "dataset": artifacts.follow(weights, "dataset", "dataset")}
    beside = (snapshots_path(out),) if config.snapshots else ()
    return run(Job(STAGE, "policy", out, config, seed, inputs, options, beside=beside), _work)


def learner(
    dataset: Dataset, w: np.ndarray, config: PolicyConfig, generator: torch.Generator, device: torch.device
) -> tuple[State, Update]:
    """The policy, its moving average, and its step on rows of the data set under the weights w."""
    mean, std, low, high = (
        torch.from_numpy(np.array(dataset[name])) for name in ("mean", "std", "action_low", "action_high")
    )
    policy = TanhGaussianPolicy(mean, std, low, high, config.hidden)
    initialise(policy, generator)
    policy.to(device)
    averaged = copy.deepcopy(policy)
    log_temperature = torch.nn.Parameter(torch.zeros((), device=device))
    optimisers = {"policy": adam(policy.parameters(), config.lr)}
    if config.entropy:
        optimisers["temperature"] = adam([log_temperature], config.lr)
    states, actions = torch.from_numpy(dataset["observations"]), torch.from_numpy(dataset["actions"])
    weights = np.where(dataset.real_rows(), w, 0.0)
    real = dataset.real_rows().astype(np.float64)
    sample = row_sampler(weights if config.sampling == "weights" else real, generator)
    row_weights = torch.from_numpy(weights / weights[real > 0].mean() if config.sampling == "uniform" else real).float()

    def update(step: int) -> dict[str, Tensor]:
        rows = sample(config.batch)
        batch, taken, w = (column.index_select(0, rows).to(device) for column in (states, actions, row_weights))
        targets = policy.unit(taken)
        if config.loss == "mse":
            loss = policy_mse(policy.centre(batch), targets, w)
        else:
            mu, log_std = policy(batch)
            loss = policy_nll(mu, log_std, targets, w)
        info = {"loss": loss.detach()}
        if config.entropy:
            noise = torch.randn(mu.shape, generator=generator).to(device)
            entropy = policy_entropy(mu, log_std, noise)
            surplus = entropy.detach() + len(low)  # target entropy -|A|
            loss = loss - log_temperature.exp().detach() * entropy + log_temperature * surplus
            info |= {"entropy": entropy.detach(), "temperature": log_temperature.detach().exp()}
        descend(loss, optimisers.values())
        if config.average:
            average(averaged, policy, config.average)
        return info

    modules: dict[str, torch.nn.Module] = {"policy": policy, "averaged": averaged}
    return State(modules, optimisers, generator, {"log_temperature": log_temperature.data}), update


def _work(job: Job, began: float) -> Header:
    config: PolicyConfig = job.config
    dataset = Dataset.of(job.inputs["dataset"])
    state, update = learner(dataset, job.inputs["weights"].arrays["w"], config, *prepare(job))
    kept = state.modules["averaged" if config.average else "policy"]
    snapshots = Snapshots(kept, config.snapshots, config.steps)
    state.extra |= snapshots.state()

    def update_and_keep(step: int) -> dict[str, Tensor]:
        info = update(step)
        snapshots.take(step + 1, kept)
        return info

    shown = ("loss", "entropy") if config.entropy else ("loss",)
    fit(job, state, update_and_keep, steps=config.steps, lr=config.lr, schedule=config.schedule, shown=shown)
    metrics = {
        "env": dataset.env,
        "absorbing": dataset.absorbing,
        "expert_return": job.inputs["dataset"].header.metrics["expert_return"],
    }
    seconds = time.monotonic() - began
    outputs = snapshots.write(job, metrics, seconds)
    header = job.header(metrics=metrics, outputs=outputs, seconds=seconds)
    return artifacts.write_safetensors(job.out, header, kept.state_dict())
