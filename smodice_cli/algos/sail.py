"""SAIL (Liu et al., 2020): state alignment, global by a Wasserstein critic of states, local by an inverse model.

    reward        r = phi(s') - E_expert[phi(s)], phi from train-disc with loss = wasserstein       (their Eq. 4)
    inverse model min_g E_offline|g(s, s') - a|^2
    prior         |pi(s) - g(s, s')|^2 on the expert's own transitions, beside the loss of TD3+BC

SAIL is an online method and the SMODICE paper says no more than that it is combined with TD3+BC. Online the prior acts
on the states that the policy visits, whose successors a generative model must imagine; offline the policy should visit
the expert's, whose successors are known. An expert without trajectories (success states), or with only some of the
imitator's dimensions, leaves the reward alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from smodice_cli.algos import nets
from smodice_cli.algos.oril import ORIL
from smodice_cli.algos.td3bc import TD3BC, LearnedRewardConfig, LearnedRewardLearner
from smodice_cli.config import setting
from smodice_cli.lazy import Tensor, torch
from smodice_cli.training import Adam, descend


@dataclass(frozen=True)
class Config(LearnedRewardConfig):
    """train-policy by SAIL."""

    prior: float = setting(10.0, "weight of the inverse model's actions on the expert's transitions", ge=0)


def reward(critic_next: Tensor, expert_mean: float) -> Tensor:
    """phi(s') - E_expert[phi]: below 0 where the next state is less like the expert's than those are on average."""
    return critic_next - expert_mean


def action_error(actions: Tensor, wanted: Tensor, counts: Tensor | None = None) -> Tensor:
    """E|a - wanted|^2 / |A| over the rows that count: of the inverse model on the data, of the policy to the prior."""
    error = (actions - wanted).square().mean(-1)
    return error.mean() if counts is None else (error * counts).sum() / counts.sum().clamp(min=1)


class SAILLearner(LearnedRewardLearner):
    """The Wasserstein critic's reward of the next state, and the inverse model's prior on the expert's states."""

    def set_up(self) -> None:
        self.expert_mean = float(torch.from_numpy(self.upstream["expert_reward"]).mean())
        super().set_up()
        self.before, self.after = (torch.from_numpy(part).to(self.device) for part in self.data.expert_transitions())
        self.prior = self.config.prior if len(self.before) else 0.0
        if self.config.prior and not self.prior:
            self.notes = ("the expert is given without trajectories of whole states: sail goes by its reward alone",)
        if self.prior:
            self.inverse = nets.initialise(nets.InverseModel(*self.shape), self.generator).to(self.device)
            self.modules["inverse"] = self.inverse
            self.optimisers["inverse"] = Adam(self.inverse.parameters(), self.config.lr)

    def row_rewards(self) -> Tensor:
        return self.rewards_of(self.data["next_observations"])

    def reward_of(self, logits: Tensor) -> Tensor:
        return reward(logits, self.expert_mean)

    def learn_more(self, s: Tensor, after: Tensor, a: Tensor) -> None:
        if self.prior:
            # A row that stays where it is shows no action: its next state is not known, or it is an absorbing one.
            moves = (after != s).any(-1)
            descend(action_error(self.inverse(s, after), a, moves), [self.optimisers["inverse"]])

    def regulariser(self) -> Tensor | float:
        if not self.prior:
            return 0.0
        rows = torch.randint(len(self.before), (self.config.batch,), generator=self.generator)
        with torch.no_grad():
            wanted = self.inverse(self.before[rows], self.after[rows])
        return self.prior * action_error(self.policy.mode(self.before[rows]), wanted)


class SAIL(ORIL):
    """TD3+BC on a Wasserstein critic of states, with an inverse model as a prior."""

    Config = Config
    defaults = TD3BC.defaults | {
        "disc": {
            "loss": "wasserstein",
            "gradient_penalty": 10.0,
            "steps": 4000,
            "batch": 256,
            "lr": 3e-4,
            "schedule": "constant",
        }
    }
    Learner = SAILLearner
