"""train-policy: behaviour cloning weighted by xi (Eq. 16), or one of the paper's baselines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from smodice_cli import artifacts
from smodice_cli.algos.nets import TanhGaussianPolicy, initialise
from smodice_cli.artifacts import Artifact, Header
from smodice_cli.config import PolicyConfig, check_together
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError, UsageError
from smodice_cli.methods import METHODS
from smodice_cli.stages import td3, train_disc
from smodice_cli.stages.learners import cloning
from smodice_cli.stages.runner import Job, Options, Result, run
from smodice_cli.stages.snapshots import Snapshots, snapshots_path
from smodice_cli.stages.trainer import State, fit, prepare

STAGE = "train-policy"


def train_policy(
    given: Mapping[str, Path | None], out: Path, config: PolicyConfig, seed: int, options: Options
) -> Result:
    """Train the policy of `config.algo` from the artifact it needs: `given` holds one of data, disc and value."""
    check_together(config)
    start = starting_point(config.algo, given)
    inputs = _inputs(config.algo, start)
    beside = {"snapshots": snapshots_path(out)} if config.snapshots else {}
    return run(Job(STAGE, "policy", out, config, seed, inputs, options, beside=beside), _work)


def starting_point(algo: str, given: Mapping[str, Path | None]) -> Path:
    """The one artifact that the algorithm starts from; refuses another, or more."""
    needed = METHODS[algo].needs
    named = {name: path for name, path in given.items() if path is not None}
    path = named.pop(needed, None)
    if path is None or named:
        instead = f", not from --{' and --'.join(named)}" if named else ""
        raise UsageError(
            f"{algo} starts from --{needed}{instead}", f"smodice train-policy --algo {algo} --{needed} FILE"
        )
    return path


def _inputs(algo: str, start: Path) -> dict[str, Artifact]:
    """What the algorithm reads, found from its starting point, and refused where it is another algorithm's."""
    needed = METHODS[algo].needs
    first = artifacts.load(start, "dataset" if needed == "data" else needed)
    if needed == "data":
        if METHODS[algo].expert_actions:
            Dataset.of(first).expert_pairs()  # says why, where there are none
        td3.refuse_data(algo, first)
        return {"dataset": first}
    if needed == "disc":
        train_disc.refuse_other(first, algo)
        return {"disc": first, "dataset": artifacts.follow(first, "dataset", "dataset")}
    if (found := first.header.config.get("algo", "smodice")) != algo:
        raise InputError(f"{start} holds {found}'s V, not {algo}'s", f"smodice train-value --algo {algo} makes one")
    weights = artifacts.follow(first, "weights", "weights")
    return {"weights": weights, "dataset": artifacts.follow(weights, "dataset", "dataset")}


def new_policy(dataset: Dataset, hidden: int, generator: torch.Generator) -> TanhGaussianPolicy:
    """A policy for this dataset, initialised."""
    mean, std, low, high = (
        torch.from_numpy(np.array(dataset[name])) for name in ("mean", "std", "action_low", "action_high")
    )
    policy = TanhGaussianPolicy(mean, std, low, high, hidden)
    initialise(policy, generator)
    return policy


def _work(job: Job, began: float) -> Header:
    config: PolicyConfig = job.config
    dataset = Dataset.of(job.inputs["dataset"])
    generator, device = prepare(job)
    policy = new_policy(dataset, config.hidden, generator).to(device)
    if config.loss == "mse":
        policy.narrow()
    parts = (job, dataset, policy, generator, device)
    learner = td3.LEARNERS[config.algo](*parts).learner() if config.algo in td3.LEARNERS else cloning(*parts)
    snapshots = Snapshots(learner.kept, config.snapshots, config.steps)

    def update(step: int) -> dict[str, torch.Tensor]:
        info = learner.update(step)
        snapshots.take(step + 1, learner.kept)
        return info

    state = State(learner.modules, learner.optimisers, generator, {**learner.extra, **snapshots.state()})
    done = fit(
        job,
        state,
        update,
        steps=config.steps,
        lr=config.lr,
        schedule=learner.schedule,
        shown=learner.shown,
        check=learner.check,
    )
    metrics = {
        "env": dataset.env,
        "absorbing": dataset.absorbing,
        "expert_return": job.inputs["dataset"].header.metrics["expert_return"],
    }
    seconds = time.monotonic() - began
    outputs = snapshots.write(job, learner.kept, done, metrics, seconds)
    header = job.header(metrics=metrics, outputs=outputs, seconds=seconds)
    return artifacts.write_safetensors(job.out, header, learner.kept.state_dict())
