"""select-f: choose the divergence offline, without an environment (paper, "Choosing f-Divergence in Practice").

The paper watches the direction of the policy loss at the start of training: weights that pick out the expert leave an
easy regression and the loss falls, weights on diverse data leave a hard one and it jumps. Here V and the policy train
one after the other, so each candidate's V is trained briefly, in a few lengths, and for each the loss of a policy
cloned under its weights is measured on trajectories that the policy has not seen, relative to the loss of the same
policy under equal weights: below 1 it falls, above 1 it jumps. Beside it stands the health of the weights.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smodice_cli import artifacts
from smodice_cli.algos.nets import TanhGaussianPolicy
from smodice_cli.algos.smodice import policy_mse
from smodice_cli.artifacts import Header
from smodice_cli.config import PolicyConfig, Settings, ValueConfig, as_dict, build, merge
from smodice_cli.console import console
from smodice_cli.data import Dataset
from smodice_cli.errors import DivergedError, InputError, UsageError, nearest
from smodice_cli.inspect import output, subject
from smodice_cli.inspect.diagnostics import findings, verdict
from smodice_cli.inspect.theme import LIGHT, Panel, Theme, legend, pixels, png_bytes, render, style
from smodice_cli.stages import pipeline, train_disc, train_value
from smodice_cli.stages.runner import Job, Options, Result, run
from smodice_cli.stages.sampling import row_sampler
from smodice_cli.stages.train_policy import new_policy
from smodice_cli.stages.trainer import Adam, descend, prepare

STAGE = "select-f"
CANDIDATES = ("kl", "chi2", "soft-chi2")
LENGTHS = (0.25, 0.5, 1.0)  # of the brief training, at which the policy loss is measured
UNSEEN = 0.2  # share of the trajectories that the policies are judged on
JUDGED_ROWS = 20_000
CLOSE = 0.05  # losses nearer than this count as equal; then the healthier weights win


@dataclass(frozen=True)
class SelectConfig:
    """How the candidates are compared."""

    candidates: tuple[str, ...] = CANDIDATES
    steps: int = 1000
    policy_steps: int = 600
    value: dict[str, Any] = field(default_factory=dict)  # the recipe's other settings of train-value
    hidden: int = 256
    batch: int = 256
    lr: float = PolicyConfig().lr


def parse_candidates(text: str) -> tuple[str, ...]:
    """`kl,chi2` as names of divergences."""
    from smodice_cli.algos.divergences import DIVERGENCES

    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in DIVERGENCES:
            raise UsageError(f"--candidates {text}: unknown divergence '{name}'", nearest(name, list(DIVERGENCES)))
    if len(set(names)) != len(names) or len(names) < 2:
        raise UsageError(f"--candidates {text}: name at least two, each once")
    return names


def select_f(disc: Path, out: Path, config: SelectConfig, seed: int, options: Options) -> Result:
    """Compare the candidates on the discriminator's dataset; writes a JSON of the evidence."""
    discriminator = artifacts.load(disc, "disc")
    inputs = {"disc": discriminator, "dataset": artifacts.follow(discriminator, "dataset", "dataset")}
    output.check(out.with_suffix(".png"), ".png", options.force)
    return run(Job(STAGE, "selection", out, config, seed, inputs, options), _work)


def for_recipe(folder: Path, settings: Settings, seed: int, options: Options, **brief: Any) -> Result:
    """Make the data and the discriminator of a recipe, as `run` would, and compare the candidates on them."""
    unforced = replace(options, force=False)
    data = pipeline.build_data(folder, settings, 0, unforced)
    disc = folder / f"seed{seed}" / "disc.safetensors"
    if data.status == "would run":
        return Result(place(disc), None, "would run", "its input is made first")
    trained = train_disc.train_disc(data.path, disc, build("disc", settings.get("disc", {})), seed, unforced)
    if trained.status == "would run":
        return Result(place(disc), None, "would run", "its input is made first")
    value = build("value", merge(settings, {"value": {"f": CANDIDATES[0]}})["value"])
    config = brief_config(value, build("policy", settings.get("policy", {})), **brief)
    return select_f(disc, place(disc), config, seed, options)


def place(disc: Path) -> Path:
    """Where the selection of a discriminator lies."""
    return disc.with_name("select-f.json")


def brief_config(value: ValueConfig, policy: PolicyConfig | None = None, **brief: Any) -> SelectConfig:
    """The comparison for given settings of train-value, whose own f and steps do not matter."""
    if value.estimator != "dual":
        raise UsageError("select-f compares divergences, but value.estimator = returns uses none")
    kept = {name: setting for name, setting in as_dict(value).items() if name not in ("f", "steps")}
    shape = {"hidden": policy.hidden, "batch": policy.batch, "lr": policy.lr} if policy else {}
    return SelectConfig(value=kept, **{**shape, **{name: given for name, given in brief.items() if given is not None}})


def choose(disc: Path, config: ValueConfig, seed: int, options: Options) -> Any:
    """The f that `f = auto` stands for; None in a dry run that would have to find out first."""
    result = select_f(disc, place(disc), brief_config(config), seed, options)
    return None if result.status == "would run" else artifacts.read_payload(result.path)["recommended"]


def decide(folder: Path, settings: Settings, seed: int, options: Options) -> str:
    """What `f = auto` stands for in a run, decided on its first seed for all; still `auto` in a dry run before that."""
    result = for_recipe(folder, settings, seed, options)
    if result.status == "would run":
        return "auto"
    found = artifacts.read_payload(result.path)["recommended"]
    console.note(f"value.f = auto: {found} (see {result.path})")
    return found


# --- the comparison --------------------------------------------------------------------------------------------------


def _work(job: Job, began: float) -> Header:
    config: SelectConfig = job.config
    judge = Judge(Dataset.of(job.inputs["dataset"]), config, job)
    disc = job.inputs["disc"].path
    found: dict[str, dict[str, Any]] = {}
    for f in config.candidates:
        found[f] = candidate(f, disc, job, judge)
        console.note(f"{STAGE}: {line(f, found[f])}")
    best, why = recommend(found)
    payload = {"recommended": best, "why": why, "candidates": found, "equal_weights_loss": judge.baseline}
    header = job.header(metrics={"recommended": best}, seconds=time.monotonic() - began)
    header = artifacts.write_json(job.out, header, payload)
    draw(job.out.with_suffix(".png"), payload)
    return header


def candidate(f: str, disc: Path, job: Job, judge: Judge) -> dict[str, Any]:
    """Train V with this f in a few lengths; policy loss and health of the weights for each."""
    config: SelectConfig = job.config
    points: list[dict[str, Any]] = []
    for share in LENGTHS:
        steps = max(1, round(share * config.steps))
        out = job.out.parent / STAGE / f"{f}-{steps}.safetensors"
        settings = build("value", {**config.value, "f": f, "steps": steps})
        try:
            train_value.train_value(disc, out, settings, job.seed, replace(job.options, force=False))
            weights = artifacts.load(train_value.weights_path(out), "weights")
            loss = judge(np.asarray(weights.arrays["w"], np.float64))
        except DivergedError as error:
            return {"points": points, "diverged": error.message}
        points.append({"steps": steps, "relative_loss": loss, **_health(weights.header, out)})
    relative = [point["relative_loss"] for point in points]
    last = points[-1]
    return {
        "points": points,
        "relative_loss": relative[-1],
        "direction": "falls" if relative[0] < 1 else "jumps",
        "level": last["level"],
        "effective_share": last["effective_share"],
        "largest_share": last["largest_share"],
    }


def _health(header: Header, value: Path) -> dict[str, Any]:
    log = subject.read_log(value.with_suffix(".log.jsonl"))
    watched = subject.curve(log, "effective_share")[1]
    level = verdict(findings({key: figure for key, figure in header.metrics.items() if key != "raw_mean"}))
    names = ("effective_share", "largest_share")
    found: dict[str, Any] = {"level": level, **{name: header.metrics[name] for name in names}}
    return found | ({"held_out_effective_share": watched[-1]} if watched else {})


class Judge:
    """The loss of a policy cloned under given weights, on unseen trajectories, over that under equal weights."""

    def __init__(self, dataset: Dataset, config: SelectConfig, job: Job) -> None:
        self.dataset, self.config = dataset, config
        self.generator, self.device = prepare(job)
        episodes = len(dataset.offsets) - 1
        if episodes < 2:
            raise InputError("select-f needs at least two trajectories: one to learn from and one to judge on")
        order = torch.randperm(episodes, generator=self.generator).numpy()
        unseen = np.zeros(episodes, bool)
        unseen[order[: max(1, int(UNSEEN * episodes))]] = True
        self.unseen = unseen[dataset.episode_of_row()] & dataset.real_rows()
        self.seen = ~unseen[dataset.episode_of_row()] & dataset.real_rows()
        self.states, self.actions = torch.from_numpy(dataset["observations"]), torch.from_numpy(dataset["actions"])
        self.start = new_policy(dataset, config.hidden, self.generator).to(self.device)
        equal = np.ones(dataset.rows)
        self.start = self.clone(equal)
        self.baseline = self.loss(self.clone(equal), equal)

    def __call__(self, w: np.ndarray) -> float:
        """Below 1: the weights make the regression easier, so the loss falls."""
        if not (w * self.seen).any() or not (w * self.unseen).any():
            raise DivergedError("its weights leave no row to learn from, or none to judge on")
        return self.loss(self.clone(w), w) / max(self.baseline, 1e-12)

    def clone(self, w: np.ndarray) -> TanhGaussianPolicy:
        """The common start, trained on under the weights."""
        policy = copy.deepcopy(self.start)
        optimiser = Adam(policy.parameters(), self.config.lr)
        sample = row_sampler(w * self.seen, self.generator)
        for _ in range(self.config.policy_steps):
            rows = sample(self.config.batch)
            descend(self._errors(policy, rows), [optimiser])
        return policy

    def _errors(self, policy: TanhGaussianPolicy, rows: Tensor) -> Tensor:
        mean, _ = policy(self.states[rows].to(self.device))
        targets = policy.unit(self.actions[rows].to(self.device))
        return policy_mse(mean, targets, torch.ones(len(rows), device=self.device))

    @torch.no_grad()
    def loss(self, policy: TanhGaussianPolicy, w: np.ndarray) -> float:
        """The mean squared error on unseen rows drawn in proportion to the weights, always the same draw."""
        p = w * self.unseen
        rows = np.random.default_rng(0).choice(len(p), JUDGED_ROWS, p=p / p.sum())
        return float(self._errors(policy, torch.from_numpy(rows)))


def recommend(found: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """The candidate whose policy loss falls lowest among those with usable weights, and why."""
    whole = {f: entry for f, entry in found.items() if "diverged" not in entry}
    if not whole:
        raise DivergedError("every candidate diverged", "try a smaller learning rate (--set value.lr=1e-4)")
    fit = {f: entry for f, entry in whole.items() if entry["level"] != "red"} or whole
    falling = {f: entry for f, entry in fit.items() if entry["direction"] == "falls"} or fit
    least = min(entry["relative_loss"] for entry in falling.values())
    near = {f: entry for f, entry in falling.items() if entry["relative_loss"] <= least + CLOSE}
    best = max(near, key=lambda f: near[f]["effective_share"])
    entry = near[best]
    if len(fit) == len(whole) and all(one["level"] == "red" for one in whole.values()):
        reason = "all candidates' weights are unfit; this one's policy loss is the lowest"
    elif entry["relative_loss"] >= 1:
        reason = "no candidate makes the policy's task easier; this one harms it least"
    elif len(near) > 1:
        others = " and ".join(f for f in near if f != best)
        reason = f"its policy loss falls as low as {others}'s, with more effective samples"
    else:
        reason = "its policy loss falls lowest"
    return best, reason


def line(f: str, entry: dict[str, Any]) -> str:
    """One candidate in one line."""
    if "diverged" in entry:
        return f"{f}: diverged ({entry['diverged']})"
    losses = ", ".join(f"{point['relative_loss']:.3f}" for point in entry["points"])
    return f"{f}: policy loss {entry['direction']} ({losses}), weights {entry['level']}"


def table(payload: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The evidence as a table."""
    rows = []
    for f, entry in payload["candidates"].items():
        mark = "recommended" if f == payload["recommended"] else ""
        if "diverged" in entry:
            rows.append([f, "diverged", "", "", "", "", mark])
            continue
        watched = entry["points"][-1].get("held_out_effective_share")
        rows.append(
            [
                f,
                entry["direction"],
                "  ".join(f"{point['relative_loss']:.3f}" for point in entry["points"]),
                f"{100 * entry['effective_share']:.1f} %",
                "" if watched is None else f"{100 * watched:.1f} %",
                entry["level"],
                mark,
            ]
        )
    columns = [
        "f",
        "policy loss",
        "as V trains (equal weights: 1)",
        "effective sample",
        "held out",
        "weights",
        "",
    ]
    return columns, rows


def draw(path: Path, payload: dict[str, Any]) -> None:
    """The policy loss and the effective sample of every candidate against V's training."""

    def paint(figure: Any, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        style(left, theme, "steps of V", "policy loss on unseen trajectories", "policy loss (equal weights: 1)")
        style(right, theme, "steps of V", "effective sample, %", "health of the weights")
        for index, (f, entry) in enumerate(payload["candidates"].items()):
            points = entry["points"]
            label = f"{f}, recommended" if f == payload["recommended"] else f
            look = {"color": theme.series[index], "lw": 2.6 if f == payload["recommended"] else 1.6, "marker": "o"}
            steps = [point["steps"] for point in points]
            left.plot([0, *steps], [1.0, *(point["relative_loss"] for point in points)], label=label, **look)
            right.plot(steps, [100 * point["effective_share"] for point in points], label=label, **look)
        left.axhline(1, color=theme.muted, lw=1, ls=(0, (2, 2)))
        left.set_ylim(bottom=0)
        right.set_ylim(bottom=0)
        legend(left, theme, loc="best")

    drawn = pixels(render(Panel(STAGE, "", "", paint), LIGHT, 9.6, 3.8))
    output.write(path, png_bytes(drawn, Software=output.MARK))
