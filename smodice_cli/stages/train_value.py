"""train-value: V on the Fenchel dual (Eq. 14), then the importance weight of every row (Eq. 15) into weights.h5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smodice_cli.algos import discriminator, dual, nets
from smodice_cli.algos.losses import importance_weights
from smodice_cli.algos.smodice import end_rewards
from smodice_cli.artifacts import Artifact
from smodice_cli.config import as_dict
from smodice_cli.console import console
from smodice_cli.data import Dataset
from smodice_cli.engine import Context, Options, Output, Stage
from smodice_cli.errors import DivergedError
from smodice_cli.lazy import np, torch
from smodice_cli.training import Learner, fit, prepare

LOOKED_AT = 1024  # rows of each source whose ratios the log tells


class TrainValue(Stage):
    """disc.safetensors -> value.safetensors and weights.h5."""

    name, kind, file, section = "train-value", "value", "value.safetensors", "value"
    Config = dual.Config
    revision = 4  # the second opinion has another scale
    by_algorithm = True
    companions = {"weights": "weights.h5"}
    hands_on = "weights"
    curves = (
        ("held_out", "value: held-out objective"),
        ("effective_share", "value: held-out effective share"),
    )
    help = "Train the value function on the Fenchel dual; writes [bold]value.safetensors[/] and [bold]weights.h5[/]."
    examples = (
        "smodice train-value --disc runs/pm/seed0/disc.safetensors",
        "smodice train-value --disc runs/pm/seed0/disc.safetensors --f chi2 --out runs/pm/chi2.safetensors",
    )

    def starts_from(self, algo: str) -> str:
        return "disc"

    def check_chain(self, algo: str, configs: Mapping[str, Any]) -> None:
        configs[self.section].check_rewards(configs[self.starts_from(algo)].inputs)

    def settle(self, start: Path | None, config: Any, seed: int, options: Options) -> Any:
        """`f = auto` is what select-f recommends."""
        if config.f != dual.AUTO:
            return config
        from smodice_cli.stages import select_f  # which itself trains V

        assert start is not None
        found = select_f.recommended(select_f.compare(start, config, None, seed, options))
        return replace(config, f=found) if found else None

    def inputs(self, start: Path, config: Any) -> dict[str, Artifact]:
        found = super().inputs(start, config)
        discriminator.check_kind(found["disc"], config.algo)
        config.check_rewards(found["disc"].header.config["inputs"])
        return found

    def work(self, context: Context) -> list[Output]:
        from smodice_cli.views.audit import audit
        from smodice_cli.views.choice import on_equal_rows
        from smodice_cli.views.diagnostics import findings, flow_residual, weight_health

        config, disc = context.config, context.inputs["disc"]
        data = Dataset.of(context.inputs["dataset"])
        generator, device = prepare(context)
        reward, end_reward = disc.arrays["reward"], np.zeros(len(data.offsets) - 1)
        if config.reward == "zero":
            reward = np.zeros_like(reward)
        elif disc.header.config["inputs"] == "state":
            end_reward = end_rewards(nets.Discriminator.of(disc.arrays).to(device), data)
        taught, end_reward = dual.bounded(config, disc.arrays["expert_reward"], reward, end_reward)

        def train(learner: Learner) -> int:
            return fit(BySource(learner, data) if isinstance(learner, dual.ValueLearner) else learner, context)

        found = dual.solve(data, taught, end_reward, config, generator, device, train)
        w = _of_mean_one(found.w)
        metrics = weight_health(w, data.source_of_row(), data.sources) | found.figures
        alike = on_equal_rows(w, data.time_of_row(), as_dict(config))
        metrics["flow_residual"] = flow_residual(data, w if alike is None else alike, config.gamma)
        del alike  # memory is a few figures a row: whatever is made after these can have their room
        metrics |= {"audit": audit(data, w, config.gamma)}
        metrics |= {"auc": auc} if (auc := disc.header.metrics.get("auc")) is not None else {}
        for finding in findings(metrics, as_dict(config)):
            console.warn(f"{self.name}: {finding.text}: {finding.remedy}")
        columns = _columns(data, reward, taught, found, w, config.gamma)
        return [Output(found.value.state_dict(), metrics), Output(columns, metrics, kind="weights")]


class BySource(Learner):
    """A V that also logs the mean ratio on rows of each source (`xi NAME`); the labels go no further."""

    def __init__(self, inner: dual.ValueLearner, data: Dataset) -> None:
        self.inner, self.config, self.state = inner, inner.config, inner.state
        self.schedule, self.shown, self.notes = inner.schedule, inner.shown, inner.notes
        self.update = inner.update  # type: ignore[method-assign]
        source = data.source_of_row()
        own = ((name, np.flatnonzero(source == index)) for index, name in enumerate(data.sources))
        self.rows = {name: torch.from_numpy(_evenly(rows)) for name, rows in own if len(rows)}

    def check(self) -> tuple[dict[str, float], bool]:
        figures, stop = self.inner.check()
        problem = self.inner.problem
        with torch.no_grad():
            nu = None if self.inner.nu is None else float(self.inner.nu)
            residual = torch.cat([self.inner.residual_of(rows) for rows in self.rows.values()])
            xi = importance_weights(problem.config.f, residual, problem.alpha, problem.cap, nu)
        parts = xi.split([len(rows) for rows in self.rows.values()])
        return figures | {f"xi {name}": float(part.mean()) for name, part in zip(self.rows, parts, strict=True)}, stop


def _evenly(rows: np.ndarray) -> np.ndarray:
    return rows[np.linspace(0, len(rows), min(len(rows), LOOKED_AT), endpoint=False, dtype=np.int64)]


def _of_mean_one(w: np.ndarray) -> np.ndarray:
    if not np.isfinite(w).all() or w.sum() <= 0:
        raise DivergedError("train-value: the importance weights are all zero or not finite", "try a larger alpha")
    w /= w.mean()
    return w


def _columns(
    data: Dataset, reward: np.ndarray, taught: np.ndarray, found: dual.Weights, w: np.ndarray, gamma: float
) -> dict[str, np.ndarray]:
    """The columns of weights.h5, row by row beside the dataset's; `taught` is the reward that V was taught."""
    with np.errstate(divide="ignore"):
        log_w = np.log(w)
    return {
        "reward": reward,
        "v": found.v,
        "v_next": found.v_next,
        "w": w,
        "log_w": log_w,
        "residual": (taught + gamma * found.v_next - found.v).astype(np.float32, copy=False),
        "episode": data.episode_of_row(),
        "t": data.time_of_row(),
        "source": data.source_of_row(),
    }
