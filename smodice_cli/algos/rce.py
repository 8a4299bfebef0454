"""RCE (Eysenbach et al., 2021): Recursive Classification of Examples, as a critic for TD3+BC.

The classifier C(s, a) tells whether the policy succeeds in the future; its odds obey a Bellman equation,

    C/(1-C)(s, a) = (1-gamma) p(s | success)/p(s) + gamma E[w'],     w' = min_i C'_i/(1-C'_i) (s', a')

which is the optimum of a classification of success states (with the policy's own actions) against transitions:

    min_C  (1-gamma) E_success[-log C] + E[(1 + gamma w') CE(C(s, a), gamma w' / (1 + gamma w'))]         (their Eq. 10)

A critic gives the logit of C, so the odds are its exponential. There is no reward, and an episode's end is no special
case.
"""

from __future__ import annotations

from smodice_cli.algos.td3bc import TD3BC, TD3Learner
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError
from smodice_cli.lazy import Tensor, functional, np, torch

LOGIT_MAX = 10.0  # odds of the target stay below 22,026: C/(1-C) has no bound of its own


def classifier_loss(logits: Tensor, success_logits: Tensor, next_logits: Tensor, gamma: float) -> Tensor:
    """Eq. 10 for both critics: logits (2, batch) of transitions, of success states, and of the targets at s'.

    (1 + g w) CE(C, g w/(1 + g w)) = -g w log C - log(1 - C): no quotient is formed, so nothing can be 0/0.
    """
    odds = next_logits.amin(0).clamp(max=LOGIT_MAX).exp().detach()
    transitions = gamma * odds * functional.softplus(-logits) + functional.softplus(logits)
    return ((1 - gamma) * functional.softplus(-success_logits).mean(1) + transitions.mean(1)).sum()


def success(logits: Tensor) -> Tensor:
    """C(s, a), which takes the place of Q in the policy's loss."""
    return logits.sigmoid()


class RCELearner(TD3Learner):
    """The critic classifies future success; expert states are the examples of it."""

    def set_up(self) -> None:
        self.examples = torch.from_numpy(np.array(self.data["expert/observations"])).to(self.device)

    def critic_loss(self, rows: Tensor, s: Tensor, a: Tensor, next_q: Tensor) -> Tensor:
        batch = self.config.batch
        examples = self.examples[torch.randint(len(self.examples), (batch,), generator=self.generator)]
        with torch.no_grad():
            acted = self.policy_target.mode(examples)
        logits, success_logits = self.critic(torch.cat([s, examples]), torch.cat([a, acted])).split(batch, dim=1)
        return classifier_loss(logits, success_logits, next_q, self.config.gamma)

    def worth(self, q: Tensor) -> Tensor:
        return success(q)


class RCE(TD3BC):
    """TD3+BC on a recursive classifier of success."""

    Learner = RCELearner

    def accepts(self, data: Dataset) -> None:
        if not data.expert_is_whole():
            raise InputError("rce needs whole expert states, because its classifier sees the imitator's beside them")
