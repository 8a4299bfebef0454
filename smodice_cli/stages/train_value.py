"""train-value: V on the Fenchel dual (Eq. 14), then the importance weight of every row (Eq. 15) into weights.h5."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from smodice_cli import artifacts
from smodice_cli.algos.nets import ValueFunction
from smodice_cli.algos.segments import return_weights, row_weights
from smodice_cli.artifacts import Header, Link
from smodice_cli.config import ValueConfig, as_dict, check_ends, check_together
from smodice_cli.console import console
from smodice_cli.data import Dataset
from smodice_cli.errors import DivergedError
from smodice_cli.inspect.diagnostics import flow_residual, health_warnings, weight_health
from smodice_cli.inspect.weights import on_rows_alike
from smodice_cli.stages import train_disc
from smodice_cli.stages.dual import Learner, build, pose, ratios, values
from smodice_cli.stages.runner import Job, Options, Result, run
from smodice_cli.stages.trainer import fit, prepare

STAGE = "train-value"


def train_value(disc: Path, out: Path, config: ValueConfig, seed: int, options: Options) -> Result:
    """Train V on the dataset that the discriminator names."""
    discriminator = artifacts.load(disc, "disc")
    inputs = {"disc": discriminator, "dataset": artifacts.follow(discriminator, "dataset", "dataset")}
    train_disc.refuse_other(discriminator, config.algo)
    if train_disc.inputs_of(discriminator) != "state":
        check_ends(config)
    check_together(config)
    if config.f == "auto":
        from smodice_cli.stages import select_f  # which itself trains V

        found = select_f.choose(disc, config, seed, options)
        if found is None:
            return Result(out, None, "would run", "value.f = auto: select-f runs first")
        config = replace(config, f=found)
    return run(Job(STAGE, "value", out, config, seed, inputs, options, beside={"weights": weights_path(out)}), _work)


def weights_path(value: Path) -> Path:
    """Where the weights of a value artifact lie: value.safetensors -> weights.h5, x.safetensors -> x.weights.h5."""
    return value.with_name("weights.h5" if value.stem == "value" else f"{value.stem}.weights.h5")


def _work(job: Job, began: float) -> Header:
    config: ValueConfig = job.config
    dataset = Dataset.of(job.inputs["dataset"])
    generator, device = prepare(job)
    disc, inputs = train_disc.load(job.inputs["disc"], dataset, device), train_disc.inputs_of(job.inputs["disc"])
    reward = train_disc.row_rewards(disc, dataset, inputs).cpu().numpy()
    ends = dataset["next_observations"][dataset.offsets[1:] - 1]
    end_reward = train_disc.rewards(disc, ends).cpu().numpy() if inputs == "state" else np.zeros(len(ends))
    value = build(dataset, config, generator).to(device)
    if config.estimator == "dual":
        problem = pose(dataset, reward, end_reward, config)
        figures = _train(job, Learner(problem, value, generator, device))
        v, v_next = values(value, dataset)
        xi = ratios(problem, v, v_next)
        figures["raw_mean"] = float(np.average(xi, weights=problem.probability))
        del problem  # what follows needs room for the columns of weights.h5
        w = row_weights(xi[: dataset.rows], dataset.offsets, config.n_step, config.gamma)
    else:
        figures = {}
        value.scale.zero_()  # there is no V: it is 0 everywhere
        v, v_next = values(value, dataset)
        w = return_weights(reward, end_reward, dataset.offsets, config.gamma, config.alpha)
    return _write(job, dataset, value, {"reward": reward, "v": v, "v_next": v_next, "w": w}, figures, began)


def _train(job: Job, learner: Learner) -> dict[str, float]:
    """Run the learner; its V is the best one on held-out trajectories, if there are any."""
    config: ValueConfig = job.config
    fit(
        job,
        learner.state,
        learner.update,
        steps=config.steps,
        lr=config.lr,
        schedule=config.schedule,
        shown=("loss", "held_out", "effective_share", "mean_ratio"),
        check=learner.check if learner.watches else None,
    )
    return {"held_out_objective": learner.take_best()} if learner.watches else {}


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
    w /= w.mean()
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
    alike = on_rows_alike(w, columns["t"], as_dict(job.config))
    metrics["flow_residual"] = flow_residual(dataset, w if alike is None else alike, gamma)
    for warning in health_warnings(metrics, as_dict(job.config)):
        console.warn(f"{job.stage}: {warning}")
    seconds = time.monotonic() - began
    path = weights_path(job.out)
    weights = Job(STAGE, "weights", path, job.config, job.seed, job.inputs)
    written = artifacts.write_hdf5(path, weights.header(metrics=metrics, seconds=seconds), columns)
    link = {"weights": Link(path.name, written.digest)}
    header = job.header(metrics=metrics, outputs=link, seconds=seconds)
    return artifacts.write_safetensors(job.out, header, value.state_dict())
