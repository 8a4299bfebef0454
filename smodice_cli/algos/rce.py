"""RCE (Eysenbach et al., 2021): Recursive Classification of Examples, as a critic for TD3+BC.

The classifier C(s, a) tells whether the policy succeeds in the future; its odds obey a Bellman equation,

    C/(1-C)(s, a) = (1-gamma) p(s | success)/p(s) + gamma E[w'],     w' = min_i C'_i/(1-C'_i) (s', a')

which is the optimum of a classification of success states (with the policy's own actions) against transitions:

    min_C  (1-gamma) E_success[-log C] + E[(1 + gamma w') CE(C(s, a), gamma w' / (1 + gamma w'))]         (their Eq. 10)

A critic gives the logit of C, so the odds are its exponential. There is no reward, and an episode's end is no special
case.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

LOGIT_MAX = 10.0  # odds of the target stay below 22,026: C/(1-C) has no bound of its own


def classifier_loss(logits: Tensor, success_logits: Tensor, next_logits: Tensor, gamma: float) -> Tensor:
    """Eq. 10 for both critics: logits (2, batch) of transitions, of success states, and of the targets at s'.

    (1 + g w) CE(C, g w/(1 + g w)) = -g w log C - log(1 - C): no quotient is formed, so nothing can be 0/0.
    """
    odds = next_logits.amin(0).clamp(max=LOGIT_MAX).exp().detach()
    transitions = gamma * odds * F.softplus(-logits) + F.softplus(logits)
    return ((1 - gamma) * F.softplus(-success_logits).mean(1) + transitions.mean(1)).sum()


def success(logits: Tensor) -> Tensor:
    """C(s, a), which takes the place of Q in the policy's loss."""
    return logits.sigmoid()
