"""select-f: choose the divergence offline, without an environment (paper, "Choosing f-Divergence in Practice").

The paper watches the direction of the policy loss at the start of training: weights that pick out the expert leave an
easy regression and the loss falls, weights on diverse data leave a hard one and it jumps. Here V and the policy train
one after the other, so each candidate's V is trained briefly, in a few lengths, and for each the loss of a policy
cloned under its weights is measured on trajectories that the policy has not seen, relative to the loss of the same
policy under equal weights: below 1 it falls, above 1 it jumps. Beside it stands the health of the weights.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.algos import dual, nets
from smodice_cli.algos.clone import new_policy
from smodice_cli.algos.divergences import DIVERGENCES
from smodice_cli.algos.losses import policy_mse
from smodice_cli.algos.sampling import row_sampler
from smodice_cli.algos.smodice import Config as PolicyConfig
from smodice_cli.artifacts import Header
from smodice_cli.config import Config as BaseConfig
from smodice_cli.config import as_dict, build
from smodice_cli.console import console
from smodice_cli.data import Dataset
from smodice_cli.engine import Context, Options, Output, Result, Stage, make
from smodice_cli.errors import DivergedError, InputError, UsageError
from smodice_cli.lazy import Device, Generator, Tensor, np, torch
from smodice_cli.stages import STAGES, maker
from smodice_cli.training import Adam, descend, held_out, prepare

LENGTHS = (0.25, 0.5, 1.0)  # of the brief training, at which the policy loss is measured
UNSEEN = 0.2  # share of the trajectories that the policies are judged on
JUDGED_ROWS = 20_000
CLOSE = 0.05  # losses nearer than this count as equal; then the healthier weights win


def candidates() -> tuple[str, ...]:
    """The divergences that are compared unless others are named: those that truncate."""
    return tuple(name for name, divergence in DIVERGENCES.items() if divergence.lower == 0)


@dataclass(frozen=True)
class Config(BaseConfig):
    """How the candidates are compared."""

    candidates: tuple[str, ...] = ("kl", "chi2")
    steps: int = 1000
    policy_steps: int = 600
    value: dict[str, Any] = field(default_factory=dict)  # the other settings of train-value
    hidden: int = 256
    batch: int = 256
    lr: float = PolicyConfig.lr


class SelectF(Stage):
    """disc.safetensors -> select-f.json: the evidence for each divergence, and which is recommended."""

    name, kind, file = "select-f", "selection", "select-f.json"
    Config = Config
    in_run = False

    def starts_from(self, algo: str) -> str:
        return "disc"

    def work(self, context: Context) -> list[Output]:
        from smodice_cli.views import selection

        config = context.config
        judge = Judge(Dataset.of(context.inputs["dataset"]), config, *prepare(context))
        found: dict[str, dict[str, Any]] = {}
        for f in config.candidates:
            found[f] = candidate(f, context, judge)
            console.note(f"{self.name}: {selection.line(f, found[f])}")
        best, why = recommend(found)
        payload = {"recommended": best, "why": why, "candidates": found, "equal_weights_loss": judge.baseline}
        return [Output(payload, {"recommended": best})]


def parse_candidates(text: str) -> tuple[str, ...]:
    """`kl,chi2` as names of divergences; the empty text means the usual ones."""
    names = tuple(part.strip() for part in text.split(",")) if text else candidates()
    for name in names:
        DIVERGENCES.check(name, f"--candidates {text}", UsageError)
    if len(set(names)) != len(names) or len(names) < 2:
        raise UsageError(f"--candidates {text}: name at least two, each once")
    return names


def place(disc: Path) -> Path:
    """Where the selection of a discriminator lies."""
    return disc.with_name(SelectF.file)


def compare(disc: Path, value: dual.Config, policy: Any, seed: int, options: Options, **brief: Any) -> Result:
    """Compare the candidates on a discriminator's dataset, with the settings of train-value but its f and steps.

    The size of the policies is that of `policy`, where there is one; `brief` may set candidates, steps, policy_steps.
    """
    from smodice_cli.views import selection
    from smodice_cli.views.render import output

    if value.estimator != "dual":
        raise UsageError("select-f compares divergences, but value.estimator = returns uses none")
    kept = {name: setting for name, setting in as_dict(value).items() if name not in ("f", "steps")}
    shape = {"hidden": policy.hidden, "batch": policy.batch, "lr": policy.lr} if policy else {}
    given = {name: setting for name, setting in brief.items() if setting is not None}
    config = Config(**{"candidates": candidates(), "value": kept, **shape, **given})
    out = place(disc)
    picture = out.with_suffix(".png")
    output.check(picture, (".png",), options.force)
    result = make(STAGES["select-f"], disc, out, config, seed, options)
    if result.header and (result.status == "done" or not picture.exists()):
        selection.draw(out, artifacts.read_payload(out))
    return result


def recommended(result: Result) -> str | None:
    """The f that a comparison found; None in a dry run that would have to compare first."""
    return None if result.status == "would run" else artifacts.read_header(result.path).metrics["recommended"]


# --- the comparison --------------------------------------------------------------------------------------------------


def candidate(f: str, context: Context, judge: Judge) -> dict[str, Any]:
    """Train V with this f in a few lengths; policy loss and health of the weights for each."""
    config, disc, stage = context.config, context.inputs["disc"].path, maker("value")
    points: list[dict[str, Any]] = []
    for share in LENGTHS:
        steps = max(1, round(share * config.steps))
        out = context.out.parent / context.stage.name / f"{f}-{steps}.safetensors"
        settings = build(dual.Config, "value", {**config.value, "f": f, "steps": steps})
        try:
            make(stage, disc, out, settings, context.seed, replace(context.options, force=False))
            weights = artifacts.load(stage.companion(out, "weights"), "weights")
            loss = judge(np.asarray(weights.arrays["w"], np.float64))
        except DivergedError as error:
            return {"points": points, "diverged": error.message}
        points.append({"steps": steps, "relative_loss": loss, **_health(weights.header, out)})
    found = {"points": points, "relative_loss": points[-1]["relative_loss"]}
    found |= {"direction": "falls" if points[0]["relative_loss"] < 1 else "jumps"}
    return found | {name: points[-1][name] for name in ("level", "effective_share", "largest_share")}


def _health(header: Header, value: Path) -> dict[str, Any]:
    from smodice_cli.views.diagnostics import findings, verdict
    from smodice_cli.views.opened import curve, read_log

    watched = curve(read_log(value.with_suffix(".log.jsonl")), "effective_share")[1]
    level = verdict(findings({key: figure for key, figure in header.metrics.items() if key != "raw_mean"}))
    names = ("effective_share", "largest_share")
    found: dict[str, Any] = {"level": level, **{name: header.metrics[name] for name in names}}
    return found | ({"held_out_effective_share": watched[-1]} if watched else {})


class Judge:
    """The loss of a policy cloned under given weights, on unseen trajectories, over that under equal weights."""

    def __init__(self, dataset: Dataset, config: Config, generator: Generator, device: Device) -> None:
        self.dataset, self.config, self.generator, self.device = dataset, config, generator, device
        episodes = len(dataset.offsets) - 1
        if episodes < 2:
            raise InputError("select-f needs at least two trajectories: one to learn from and one to judge on")
        unseen = held_out(episodes, UNSEEN, generator)[dataset.episode_of_row()]
        self.unseen, self.seen = unseen & dataset.real_rows(), ~unseen & dataset.real_rows()
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

    def clone(self, w: np.ndarray) -> nets.TanhGaussianPolicy:
        """The common start, trained on under the weights."""
        policy = copy.deepcopy(self.start)
        optimiser = Adam(policy.parameters(), self.config.lr)
        sample = row_sampler(w * self.seen, self.generator)
        for _ in range(self.config.policy_steps):
            rows = sample(self.config.batch)
            descend(self._errors(policy, rows), [optimiser])
        return policy

    def _errors(self, policy: nets.TanhGaussianPolicy, rows: Tensor) -> Tensor:
        mean, _ = policy(self.states[rows].to(self.device))
        targets = policy.unit(self.actions[rows].to(self.device))
        return policy_mse(mean, targets, torch.ones(len(rows), device=self.device))

    def loss(self, policy: nets.TanhGaussianPolicy, w: np.ndarray) -> float:
        """The mean squared error on unseen rows drawn in proportion to the weights, always the same draw."""
        p = w * self.unseen
        rows = np.random.default_rng(0).choice(len(p), JUDGED_ROWS, p=p / p.sum())
        with torch.no_grad():
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
