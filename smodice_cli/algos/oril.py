"""ORIL (Zolna et al., 2020): offline RL on the reward of a discriminator; here TD3+BC on SMODICE's discriminator.

The SMODICE paper's version of it: the state discriminator c(s) of SMODICE, and TD3+BC as the learner. The reward is
ORIL's own, the probability c(s) in [0, 1]; SMODICE's log-ratio is its logit.
"""

from __future__ import annotations

from torch import Tensor


def reward(logits: Tensor) -> Tensor:
    """c(s) = sigmoid(log d^E(s)/d^O(s))."""
    return logits.sigmoid()
