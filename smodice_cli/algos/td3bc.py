"""TD3+BC (Fujimoto & Gu, 2021): TD3 with a cloning term, the offline learner of every baseline with a critic.

    target   y = r + gamma min_i Q'_i(s', clip(pi'(s') + eps)),   eps = clip(N(0, sigma), -c, c)
    critics  min_Q sum_i E[(Q_i(s, a) - y)^2]
    policy   min_pi E[-lambda Q_1(s, pi(s)) + |pi(s) - a|^2 / |A|],   lambda = alpha / E|Q_1(s, pi(s))|

The settings are those of the SMODICE paper's table: batch 256, learning rates 3e-4, gamma 0.99, targets follow at 5e-3,
sigma 0.2, c 0.5, one policy step in two, alpha 2.5. Actions are scaled to [-1, 1], states are standardised.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from smodice_cli.algos import Algorithm, PolicyConfig, PolicyLearner, clone, discriminator, nets
from smodice_cli.algos.losses import average
from smodice_cli.artifacts import Arrays
from smodice_cli.config import setting
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError
from smodice_cli.lazy import Device, Generator, Tensor, np, torch
from smodice_cli.training import Adam, State, descend, flatten


@dataclass(frozen=True)
class Config(PolicyConfig):
    """train-policy by TD3+BC."""

    lr: float = setting(3e-4, "Adam's learning rate", gt=0)
    gamma: float = setting(0.99, "discount of the critics", gt=0, lt=1)
    tau: float = setting(5e-3, "share of the networks that their targets take over", gt=0, le=1)
    policy_noise: float = setting(0.2, "deviation of the noise on the target's action", ge=0)
    noise_clip: float = setting(0.5, "bound on that noise", ge=0)
    policy_every: int = setting(2, "critic steps for each step of the policy and the targets", gt=0)
    bc_alpha: float = setting(2.5, "weight of the critic against cloning", ge=0)


# --- losses ----------------------------------------------------------------------------------------------------------


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


# --- the learner -----------------------------------------------------------------------------------------------------


class TD3Learner(PolicyLearner):
    """Twin critics on the rewards of the rows, and a policy that follows them and the data."""

    shown = ("loss", "q")

    def __init__(self, data: Dataset, config: Any, upstream: Arrays, rng: Generator, device: Device) -> None:
        self.data, self.config, self.upstream, self.generator, self.device = data, config, upstream, rng, device
        self.kept = self.policy = clone.new_policy(data, config.hidden, rng).to(device)
        self.policy.narrow()  # no loss here teaches it a spread
        mean, std = (tensor.cpu() for tensor in (self.policy.normaliser.mean, self.policy.normaliser.std))
        self.shape = (mean, std, len(self.policy.action_low), config.hidden)
        self.critic = nets.TwinCritic(*self.shape).initialise(rng).to(device)
        self.policy_target, self.critic_target = copy.deepcopy(self.policy), copy.deepcopy(self.critic)
        self.modules: dict[str, Any] = {
            "policy": self.policy,
            "critic": self.critic,
            "policy_target": self.policy_target,
            "critic_target": self.critic_target,
        }
        self.optimisers = {name: Adam(self.modules[name].parameters(), config.lr) for name in ("policy", "critic")}
        self.targets = {name: flatten(self.modules[f"{name}_target"].parameters()) for name in ("policy", "critic")}
        self.states, self.next_states, self.actions = (
            torch.from_numpy(data[name]) for name in ("observations", "next_observations", "actions")
        )
        # The critic needs the self-loops of the absorbing state; the policy has nothing to learn from their actions.
        self.real = torch.from_numpy(data.real_rows()).float() if data.absorbing else None
        self.set_up()
        self.state = State(self.modules, self.optimisers, rng)

    def update(self, step: int) -> dict[str, Tensor]:
        config, device = self.config, self.device
        rows = torch.randint(self.data.rows, (config.batch,), generator=self.generator)
        s, after = self.states[rows].to(device), self.next_states[rows].to(device)
        a = self.policy.unit(self.actions[rows].to(device))
        noise = torch.randn(a.shape, generator=self.generator).to(device)
        with torch.no_grad():
            next_a = smoothed(self.policy_target.mode(after), noise, config.policy_noise, config.noise_clip)
            next_q = self.critic_target(after, next_a)
        loss = self.critic_loss(rows, s, a, next_q)
        descend(loss, [self.optimisers["critic"]])
        self.learn_more(s, after, a)
        info = {"loss": loss.detach()}
        if (step + 1) % config.policy_every == 0:
            info |= self.improve(s, a, None if self.real is None else self.real[rows].to(device))
        return info

    def improve(self, s: Tensor, a: Tensor, real: Tensor | None) -> dict[str, Tensor]:
        """The delayed step of the policy, and of both targets."""
        acted = self.policy.mode(s)
        q = self.worth(self.critic.first(s, acted))
        loss = policy_loss(q, acted, a, self.config.bc_alpha, real) + self.regulariser()
        descend(loss, [self.optimisers["policy"]])
        for name, target in self.targets.items():
            average(target, self.optimisers[name].flat, self.config.tau)
        return {"policy_loss": loss.detach(), "q": q.detach().mean()}

    # What an algorithm changes.

    def set_up(self) -> None:
        """Prepare what the losses need: rewards, and discounts that are 0 after a terminal row."""
        self.reward = self.rewards().cpu()
        self.discount = self.config.gamma * (1 - torch.from_numpy(np.array(self.data["terminals"])).float())

    def rewards(self) -> Tensor:
        """The reward of every row."""
        return torch.from_numpy(np.array(self.data["rewards"]))

    def critic_loss(self, rows: Tensor, s: Tensor, a: Tensor, next_q: Tensor) -> Tensor:
        reward, discount = self.reward[rows].to(self.device), self.discount[rows].to(self.device)
        return critic_loss(self.critic(s, a), reward, discount, next_q)

    def worth(self, q: Tensor) -> Tensor:
        """What the policy maximises."""
        return q

    def learn_more(self, s: Tensor, after: Tensor, a: Tensor) -> None:
        """Further models that learn from the same batch."""

    def regulariser(self) -> Tensor | float:
        """A further term of the policy's loss."""
        return 0.0


def need_rewards(data: Dataset, who: str) -> None:
    """Refuse data that hold none, or only zeros."""
    if data.without_rewards or not data["rewards"].any():
        which = f"{data.without_rewards[0]} holds none" if data.without_rewards else "every one of them is 0"
        raise InputError(f"{who} learns from the data's rewards, but {which}")


class TD3BC(Algorithm):
    """td3bc: offline RL on the data's own rewards, for reference."""

    Config = Config
    defaults = {"policy": {"lr": Config.lr}}  # whatever a recipe says of the others
    Learner = TD3Learner

    def accepts(self, data: Dataset) -> None:
        need_rewards(data, "td3bc")


# --- on a discriminator's reward --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnedRewardConfig(Config):
    """The same where an end state may pay, too."""

    terminal: str = setting(
        "absorb", "after a terminal row: the end state's reward forever, or nothing", choices=("absorb", "zero")
    )


class LearnedRewardLearner(TD3Learner):
    """A discriminator's reward of states, which an end state, too, may pay: forever, as nothing leaves it (D11)."""

    def rewards(self) -> Tensor:
        self.net = nets.Discriminator.of(self.upstream).to(self.device)
        found = self.row_rewards()
        if self.config.terminal == "absorb":
            ends, gamma = np.flatnonzero(self.data["terminals"]), self.config.gamma
            found[ends] += gamma / (1 - gamma) * self.rewards_of(self.data["next_observations"][ends])
        return found

    def rewards_of(self, states: np.ndarray) -> Tensor:
        """The reward of any states, block by block."""
        blocks = np.array_split(states, range(discriminator.BLOCK, len(states), discriminator.BLOCK))
        return torch.cat([self.reward_of(discriminator.reward_of(self.net, block)) for block in blocks]).cpu()

    def row_rewards(self) -> Tensor:
        """The reward of every row."""
        raise NotImplementedError

    def reward_of(self, logits: Tensor) -> Tensor:
        """The reward of states by what the discriminator says of them."""
        raise NotImplementedError
