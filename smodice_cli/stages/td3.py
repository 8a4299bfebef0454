"""TD3+BC as a learner of train-policy, and what oril, sail and rce change of it."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from smodice_cli.algos import oril, rce, sail
from smodice_cli.algos.nets import TanhGaussianPolicy, initialise
from smodice_cli.algos.smodice import average
from smodice_cli.algos.td3bc import TwinCritic, critic_loss, policy_loss, smoothed
from smodice_cli.artifacts import Artifact
from smodice_cli.config import PolicyConfig
from smodice_cli.console import console
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError
from smodice_cli.stages import train_disc
from smodice_cli.stages.learners import Learner
from smodice_cli.stages.runner import Job
from smodice_cli.stages.trainer import Adam, descend, flatten


class TD3BC:
    """td3bc: twin critics on the data's own rewards."""

    def __init__(
        self, job: Job, dataset: Dataset, policy: TanhGaussianPolicy, generator: torch.Generator, device: torch.device
    ) -> None:
        self.job, self.dataset, self.policy, self.generator, self.device = job, dataset, policy, generator, device
        config: PolicyConfig = job.config
        self.config = config
        self.shape = (policy.normaliser.mean.cpu(), policy.normaliser.std.cpu(), len(policy.action_low), config.hidden)
        self.critic = TwinCritic(*self.shape)
        self.critic.initialise(generator)
        self.critic.to(device)
        self.policy_target, self.critic_target = copy.deepcopy(policy), copy.deepcopy(self.critic)
        self.modules: dict[str, nn.Module] = {
            "policy": policy,
            "critic": self.critic,
            "policy_target": self.policy_target,
            "critic_target": self.critic_target,
        }
        self.optimisers = {name: Adam(self.modules[name].parameters(), config.lr) for name in ("policy", "critic")}
        self.targets = {name: flatten(self.modules[f"{name}_target"].parameters()) for name in ("policy", "critic")}
        self.states, self.next_states, self.actions = (
            torch.from_numpy(dataset[name]) for name in ("observations", "next_observations", "actions")
        )
        # The critic needs the self-loops of the absorbing state; the policy has nothing to learn from their actions.
        self.real = torch.from_numpy(dataset.real_rows()).float() if dataset.absorbing else None
        self.prepare()

    def learner(self) -> Learner:
        return Learner(self.update, self.policy, self.modules, self.optimisers, shown=("loss", "q"))

    def update(self, step: int) -> dict[str, Tensor]:
        config, device = self.config, self.device
        rows = torch.randint(self.dataset.rows, (config.batch,), generator=self.generator)
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
            average(target, self.optimisers[name].flat, 1 - self.config.tau)
        return {"policy_loss": loss.detach(), "q": q.detach().mean()}

    # What an algorithm changes.

    def prepare(self) -> None:
        """Set up what the algorithm's losses need: rewards, and discounts that are 0 after a terminal row."""
        self.reward = self.rewards().cpu()
        self.discount = self.config.gamma * (1 - torch.from_numpy(np.array(self.dataset["terminals"])).float())

    def rewards(self) -> Tensor:
        """The reward of every row."""
        return torch.from_numpy(np.array(self.dataset["rewards"]))

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


class LearnedReward(TD3BC):
    """A discriminator's reward of states, which an end state, too, may pay: forever, as nothing leaves it (D11)."""

    rewarded = "observations"  # or "next_observations"

    def rewards(self) -> Tensor:
        disc = train_disc.load(self.job.inputs["disc"], self.dataset, self.device)

        def reward(states: np.ndarray) -> Tensor:
            blocks = np.array_split(states, range(train_disc.BLOCK, len(states), train_disc.BLOCK))
            return torch.cat([self.reward_of(train_disc.rewards(disc, block)) for block in blocks]).cpu()

        found = reward(self.dataset[self.rewarded])
        if self.config.terminal == "absorb":
            ends, gamma = np.flatnonzero(self.dataset["terminals"]), self.config.gamma
            found[ends] += gamma / (1 - gamma) * reward(self.dataset["next_observations"][ends])
        return found

    def reward_of(self, logits: Tensor) -> Tensor:
        """The reward of states by what the discriminator says of them."""
        raise NotImplementedError


class ORIL(LearnedReward):
    """oril: the state discriminator's probability as the reward."""

    def reward_of(self, logits: Tensor) -> Tensor:
        return oril.reward(logits)


class SAIL(LearnedReward):
    """sail: the Wasserstein critic's reward of the next state, and the inverse model's prior on the expert's states."""

    rewarded = "next_observations"

    def prepare(self) -> None:
        super().prepare()
        self.before, self.after = (torch.from_numpy(part).to(self.device) for part in self.dataset.expert_transitions())
        self.prior = self.config.prior if len(self.before) else 0.0
        if self.config.prior and not self.prior:
            note = "the expert is given without trajectories of whole states: sail goes by its reward alone"
            console.note(f"{self.job.stage}: {note}")
        if self.prior:
            self.inverse = sail.InverseModel(*self.shape)
            initialise(self.inverse, self.generator)
            self.modules["inverse"] = self.inverse.to(self.device)
            self.optimisers["inverse"] = Adam(self.inverse.parameters(), self.config.lr)

    def reward_of(self, logits: Tensor) -> Tensor:
        return sail.reward(logits, self.job.inputs["disc"].header.metrics["reward_expert"])

    def learn_more(self, s: Tensor, after: Tensor, a: Tensor) -> None:
        if self.prior:
            # A row that stays where it is shows no action: its next state is not known, or it is an absorbing one.
            moves = (after != s).any(-1)
            descend(sail.action_error(self.inverse(s, after), a, moves), [self.optimisers["inverse"]])

    def regulariser(self) -> Tensor | float:
        if not self.prior:
            return 0.0
        rows = torch.randint(len(self.before), (self.config.batch,), generator=self.generator)
        with torch.no_grad():
            wanted = self.inverse(self.before[rows], self.after[rows])
        return self.prior * sail.action_error(self.policy.mode(self.before[rows]), wanted)


class RCE(TD3BC):
    """rce: the critic classifies future success; expert states are the examples of it."""

    def prepare(self) -> None:
        self.examples = torch.from_numpy(np.array(self.dataset["expert/observations"])).to(self.device)

    def critic_loss(self, rows: Tensor, s: Tensor, a: Tensor, next_q: Tensor) -> Tensor:
        batch = self.config.batch
        examples = self.examples[torch.randint(len(self.examples), (batch,), generator=self.generator)]
        with torch.no_grad():
            acted = self.policy_target.mode(examples)
        logits, success = self.critic(torch.cat([s, examples]), torch.cat([a, acted])).split(batch, dim=1)
        return rce.classifier_loss(logits, success, next_q, self.config.gamma)

    def worth(self, q: Tensor) -> Tensor:
        return rce.success(q)


def refuse_data(algo: str, data: Artifact) -> None:
    """Refuse, before anything runs, data that the algorithm cannot learn from."""
    if algo == "rce" and not Dataset.of(data).expert_is_whole():
        raise InputError("rce needs whole expert states, because its classifier sees the imitator's beside them")
    if algo == "td3bc":
        without = [source["label"] for source in data.header.metrics["offline"] if not source.get("rewards", True)]
        if without or not data.arrays["rewards"].any():
            which = f"{without[0]} holds none" if without else "every one of them is 0"
            raise InputError(f"td3bc learns from the data's rewards, but {which}")


LEARNERS: dict[str, type[TD3BC]] = {"td3bc": TD3BC, "oril": ORIL, "sail": SAIL, "rce": RCE}
