"""train-policy: behaviour cloning weighted by xi (Eq. 16), or one of the paper's baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.algos import ALGORITHMS, PolicyConfig, PolicyLearner, discriminator
from smodice_cli.algos.acting import SNAPSHOT_STEPS
from smodice_cli.artifacts import Arrays, Artifact
from smodice_cli.config import Config as BaseConfig
from smodice_cli.data import Dataset
from smodice_cli.engine import Context, Output, Stage, with_dataset
from smodice_cli.errors import ConfigError, InputError
from smodice_cli.lazy import Tensor, np, torch
from smodice_cli.stages import maker
from smodice_cli.training import fit, prepare


class TrainPolicy(Stage):
    """What an algorithm starts from -> policy.safetensors, with snapshots of it over the training."""

    name, kind, file, section = "train-policy", "policy", "policy.safetensors", "policy"
    Config = PolicyConfig
    by_algorithm = True
    companions = {"snapshots": ".snapshots.safetensors"}
    curves = (("loss", "policy: loss"),)
    help = "Clone the offline actions, weighted by the importance weights; with --algo, learn as a baseline does."
    examples = (
        "smodice train-policy --value runs/pm/seed0/value.safetensors",
        "smodice train-policy --value runs/pm/seed0/value.safetensors --loss nll --out runs/nll/policy.safetensors",
        "smodice train-policy --algo bc --data runs/pm/dataset.h5",
        "smodice train-policy --algo oril --disc runs/pm/seed0/disc.safetensors",
    )

    def starts_from(self, algo: str) -> str:
        return ALGORITHMS[algo].starts_from

    def config_of(self, algo: str) -> type[BaseConfig]:
        return ALGORITHMS[algo].Config

    def check_chain(self, algo: str, configs: Mapping[str, Any]) -> None:
        if ALGORITHMS[algo].expert_actions and not configs["dataset"].expert_actions:
            raise ConfigError(
                f"{algo} learns from the expert's actions, which imitation from observations never reads",
                "give them to it with expert_actions = true in [dataset], or --set dataset.expert_actions=true",
            )

    def writes(self, config: Any) -> list[str]:
        return list(self.companions) if config.snapshots else []

    def inputs(self, start: Path, config: Any) -> dict[str, Artifact]:
        """What the algorithm reads, refused where it is another algorithm's."""
        algo = config.algo
        first = artifacts.load(start, self.starts_from(algo))
        if first.header.config.get("algo", algo) != algo:
            raise InputError(
                f"{start} holds {first.header.config['algo']}'s V, not {algo}'s",
                f"smodice {first.header.stage} --algo {algo} makes one",
            )
        if first.header.kind == "disc":
            discriminator.check_kind(first, algo)
        if handed := maker(first.header.kind).hands_on:
            first = artifacts.follow(first, handed, handed)
        found = with_dataset(first)
        ALGORITHMS[algo].accepts(Dataset.of(found["dataset"]))
        return found

    def work(self, context: Context) -> list[Output]:
        config = context.config
        data = Dataset.of(context.inputs["dataset"])
        generator, device = prepare(context)
        (*upstream, _) = context.inputs.values()
        arrays = upstream[0].arrays if upstream else {}
        learner = ALGORITHMS[config.algo].learner(data, config, arrays, generator, device)
        tell = partial(context.ahead.take, data.env, data.absorbing) if context.ahead else None
        snapshots = Snapshots(learner, tell)
        done = fit(snapshots, context)
        metrics = {"steps": done, "env": data.env, "absorbing": data.absorbing, "expert_return": data.expert_return}
        metrics |= learner.figures
        if learner.held_out:  # which of the trajectories it never saw
            metrics["held_out"] = list(learner.held_out)
        made = [Output(learner.kept.state_dict(), metrics)]
        return made + ([Output(snapshots.stack(done), metrics, kind="snapshots")] if config.snapshots else [])


class Snapshots(PolicyLearner):
    """A learner that also keeps its policy at evenly spaced steps, so that eval can show the return over training.

    `tell` hears of each of them at once.
    """

    def __init__(self, inner: PolicyLearner, tell: Callable[[Arrays], None] | None = None) -> None:
        self.tell = tell
        self.inner, self.config, self.kept = inner, inner.config, inner.kept
        self.schedule, self.shown, self.notes = inner.schedule, inner.shown, inner.notes
        count, steps = self.config.snapshots, self.config.steps
        marks = np.unique(np.linspace(0, steps, count + 1).round()).astype(np.int64)[1:-1]
        self.steps = torch.from_numpy(marks)
        self.stacked = {
            name: torch.zeros(len(marks), *tensor.shape, dtype=tensor.dtype)
            for name, tensor in self.kept.state_dict().items()
        }
        self.state = inner.state
        self.state.extra |= {f"snapshot/{name}": tensor for name, tensor in self.stacked.items()}

    def update(self, step: int) -> dict[str, Tensor]:
        info = self.inner.update(step)
        for index in torch.nonzero(self.steps == step + 1).flatten().tolist():
            for name, tensor in self.kept.state_dict().items():
                self.stacked[name][index] = tensor.cpu()
            if self.tell:
                self.tell({name: tensors[index].numpy() for name, tensors in self.stacked.items()})
        return info

    def check(self) -> tuple[dict[str, float], bool]:
        return self.inner.check()

    def stack(self, done: int) -> dict[str, Tensor]:
        """All of them, the finished policy last, which may come before the last step that was planned."""
        taken = int((self.steps < done).sum())
        tensors = {SNAPSHOT_STEPS: torch.cat([self.steps[:taken], torch.tensor([done])])}
        for name, tensor in self.kept.state_dict().items():
            tensors[name] = torch.cat([self.stacked[name][:taken], tensor.cpu()[None]])
        return tensors
