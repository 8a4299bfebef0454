"""SMODICE organised like its published code, written from the paper's equations: what our stages are compared with.

One loop in which every step contains
- a batch drawn with numpy from columns in memory (initial states, states, actions, rewards, next states, terminals,
  source labels; all but the rewards and labels are used), turned into tensors,
- the discriminator's reward of the batch, through the sigmoid and two logarithms,
- three passes of V, for s_0, s and s'; KL's log-mean-exp (Eq. 20) and the weights exp(e) of the same values (Eq. 21),
- a pass of the policy, a fresh action and the log-density of both actions by `torch.distributions` (Eq. 22), and the
  entropy constraint with its temperature,
- three optimisers as `torch.optim.Adam` comes by default, L2 penalty 1e-4 on V.

States are standardised once, before. The discriminator (tanh, first layer never trained, gradient penalty 10) comes
first; its batches are drawn like the others, which is quicker than the published code's data loaders.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from smodice_cli.algos.losses import ACTION_MARGIN
from smodice_cli.algos.nets import LOG_STD_CLIP, MEAN_CLIP
from smodice_cli.data import Dataset

GAMMA, LR, V_PENALTY, GRADIENT_PENALTY = 0.99, 3e-4, 1e-4, 10.0


def network(inputs: int, outputs: int, hidden: int, activation: type[nn.Module]) -> nn.Sequential:
    """Two hidden layers, initialised as the published code does."""
    layers = (nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, hidden), activation())
    whole = nn.Sequential(*layers, *([nn.Linear(hidden, outputs)] if outputs else []))
    whole.apply(xavier)
    return whole


def xavier(module: nn.Module) -> None:
    """Xavier's uniform weights, no bias."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


class Policy(nn.Module):
    """A tanh-Gaussian policy on standardised states; actions are in (-1, 1)."""

    def __init__(self, inputs: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.body = network(inputs, 0, hidden, nn.ReLU)
        self.mean, self.log_std = nn.Linear(hidden, actions), nn.Linear(hidden, actions)
        self.apply(xavier)

    def forward(self, states: Tensor) -> Normal:
        features = self.body(states)
        mean = self.mean(features).clamp(-MEAN_CLIP, MEAN_CLIP)
        return Normal(mean, self.log_std(features).clamp(*LOG_STD_CLIP).exp())


def log_density(gaussian: Normal, before: Tensor, action: Tensor) -> Tensor:
    """log pi of tanh(before) = action."""
    return (gaussian.log_prob(before) - (1 - action.square() + ACTION_MARGIN).log()).sum(1, keepdim=True)


class Official:
    """The networks, the discriminator's training, and the joint step."""

    def __init__(self, dataset: Dataset, batch: int = 256, hidden: int = 256, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.batch = batch
        self.mean, self.std = np.asarray(dataset["mean"]), np.asarray(dataset["std"])
        self.low, self.high = np.asarray(dataset["action_low"]), np.asarray(dataset["action_high"])
        self.expert = self._standard(dataset["expert/observations"])
        self.initial = self._standard(dataset.initial_observations())
        self.columns = (
            self._standard(dataset["observations"]),
            (2 * (dataset["actions"] - self.low) / (self.high - self.low) - 1).astype(np.float32),
            np.array(dataset["rewards"], np.float32),
            self._standard(dataset["next_observations"]),
            np.array(dataset["terminals"], np.float32),
            dataset.source_of_row().astype(np.float32),
        )
        width, actions = self.initial.shape[1], self.columns[1].shape[1]
        self.disc = network(width, 1, hidden, nn.Tanh)
        self.value = network(width, 1, hidden, nn.ReLU)
        self.policy = Policy(width, actions, hidden)
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.target = -actions
        self.disc_adam = torch.optim.Adam(self.disc[1:].parameters(), lr=LR)
        self.value_adam = torch.optim.Adam(self.value.parameters(), lr=LR, weight_decay=V_PENALTY)
        self.policy_adam = torch.optim.Adam(self.policy.parameters(), lr=LR)
        self.temperature_adam = torch.optim.Adam([self.log_temperature], lr=LR)

    def _standard(self, states: np.ndarray) -> np.ndarray:
        return ((states - self.mean) / self.std).astype(np.float32)

    def discriminate(self) -> None:
        """One update of the discriminator."""
        states = self.columns[0]
        expert = torch.from_numpy(self.expert[self.rng.integers(len(self.expert), size=self.batch)])
        offline = torch.from_numpy(states[self.rng.integers(len(states), size=self.batch)])
        on_offline, on_expert = self.disc(offline), self.disc(expert)
        loss = F.binary_cross_entropy_with_logits(on_expert, torch.ones_like(on_expert))
        loss = loss + F.binary_cross_entropy_with_logits(on_offline, torch.zeros_like(on_offline))
        share = torch.rand(self.batch, 1)
        mixed = (share * expert + (1 - share) * offline).requires_grad_()
        (slope,) = torch.autograd.grad(self.disc(mixed).sum(), mixed, create_graph=True)
        loss = loss + GRADIENT_PENALTY * (slope.norm(dim=1) - 1).square().mean()
        self.disc_adam.zero_grad()
        loss.backward()
        self.disc_adam.step()

    def step(self) -> None:
        """One joint step of V, the policy and the temperature."""
        starts = self.initial[self.rng.integers(len(self.initial), size=self.batch)]
        rows = self.rng.integers(len(self.columns[0]), size=self.batch)
        s0, s, a, _, s_next, terminal, _ = map(torch.from_numpy, (starts, *(column[rows] for column in self.columns)))
        with torch.no_grad():
            likely = torch.sigmoid(self.disc(s))
            reward = likely.log() - (1 - likely).log()
        v0, v, v_next = self.value(s0), self.value(s), self.value(s_next)
        e = reward + (1 - terminal.unsqueeze(1)) * GAMMA * v_next - v
        value_loss = ((1 - GAMMA) * v0 + e.exp().mean().log()).mean()
        w = e.exp().detach()

        gaussian = self.policy(s)
        fresh = gaussian.rsample()
        fresh_density = log_density(gaussian, fresh, fresh.tanh())
        inside = a.clamp(-1 + ACTION_MARGIN, 1 - ACTION_MARGIN)
        likelihood = (w * log_density(gaussian, inside.atanh(), a)).mean()
        policy_loss = self.log_temperature.exp().squeeze(0) * fresh_density.mean() - likelihood
        temperature_loss = -(self.log_temperature * (fresh_density + self.target).detach()).mean()

        for loss, optimiser in (
            (value_loss, self.value_adam),
            (policy_loss, self.policy_adam),
            (temperature_loss, self.temperature_adam),
        ):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    def tensors(self) -> dict[str, np.ndarray]:
        """The policy under the names of a stored one, which maps raw states to the environment's actions."""
        own = {name: tensor.numpy().copy() for name, tensor in self.policy.state_dict().items()}
        limits = {"action_low": self.low, "action_high": self.high}
        return own | limits | {"normaliser.mean": self.mean, "normaliser.std": self.std}

    def is_finite(self) -> bool:
        """Whether V and the policy are still numbers."""
        return all(math.isfinite(float(p.sum())) for net in (self.value, self.policy) for p in net.parameters())
