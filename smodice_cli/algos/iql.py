"""IQL (Kostrikov et al., 2021): implicit Q-learning, offline RL that asks no critic about actions outside the data.

    value    min_V E[|tau - 1(u < 0)| u^2],   u = min_i Q'_i(s, a) - V(s)    the expectile tau of the data's actions
    policy   min_pi E[min(exp(beta u), 100) |pi(s) - a|^2]                   cloning under weights of the advantage
    critics  min_Q sum_i E[(Q_i(s, a) - r - gamma V(s'))^2]

In this order, each with the V that is new by then; Q' follows Q. The settings are its authors' for locomotion: tau 0.7,
beta 3, batch 256, learning rates 3e-4 (the policy's falls as a cosine), gamma 0.99, targets follow at 5e-3, rewards
scaled so that the returns of the data span 1,000. The squared error is SEABO's, a likelihood of fixed spread (D50).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from smodice_cli.algos import Algorithm, PolicyConfig, PolicyLearner, clone, nets
from smodice_cli.algos.losses import average, policy_mse
from smodice_cli.algos.td3bc import need_rewards
from smodice_cli.artifacts import Arrays
from smodice_cli.config import setting
from smodice_cli.data import Dataset
from smodice_cli.lazy import Device, Generator, Tensor, np, torch
from smodice_cli.training import Adam, State, descend, flatten

MOST_WEIGHT = 100.0  # of a row in the policy's loss


@dataclass(frozen=True)
class Config(PolicyConfig):
    """train-policy by IQL on some reward."""

    steps: int = setting(100_000, "gradient steps", gt=0)  # 1 / (tau (1 - gamma)) = 20,000 are a time constant of Q
    lr: float = setting(3e-4, "Adam's learning rate", gt=0)
    gamma: float = setting(0.99, "discount of the critics", gt=0, lt=1)
    tau: float = setting(5e-3, "share of the networks that their targets take over", gt=0, le=1)
    expectile: float = setting(
        0.7, "expectile of Q that V learns; above 0.5 it leans towards the better actions", gt=0, lt=1
    )
    temperature: float = setting(3.0, "inverse temperature of the advantage in the policy's weights", ge=0)


@dataclass(frozen=True)
class TrueRewardConfig(Config):
    """The same on the data's own rewards."""

    reward_span: float = setting(1000.0, "what the returns of the data are scaled to span; 0 leaves rewards", ge=0)


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """E[|tau - 1(u < 0)| u^2]."""
    return (torch.where(error < 0, 1 - expectile, expectile) * error.square()).mean()


def policy_weights(advantage: Tensor, temperature: float) -> Tensor:
    """min(exp(beta A), 100)."""
    return (temperature * advantage).exp().clamp(max=MOST_WEIGHT)


class IQLLearner(PolicyLearner):
    """V, twin critics and a policy on the rewards of the rows."""

    shown = ("loss", "q", "v")

    def __init__(self, data: Dataset, config: Any, upstream: Arrays, rng: Generator, device: Device) -> None:
        self.data, self.config, self.generator, self.device = data, config, rng, device
        self.kept = self.policy = clone.new_policy(data, config.hidden, rng).to(device)
        self.policy.narrow()
        mean, std = (tensor.cpu() for tensor in (self.policy.normaliser.mean, self.policy.normaliser.std))
        self.critic = nets.TwinCritic(mean, std, len(self.policy.action_low), config.hidden).initialise(rng).to(device)
        self.value = nets.initialise(nets.ValueFunction(mean, std, config.hidden, 1.0), rng).to(device)
        self.critic_target = copy.deepcopy(self.critic)
        modules: dict[str, Any] = {"policy": self.policy, "critic": self.critic, "value": self.value}
        self.optimisers = {name: Adam(module.parameters(), config.lr) for name, module in modules.items()}
        self.flat_target = flatten(self.critic_target.parameters())
        columns = ("observations", "next_observations", "actions")
        self.states, self.next_states, self.actions = (torch.from_numpy(data[name]) for name in columns)
        self.real = torch.from_numpy(data.real_rows()).float()  # an absorbing end's action is nothing to clone
        self.reward = torch.from_numpy(self.rewards().astype(np.float32))
        self.discount = config.gamma * (1 - torch.from_numpy(np.array(data["terminals"])).float())
        self.state = State(modules | {"critic_target": self.critic_target}, self.optimisers, rng)

    def rewards(self) -> np.ndarray:
        """The data's own, scaled by the span of their returns."""
        rewards, span = np.asarray(self.data["rewards"], np.float64), self.config.reward_span
        returns = np.add.reduceat(rewards, self.data.offsets[:-1])
        return rewards * span / np.ptp(returns) if span and np.ptp(returns) else rewards

    def update(self, step: int) -> dict[str, Tensor]:
        config, device = self.config, self.device
        rows = torch.randint(self.data.rows, (config.batch,), generator=self.generator)
        s, after = self.states[rows].to(device), self.next_states[rows].to(device)
        a = self.policy.unit(self.actions[rows].to(device))
        with torch.no_grad():
            q = self.critic_target(s, a).amin(0)
        value_loss = expectile_loss(q - self.value(s), config.expectile)
        descend(value_loss, [self.optimisers["value"]])

        with torch.no_grad():
            v, following = self.value(torch.cat([s, after])).split(config.batch)
            weights = policy_weights(q - v, config.temperature) * self.real[rows].to(device)
            target = self.reward[rows].to(device) + self.discount[rows].to(device) * following
        policy_loss = policy_mse(self.policy.centre(s), a, weights)
        self.optimisers["policy"].lr *= 0.5 * (1 + math.cos(math.pi * step / config.steps))
        descend(policy_loss, [self.optimisers["policy"]])

        loss = (self.critic(s, a) - target).square().mean(1).sum()
        descend(loss, [self.optimisers["critic"]])
        average(self.flat_target, self.optimisers["critic"].flat, config.tau)
        figures = {"loss": loss, "value_loss": value_loss, "policy_loss": policy_loss, "q": q.mean(), "v": v.mean()}
        return {name: figure.detach() for name, figure in figures.items()}


class IQL(Algorithm):
    """iql: offline RL on the data's own rewards, for reference."""

    Config: ClassVar[type[PolicyConfig]] = TrueRewardConfig
    defaults = {"policy": {"lr": Config.lr}}  # whatever a recipe says of the others
    Learner = IQLLearner

    def accepts(self, data: Dataset) -> None:
        need_rewards(data, "iql")
