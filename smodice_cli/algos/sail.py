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

import torch
from torch import Tensor, nn

from smodice_cli.algos.nets import Normaliser


class InverseModel(nn.Module):
    """g(s, s'): the action in [-1, 1] that leads from s to s'."""

    def __init__(self, mean: Tensor, std: Tensor, actions: int, hidden: int) -> None:
        super().__init__()
        self.normaliser = Normaliser(mean, std)
        self.body = nn.Sequential(
            nn.Linear(2 * len(mean), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, actions),
            nn.Tanh(),
        )

    def forward(self, states: Tensor, next_states: Tensor) -> Tensor:
        before = self.normaliser(states)
        # Neighbouring states differ by little of their spread: the difference is what the action shows in.
        return self.body(torch.cat([before, self.normaliser(next_states) - before], dim=-1))


def wasserstein_loss(phi_expert: Tensor, phi_offline: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """E_O[phi] - E_E[phi]: minus the Wasserstein distance, for a phi that the gradient penalty keeps 1-Lipschitz."""
    expert, offline = phi_expert.mean(), phi_offline.mean()
    return offline - expert, {"reward_expert": expert, "reward_offline": offline}


def reward(critic_next: Tensor, expert_mean: float) -> Tensor:
    """phi(s') - E_expert[phi]: below 0 where the next state is less like the expert's than those are on average."""
    return critic_next - expert_mean


def action_error(actions: Tensor, wanted: Tensor, counts: Tensor | None = None) -> Tensor:
    """E|a - wanted|^2 / |A| over the rows that count: of the inverse model on the data, of the policy to the prior."""
    error = (actions - wanted).square().mean(-1)
    return error.mean() if counts is None else (error * counts).sum() / counts.sum().clamp(min=1)
