"""train-disc: the state discriminator, whose logit is the reward R(s) = log d^E(s)/d^O(s)."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smodice_cli import artifacts
from smodice_cli.algos.nets import Discriminator, initialise
from smodice_cli.algos.smodice import discriminator_loss, gradient_penalty
from smodice_cli.artifacts import Header
from smodice_cli.config import DiscConfig
from smodice_cli.data import Dataset
from smodice_cli.inspect.weights import auroc
from smodice_cli.stages.runner import Job, Options, Result, run
from smodice_cli.stages.trainer import State, adam, descend, fit, prepare

STAGE = "train-disc"
WATCHED = 8192  # held-out states on which the AUC is measured


def train_disc(data: Path, out: Path, config: DiscConfig, seed: int, options: Options) -> Result:
    """Train the discriminator on a dataset artifact."""
    inputs = {"dataset": artifacts.load(data, "dataset")}
    return run(Job(STAGE, "disc", out, config, seed, inputs, options), _work)


def build(dataset: Dataset, config: DiscConfig | dict, generator: torch.Generator | None = None) -> Discriminator:
    """A discriminator for this dataset, initialised if a generator is given."""
    hidden = config["hidden"] if isinstance(config, dict) else config.hidden
    mean, std = (torch.from_numpy(np.array(dataset[name])) for name in ("mean", "std"))
    disc = Discriminator(mean, std, dataset.dims, hidden)
    if generator:
        initialise(disc, generator)
    return disc


def _work(job: Job, began: float) -> Header:
    config: DiscConfig = job.config
    dataset = Dataset.of(job.inputs["dataset"])
    generator, device = prepare(job)
    disc = build(dataset, config, generator).to(device)
    if config.freeze_first_layer:
        disc.body[0].requires_grad_(False)
    optimiser = adam(disc.parameters(), config.lr)
    expert = torch.from_numpy(dataset["expert/observations"]).to(device)
    offline = torch.from_numpy(dataset["observations"])
    expert_rows, expert_watched = _split(len(expert), config.holdout, generator)
    offline_rows, offline_watched = _split(len(offline), config.holdout, generator)

    def update(step: int) -> dict[str, Tensor]:
        e = expert[expert_rows[torch.randint(len(expert_rows), (config.batch,), generator=generator)]]
        rows = offline_rows[torch.randint(len(offline_rows), (config.batch,), generator=generator)]
        o = disc.select(offline[rows].to(device))
        logits = disc(torch.cat([e, o]))
        loss, info = discriminator_loss(logits[: config.batch], logits[config.batch :], config.prior)
        total = loss
        if config.gradient_penalty:
            mix = torch.rand((config.batch, 1), generator=generator).to(device)
            total = loss + config.gradient_penalty * gradient_penalty(disc, e, o, mix)
        descend(total, [optimiser])
        return {"loss": loss.detach(), **{name: value.detach() for name, value in info.items()}}

    def check(step: int) -> tuple[dict[str, float], bool]:
        states = torch.cat([expert[expert_watched], disc.select(offline[offline_watched].to(device))])
        with torch.no_grad():
            logits = disc(states).cpu().numpy()
        return {"auc": auroc(logits, np.arange(len(logits)) < len(expert_watched))}, False

    watch = bool(len(expert_watched) and len(offline_watched))
    state = State({"disc": disc}, {"disc": optimiser}, generator)
    shown = ("loss", "reward_expert", "reward_offline", "auc")
    fit(job, state, update, steps=config.steps, lr=config.lr, shown=shown, check=check if watch else None)
    with torch.no_grad():
        metrics = {
            "reward_expert": float(disc(expert).mean()),
            "reward_offline": float(rewards(disc, dataset["observations"]).mean()),
        } | (check(config.steps)[0] if watch else {})
    header = job.header(metrics=metrics, seconds=time.monotonic() - began)
    return artifacts.write_safetensors(job.out, header, disc.state_dict())


def _split(count: int, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which states train and which are only watched (at most WATCHED of them)."""
    order = torch.randperm(count, generator=generator)
    held = min(int(share * count), WATCHED)
    return order[held:], order[:held]


@torch.no_grad()
def rewards(disc: Discriminator, states: np.ndarray, block: int = 1 << 14) -> Tensor:
    """R(s) of every state, block by block."""
    device = disc.dims.device
    whole = torch.from_numpy(states)
    return torch.cat([disc(disc.select(whole[i : i + block].to(device))) for i in range(0, len(whole), block)])
