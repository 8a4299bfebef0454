"""train-disc: the discriminator, whose logit is the reward R(s) = log d^E(s)/d^O(s).

DemoDICE's looks at states with actions, R(s, a) = log d^E(s, a)/d^O(s, a); SAIL's is a Wasserstein critic of states.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smodice_cli import artifacts
from smodice_cli.algos import sail
from smodice_cli.algos.nets import Discriminator, initialise
from smodice_cli.algos.smodice import discriminator_loss, gradient_penalty
from smodice_cli.artifacts import Artifact, Header
from smodice_cli.config import DiscConfig, as_dict, check_together
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError
from smodice_cli.inspect.weights import auroc
from smodice_cli.methods import METHODS
from smodice_cli.stages.runner import Job, Options, Result, run
from smodice_cli.stages.trainer import Adam, State, descend, fit, prepare

STAGE = "train-disc"
BLOCK = 1 << 14  # rows at a time when R is evaluated on the whole data set
WATCHED = 8192  # held-out states on which the AUC is measured


def train_disc(data: Path, out: Path, config: DiscConfig, seed: int, options: Options) -> Result:
    """Train the discriminator on a dataset artifact."""
    check_together(config)
    inputs = {"dataset": artifacts.load(data, "dataset")}
    if config.inputs == "state-action":
        Dataset.of(inputs["dataset"]).expert_pairs()  # says why, where there are none
    return run(Job(STAGE, "disc", out, config, seed, inputs, options), _work)


def owner(config: DiscConfig) -> str:
    """The algorithm whose kind of discriminator it is; smodice's is also that of oril and demodice-sd."""
    special = {name: method.settings["disc"] for name, method in METHODS.items() if "disc" in method.settings}
    return next((name for name, own in special.items() if own.items() <= as_dict(config).items()), "smodice")


def refuse_other(disc: Artifact, algo: str) -> None:
    """Refuse a discriminator of another kind than the algorithm's."""
    usual = METHODS["smodice"].discriminator
    for name, wanted in METHODS[algo].discriminator.items():
        if (found := disc.header.config.get(name, usual[name])) != wanted:
            raise InputError(
                f"{algo} needs a discriminator with {name} = {wanted}, but that of {disc.path} has {found}",
                f"smodice train-disc --algo {algo} makes one",
            )


def inputs_of(disc: Artifact) -> str:
    """What a discriminator artifact looks at."""
    return disc.header.config.get("inputs", "state")


def build(dataset: Dataset, hidden: int, inputs: str, generator: torch.Generator | None = None) -> Discriminator:
    """A discriminator for this dataset, initialised if a generator is given; actions are scaled to [-1, 1]."""
    mean, std, low, high = (
        torch.from_numpy(np.array(dataset[name])) for name in ("mean", "std", "action_low", "action_high")
    )
    dims = list(dataset.dims)
    if inputs == "state-action":
        dims += range(len(mean), len(mean) + len(low))
        mean, std = torch.cat([mean, (low + high) / 2]), torch.cat([std, (high - low) / 2])
    disc = Discriminator(mean, std, dims, hidden)
    if generator:
        initialise(disc, generator)
    return disc


def load(artifact: Artifact, dataset: Dataset, device: torch.device) -> Discriminator:
    """The discriminator of an artifact."""
    disc = build(dataset, artifact.header.config["hidden"], inputs_of(artifact))
    disc.load_state_dict(artifact.tensors())
    return disc.to(device)


def _work(job: Job, began: float) -> Header:
    config: DiscConfig = job.config
    dataset = Dataset.of(job.inputs["dataset"])
    generator, device = prepare(job)
    disc = build(dataset, config.hidden, config.inputs, generator).to(device)
    if config.freeze_first_layer:
        disc.body[0].requires_grad_(False)
    optimiser = Adam(disc.parameters(), config.lr)
    expert = torch.from_numpy(dataset.expert_inputs(config.inputs)).to(device)
    expert_rows, expert_watched = _split(len(expert), config.holdout, generator)
    offline_rows, offline_watched = _split(dataset.rows, config.holdout, generator)

    def offline(rows: Tensor) -> Tensor:
        return disc.select(torch.from_numpy(dataset.offline_inputs(config.inputs, rows.numpy())).to(device))

    def update(step: int) -> dict[str, Tensor]:
        e = expert[expert_rows[torch.randint(len(expert_rows), (config.batch,), generator=generator)]]
        rows = offline_rows[torch.randint(len(offline_rows), (config.batch,), generator=generator)]
        o = offline(rows)
        on_expert, on_offline = disc(torch.cat([e, o])).split(config.batch)
        if config.loss == "wasserstein":
            loss, info = sail.wasserstein_loss(on_expert, on_offline)
        else:
            loss, info = discriminator_loss(on_expert, on_offline, config.prior)
        total = loss
        if config.gradient_penalty:
            mix = torch.rand((config.batch, 1), generator=generator).to(device)
            total = loss + config.gradient_penalty * gradient_penalty(disc, e, o, mix)
        descend(total, [optimiser])
        return {"loss": loss.detach(), **{name: value.detach() for name, value in info.items()}}

    def check(step: int) -> tuple[dict[str, float], bool]:
        states = torch.cat([expert[expert_watched], offline(offline_watched)])
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
            "reward_offline": float(row_rewards(disc, dataset, config.inputs).mean()),
        } | (check(config.steps)[0] if watch else {})
    header = job.header(metrics=metrics, seconds=time.monotonic() - began)
    return artifacts.write_safetensors(job.out, header, disc.state_dict())


def _split(count: int, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which states train and which are only watched (at most WATCHED of them)."""
    order = torch.randperm(count, generator=generator)
    held = min(int(share * count), WATCHED)
    return order[held:], order[:held]


@torch.no_grad()
def rewards(disc: Discriminator, inputs: np.ndarray) -> Tensor:
    """R of states (or of states with actions)."""
    return disc(disc.select(torch.from_numpy(inputs).to(disc.dims.device)))


def row_rewards(disc: Discriminator, dataset: Dataset, inputs: str) -> Tensor:
    """R of every row, block by block."""
    blocks = (slice(start, start + BLOCK) for start in range(0, dataset.rows, BLOCK))
    return torch.cat([rewards(disc, dataset.offline_inputs(inputs, rows)) for rows in blocks])
