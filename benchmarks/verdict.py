"""Does the verdict on the weights tell the truth? Good, bad and broken runs, their verdict and their return.

    python benchmarks/verdict.py figures.jsonl runs/hopper-mixed/dataset.h5 runs/walker2d-mixed/dataset.h5

Each line of figures.jsonl is one run: the variant, what the verdict rests on, and the return of a policy cloned under
the weights. Runs that are in the file already are not made again. The end shows the rank correlation between the trust
and the return, in parts of what is attainable (cloning the expert's own rows, or the default), and the lights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smodice_cli import artifacts, rollout
from smodice_cli.algos import discriminator, dual
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.algos.smodice import SMODICE, Config, end_rewards
from smodice_cli.config import as_dict
from smodice_cli.data import Dataset
from smodice_cli.statistics import ranks
from smodice_cli.training import fit
from smodice_cli.views.audit import audit
from smodice_cli.views.diagnostics import LEVELS, findings, verdict, weight_health

STEPS, EPISODES, SEED = 4_000, 10, 0
EXPERT, EQUAL = "the expert's rows", "equal weights"
DUAL, DISC = dual.Config(), discriminator.Config()
BEFORE = replace(DUAL, n_step=50, alpha=0.3, timeout="bootstrap", ceiling=1.0)
PLAIN = replace(DUAL, n_step=1, alpha=1.0, ceiling=1.0)
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _same(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return x


def _shuffled(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(x)


def _half(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Half of the rewards are somebody else's."""
    return np.where(rng.random(len(x)) < 0.5, x, rng.permutation(x))


def _reversed(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return -x


def _mixed_up(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The expert's dimensions in another order: another body, as far as anyone can tell."""
    return x[:, rng.permutation(x.shape[1])]


def _turned(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The expert in another frame: every dimension has the other sign."""
    return -x


# name: the discriminator's settings, V's, what is done to the expert's states, and to the rewards
VARIANTS: dict[str, tuple[discriminator.Config, dual.Config, Change, Change]] = {
    "default": (DISC, DUAL, _same, _same),
    "discriminator of one step": (replace(DISC, steps=1), DUAL, _same, _same),
    "discriminator of 30 steps": (replace(DISC, steps=30), DUAL, _same, _same),
    "V of one step": (DISC, replace(DUAL, steps=1), _same, _same),
    "V of one step, n = 1": (DISC, replace(PLAIN, steps=1), _same, _same),
    "both of one step": (replace(DISC, steps=1), replace(DUAL, steps=1), _same, _same),
    "n = 1, alpha = 1": (DISC, PLAIN, _same, _same),
    "n = 50, alpha = 0.3, cuts bootstrap": (DISC, BEFORE, _same, _same),
    "no ceiling": (DISC, replace(DUAL, ceiling=1.0), _same, _same),
    "alpha = 0.02": (DISC, replace(DUAL, alpha=0.02), _same, _same),
    "alpha = 0.5": (DISC, replace(DUAL, alpha=0.5), _same, _same),
    "alpha = 1": (DISC, replace(DUAL, alpha=1.0), _same, _same),
    "alpha = 5": (DISC, replace(DUAL, alpha=5.0), _same, _same),
    "returns, alpha = 0.3": (DISC, replace(DUAL, estimator="returns", alpha=0.3), _same, _same),
    "returns, alpha = 1": (DISC, replace(DUAL, estimator="returns", alpha=1.0), _same, _same),
    "rewards half shuffled": (DISC, replace(DUAL, estimator="returns"), _same, _half),
    "rewards shuffled": (DISC, DUAL, _same, _shuffled),
    "rewards reversed": (DISC, replace(DUAL, estimator="returns", alpha=0.3), _same, _reversed),
    "expert's dimensions mixed up": (DISC, DUAL, _mixed_up, _same),
    "expert turned round": (DISC, DUAL, _turned, _same),
}


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def score(data: Dataset, w: np.ndarray) -> tuple[float, float]:
    """Mean return of a policy cloned under the weights, and its standard deviation."""
    learner = SMODICE().learner(data, replace(Config(), steps=STEPS), {"w": w}, random(SEED), torch.device("cpu"))
    fit(learner)
    policy = NumpyPolicy({name: tensor.numpy() for name, tensor in learner.kept.state_dict().items()})
    returns = []
    for number in range(EPISODES):
        _, reset = rollout.seeded(SEED, number)
        _, steps = rollout.begin(rollout.environment(data.env), policy, None, reset, absorbing=data.absorbing)
        returns.append(sum(float(step.reward) for step in steps))
    return float(np.mean(returns)), float(np.std(returns))


def weigh(data: Dataset, variant: str) -> tuple[np.ndarray, dict[str, Any], dual.Config]:
    """The weights of a variant, and the figures that its verdict rests on."""
    of_disc, of_value, expert, reward = VARIANTS[variant]
    rng, device = np.random.default_rng(SEED), torch.device("cpu")
    data = replace(data, arrays=data.arrays | {"expert/observations": expert(data["expert/observations"], rng)})
    judge = discriminator.DiscriminatorLearner(data, of_disc, random(SEED), device)
    fit(judge)
    (r, of_expert), ends = (x.numpy() for x in judge.rewards()), end_rewards(judge.net, data)
    joint = reward(np.concatenate([r, ends]), rng)
    r, ends = dual.bounded(of_value, of_expert, joint[: len(r)], joint[len(r) :])
    found = dual.solve(data, r, ends, of_value, random(SEED), device, fit)
    w = found.w / found.w.mean()
    health = weight_health(w, data.source_of_row(), data.sources) | found.figures | judge.check()[0]
    return w, health | {"audit": audit(data, w, of_value.gamma)}, of_value


def run(data: Dataset, variant: str) -> dict[str, Any]:
    """One line of the file. Labels of the rows serve the yardstick alone."""
    if variant in VARIANTS:
        w, health, config = weigh(data, variant)
    else:
        expert = [index for index, label in enumerate(data.sources) if "expert" in label]
        w = np.isin(data.source_of_row(), expert).astype(float) if variant == EXPERT else np.ones(data.rows)
        w, config = w / w.mean(), DUAL
        health = weight_health(w, data.source_of_row(), data.sources) | {"audit": audit(data, w, config.gamma)}
    mean, std = score(data, w)
    found = findings(health, as_dict(config))
    said = [f"{one.level}: {one.text}" for one in found]
    outcome = {"variant": variant, "return": mean, "std": std}
    return outcome | {"level": verdict(found), "findings": said, "health": health}


def table(lines: list[dict[str, Any]]) -> None:
    """Every run, the rank correlation between match and return, and what each light stands for."""
    for name in dict.fromkeys(line["data"] for line in lines):
        here = [line for line in lines if line["data"] == name]
        attainable = max(line["return"] for line in here if line["variant"] in (EXPERT, "default")) or 1.0
        for line in here:
            line["part"] = max(line["return"], 0.0) / attainable
    for line in sorted(lines, key=lambda line: (line["data"], -line["part"])):
        trust, part = 100 * line["health"]["audit"]["trust"], 100 * line["part"]
        print(f"{line['data']:24} {line['variant']:38} {line['level']:7} {trust:5.0f} {part:6.1f}")
    trusts, parts = np.array([(line["health"]["audit"]["trust"], line["part"]) for line in lines]).T
    print(f"{len(lines)} runs, rank correlation {np.corrcoef(ranks(trusts), ranks(parts))[0, 1]:.2f}")
    for level in LEVELS:
        lit = [line["part"] for line in lines if line["level"] == level]
        if lit:
            print(f"{level}: {len(lit)} runs, {100 * min(lit):.0f} to {100 * max(lit):.0f} % of the attainable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("datasets", type=Path, nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = [json.loads(line) for line in given.figures.read_text().splitlines()] if given.figures.exists() else []
    done = {(line["data"], line["variant"]) for line in lines}
    for path in given.datasets:
        data, name = Dataset.of(artifacts.load(path, "dataset")), path.parent.name
        labelled = [EXPERT] if any("expert" in label for label in data.sources) else []
        for variant in (*labelled, EQUAL, *VARIANTS):
            if (name, variant) not in done:
                lines.append({"data": name} | run(data, variant))
                with open(given.figures, "a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    table(lines)


if __name__ == "__main__":
    main()
