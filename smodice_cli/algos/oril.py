"""ORIL (Zolna et al., 2020): offline RL on the reward of a discriminator; here TD3+BC on SMODICE's discriminator.

The SMODICE paper's version of it: the state discriminator c(s) of SMODICE, and TD3+BC as the learner. The reward is
ORIL's own, the probability c(s) in [0, 1]; SMODICE's log-ratio is its logit.
"""

from __future__ import annotations

from typing import ClassVar

from smodice_cli.algos import Algorithm
from smodice_cli.algos.td3bc import TD3BC, LearnedRewardConfig, LearnedRewardLearner
from smodice_cli.lazy import Tensor, torch


def reward(logits: Tensor) -> Tensor:
    """c(s) = sigmoid(log d^E(s)/d^O(s))."""
    return logits.sigmoid()


class ORILLearner(LearnedRewardLearner):
    """The state discriminator's probability as the reward."""

    def row_rewards(self) -> Tensor:
        return reward(torch.from_numpy(self.upstream["reward"]))

    def reward_of(self, logits: Tensor) -> Tensor:
        return reward(logits)


class ORIL(TD3BC):
    """TD3+BC on the probability that a state is the expert's."""

    starts_from = "disc"
    Config = LearnedRewardConfig
    Learner: ClassVar[type[LearnedRewardLearner]] = ORILLearner
    accepts = Algorithm.accepts
