"""TD3+BC (Fujimoto & Gu, 2021): TD3 with a cloning term, the offline learner of every baseline with a critic.

    target   y = r + gamma min_i Q'_i(s', clip(pi'(s') + eps)),   eps = clip(N(0, sigma), -c, c)
    critics  min_Q sum_i E[(Q_i(s, a) - y)^2]
    policy   min_pi E[-lambda Q_1(s, pi(s)) + |pi(s) - a|^2 / |A|],   lambda = alpha / E|Q_1(s, pi(s))|

The settings are those of the SMODICE paper's table: batch 256, learning rates 3e-4, gamma 0.99, targets follow at 5e-3,
sigma 0.2, c 0.5, one policy step in two, alpha 2.5. Actions are scaled to [-1, 1], states are standardised.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from smodice_cli.algos.nets import Normaliser


class TwinCritic(nn.Module):
    """Two independent critics Q_i(s, a) of two hidden ReLU layers, as one batched network."""

    def __init__(self, mean: Tensor, std: Tensor, actions: int, hidden: int) -> None:
        super().__init__()
        self.normaliser = Normaliser(mean, std)
        widths = [len(mean) + actions, hidden, hidden, 1]
        sizes = list(pairwise(widths))
        self.weights = nn.ParameterList(torch.zeros(2, inputs, outputs) for inputs, outputs in sizes)
        self.biases = nn.ParameterList(torch.zeros(2, 1, outputs) for _, outputs in sizes)

    def initialise(self, generator: torch.Generator) -> None:
        """As `nets.initialise`, each critic with its own draw."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = 1.0 / math.sqrt(weight.shape[1])
            for parameter in (weight, bias):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def _inputs(self, states: Tensor, unit_actions: Tensor) -> Tensor:
        return torch.cat([self.normaliser(states), unit_actions], dim=-1)

    def forward(self, states: Tensor, unit_actions: Tensor) -> Tensor:
        """Both critics, (2, batch)."""
        x = self._inputs(states, unit_actions).expand(2, -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x.relu() if layer else x, weight)
        return x.squeeze(-1)

    def first(self, states: Tensor, unit_actions: Tensor) -> Tensor:
        """Q_1 for the policy's loss: the gradient reaches the actions, never the critic."""
        x = self._inputs(states, unit_actions)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias[0].detach(), x.relu() if layer else x, weight[0].detach())
        return x.squeeze(-1)


def smoothed(unit_actions: Tensor, noise: Tensor, sigma: float, clip: float) -> Tensor:
    """Target policy smoothing: a' = clip(pi'(s') + clip(sigma noise, -c, c), -1, 1)."""
    return (unit_actions + (sigma * noise).clamp(-clip, clip)).clamp(-1, 1)


def critic_loss(q: Tensor, reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """Both critics (2, batch) against r + discount min_i Q'_i(s', a'); the discount is 0 after a terminal row."""
    target = (reward + discount * next_q.amin(0)).detach()
    return (q - target).square().mean(1).sum()


def policy_loss(q: Tensor, unit_actions: Tensor, cloned: Tensor, alpha: float, real: Tensor | None = None) -> Tensor:
    """-lambda E[Q_1(s, pi(s))] + E|pi(s) - a|^2 / |A|, over the rows with `real` = 1 where that is given.

    lambda = alpha / E|Q_1| carries no gradient; a critic that is 0 everywhere leaves behaviour cloning.
    """
    share = torch.full_like(q, 1 / len(q)) if real is None else real / real.sum().clamp(min=1)
    size = (share * q.detach().abs()).sum().clamp(min=1e-8)
    return (share * ((unit_actions - cloned).square().mean(-1) - alpha / size * q)).sum()
