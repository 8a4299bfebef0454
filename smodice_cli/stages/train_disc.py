"""train-disc: the discriminator, whose logit is the reward R(s) = log d^E(s)/d^O(s)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smodice_cli.algos.discriminator import Config, DiscriminatorLearner, kind_for
from smodice_cli.data import Dataset
from smodice_cli.engine import Context, Output, Stage
from smodice_cli.errors import ConfigError
from smodice_cli.training import fit, prepare


class TrainDisc(Stage):
    """dataset.h5 -> disc.safetensors: the network, and R of every row and expert state."""

    name, kind, file, section = "train-disc", "disc", "disc.safetensors", "disc"
    Config = Config
    by_algorithm = True
    shared = True
    curves = (("auc", "discriminator: held-out AUC"), ("loss", "discriminator: loss"))
    help = "Train the state discriminator, whose logit is R(s) = log d^E/d^O (with --algo, another algorithm's)."
    examples = (
        "smodice train-disc --data runs/pm/dataset.h5",
        "smodice train-disc --data runs/pm/dataset.h5 --set gradient_penalty=0 --out runs/plain/disc.safetensors",
        "smodice train-disc --data runs/pm/dataset.h5 --algo sail",
    )

    def starts_from(self, algo: str) -> str:
        return "dataset"

    def check_chain(self, algo: str, configs: Mapping[str, Any]) -> None:
        for name, wanted in kind_for(algo).items():
            if (found := getattr(configs[self.section], name)) != wanted:
                raise ConfigError(f"{algo} needs {self.section}.{name} = {wanted}, not {found}")

    def prepare(self, context: Context, start: Path | None) -> Context:
        context = super().prepare(context, start)
        data = Dataset.of(context.inputs["dataset"])
        data.expert_inputs(context.config.inputs)  # says why, where there are none
        return replace(context, opened=data)

    def work(self, context: Context) -> list[Output]:
        learner = DiscriminatorLearner(context.opened, context.config, *prepare(context))
        fit(learner, context)
        return [Output(*learner.finish())]
