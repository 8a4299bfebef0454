"""How a policy learns: cloning under weights here, TD3+BC in `td3`.

A learner is one gradient step with everything it changes; `train_policy` runs it, keeps it and writes its policy.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from smodice_cli.algos.nets import TanhGaussianPolicy
from smodice_cli.algos.smodice import average, policy_entropy, policy_mse, policy_nll
from smodice_cli.config import PolicyConfig
from smodice_cli.data import Dataset
from smodice_cli.stages.runner import Job
from smodice_cli.stages.sampling import row_sampler
from smodice_cli.stages.trainer import Adam, Check, Update, descend, flatten, held_out

WATCHED = 8192  # held-out rows on which the loss is measured


@dataclass(frozen=True)
class Learner:
    """One step and what it changes; `kept` is the policy that is written in the end."""

    update: Update
    kept: TanhGaussianPolicy
    modules: dict[str, nn.Module]
    optimisers: dict[str, Adam]
    extra: dict[str, Tensor] = field(default_factory=dict)
    schedule: str = "constant"
    shown: tuple[str, ...] = ("loss",)
    check: Check | None = None


def cloned_rows(job: Job, dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """States, actions, which rows count (1 or 0) and the weights that a cloning algorithm learns from.

    smodice, demodice and demodice-sd take the weights of train-value, bc equal ones, bc-expert-only the expert's pairs.
    """
    if job.config.algo == "bc-expert-only":
        states, actions = dataset.expert_pairs()
        return states, actions, np.ones(len(states)), np.ones(len(states))
    real = dataset.real_rows().astype(np.float64)
    weights = np.where(real, job.inputs["weights"].arrays["w"], 0.0) if "weights" in job.inputs else real
    return dataset["observations"], dataset["actions"], real, weights


def cloning(
    job: Job, dataset: Dataset, policy: TanhGaussianPolicy, generator: torch.Generator, device: torch.device
) -> Learner:
    """Weighted behaviour cloning (Eq. 16; D8)."""
    config: PolicyConfig = job.config
    averaged = copy.deepcopy(policy)
    flat_average = flatten(averaged.parameters())
    log_temperature = nn.Parameter(torch.zeros((), device=device))
    optimisers = {"policy": Adam(policy.parameters(), config.lr)}
    if config.entropy:
        optimisers["temperature"] = Adam([log_temperature], config.lr)
    own_states, own_actions, real, weights = cloned_rows(job, dataset)
    held = np.zeros(len(real), bool)
    if config.holdout:
        lengths = np.diff(dataset.offsets)
        held = np.repeat(held_out(len(lengths), config.holdout, generator), lengths)
    watched = row_sampler(weights * held, generator)(WATCHED) if (weights * held).any() else None
    real, weights = real * ~held, weights * ~held
    states, actions = torch.from_numpy(own_states), torch.from_numpy(own_actions)
    sample = row_sampler(weights if config.sampling == "weights" else real, generator)
    row_weights = torch.from_numpy(weights / weights[real > 0].mean() if config.sampling == "uniform" else real).float()

    def loss_of(module: TanhGaussianPolicy, rows: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        batch, taken = (column.index_select(0, rows).to(device) for column in (states, actions))
        if config.loss == "mse":
            mu = module.centre(batch)
            return policy_mse(mu, module.unit(taken), w), mu, None
        mu, log_std = module(batch)
        return policy_nll(mu, log_std, module.unit(taken), w), mu, log_std

    def update(step: int) -> dict[str, Tensor]:
        rows = sample(config.batch)
        loss, mu, log_std = loss_of(policy, rows, row_weights.index_select(0, rows).to(device))
        info = {"loss": loss.detach()}
        if config.entropy and log_std is not None:
            noise = torch.randn(mu.shape, generator=generator).to(device)
            entropy = policy_entropy(mu, log_std, noise)
            surplus = entropy.detach() + mu.shape[1]  # target entropy -|A|
            loss = loss - log_temperature.exp().detach() * entropy + log_temperature * surplus
            info |= {"entropy": entropy.detach(), "temperature": log_temperature.detach().exp()}
        descend(loss, optimisers.values())
        if config.average:
            # With Adam's correction of the start: the untrained weights have no part in it.
            fresh = (1 - config.average) / (1 - config.average ** (step + 1))
            average(flat_average, optimisers["policy"].flat, 1 - fresh)
        return info

    kept = averaged if config.average else policy
    record = torch.tensor([np.inf, 0.0], dtype=torch.float64)  # lowest held-out loss, checks since

    @torch.no_grad()
    def check(step: int) -> tuple[dict[str, float], bool]:
        assert watched is not None
        loss = float(loss_of(kept, watched, torch.ones(len(watched), device=device))[0])
        record[1] += 1
        if loss < record[0]:
            record[0], record[1] = loss, 0.0
        return {"held_out": loss}, bool(config.patience and record[1] >= config.patience)

    return Learner(
        update,
        kept,
        {"policy": policy, "averaged": averaged},
        optimisers,
        {"log_temperature": log_temperature.data, "record": record},
        config.schedule,
        ("loss", "entropy", "held_out"),
        check if watched is not None else None,
    )
