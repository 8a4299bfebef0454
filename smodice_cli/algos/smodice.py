"""SMODICE (Ma et al., ICML 2022), Algorithm 1: three disjoint supervised problems, one after the other.

    discriminator   R(s) = log d^E(s)/d^O(s)                                     Eq. 9     `discriminator`
    value           min_V (1-gamma) E_mu0[V] + E_dO[f*(R + gamma V' - V)]         Eq. 14    `dual`, `segments`
    weights         xi = f*'(R + gamma V' - V)                                    Eq. 15    `divergences`
    policy          min_pi -E_dO[xi log pi(a|s)] = -E_d*[log pi(a|s)]             Eq. 16    `clone`

`imitate` is the algorithm; train-disc, train-value and train-policy do the same with a file between each two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smodice_cli.algos import Algorithm, PolicyLearner, clone, discriminator, dual, nets
from smodice_cli.artifacts import Arrays
from smodice_cli.config import setting
from smodice_cli.data import Dataset
from smodice_cli.lazy import Device, Generator, np, torch
from smodice_cli.training import fit


@dataclass(frozen=True)
class Config(clone.TrajectoryConfig):
    """train-policy under the weights of train-value."""

    sampling: str = setting(
        "weights",
        "draw rows from d* (in proportion to the weights), or uniformly and weight the loss",
        choices=("weights", "uniform"),
        flag=True,
    )
    standardise: str = setting(
        "weights",
        "states by their mean and deviation under the weights, or over all rows alike",
        choices=("weights", "rows"),
    )


class SMODICE(Algorithm):
    """Cloning under the importance weights."""

    starts_from = "value"
    Config = Config

    def learner(self, data: Dataset, config: Any, upstream: Arrays, rng: Generator, device: Device) -> PolicyLearner:
        choices = {"uniform": config.sampling == "uniform", "standardise": config.standardise == "weights"}
        return clone.clone_rows(data, upstream["w"], config, rng, device, **choices)


def imitate(
    data: Dataset,
    disc: discriminator.Config | None = None,
    value: dual.Config | None = None,
    policy: Config | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, nets.TanhGaussianPolicy]:
    """The whole algorithm in memory: the importance weight of every row, and the policy."""
    device = torch.device("cpu")

    judge = discriminator.DiscriminatorLearner(data, disc or discriminator.Config(), _random(seed), device)
    fit(judge)
    reward, of_expert = (rewards.numpy() for rewards in judge.rewards())  # R(s), Eq. 9

    value = value or dual.Config()
    taught, at_end = dual.bounded(value, of_expert, reward, end_rewards(judge.net, data))
    solved = dual.solve(data, taught, at_end, value, _random(seed), device, fit)  # V, Eq. 14
    weights = solved.w / solved.w.mean()  # xi, Eq. 15

    cloner = SMODICE().learner(data, policy or Config(), {"w": weights}, _random(seed), device)
    fit(cloner)  # pi, Eq. 16
    return weights, cloner.kept


def end_rewards(net: nets.Discriminator, data: Dataset) -> np.ndarray:
    """R of the state in which each episode ends."""
    ends = data["next_observations"][data.offsets[1:] - 1]
    return discriminator.reward_of(net, ends).cpu().numpy()


def _random(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)
