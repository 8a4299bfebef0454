"""Speed of one gradient step of every algorithm against the same maths written plainly, in one run on one machine.

    python benchmarks/baselines.py       # or: make bench

"Plainly" is straightforward PyTorch as the published codes have it: two critics one after the other, a forward pass for
each kind of state, torch's Adam on many small tensors, targets that follow parameter by parameter. Ours is the very
learner that train-policy runs. Batch 256, one thread, 11-dimensional states, 3-dimensional actions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from step import ACTION, BATCH, HIDDEN, STATE, interleaved
from torch import Tensor, nn

from smodice_cli.algos import ALGORITHMS, clone
from smodice_cli.algos.discriminator import Config, new_discriminator
from smodice_cli.algos.td3bc import TD3BC
from smodice_cli.data import Dataset

ROWS, EXPERT = 100_000, 1000
GAMMA, TAU, NOISE, CLIP, ALPHA = 0.99, 5e-3, 0.2, 0.5, 2.5

rng = np.random.default_rng(0)
limit = np.ones(ACTION, np.float32)
arrays: dict[str, np.ndarray] = {
    "observations": rng.normal(size=(ROWS, STATE)).astype(np.float32),
    "next_observations": rng.normal(size=(ROWS, STATE)).astype(np.float32),
    "actions": rng.uniform(-1, 1, (ROWS, ACTION)).astype(np.float32),
    "rewards": rng.normal(size=ROWS).astype(np.float32),
    "terminals": np.zeros(ROWS, np.uint8),
    "expert/observations": rng.normal(size=(EXPERT, STATE)).astype(np.float32),
    "expert/actions": rng.uniform(-1, 1, (EXPERT - 1, ACTION)).astype(np.float32),
    "expert/action_rows": np.arange(EXPERT - 1),
    "expert/offsets": np.array([0, EXPERT]),
    "mean": np.zeros(STATE, np.float32),
    "std": np.ones(STATE, np.float32),
    "action_low": -limit,
    "action_high": limit,
}
dataset = Dataset(arrays, "hopper", list(range(STATE)), False, ["made up"])
states, following, actions, rewards = (
    torch.from_numpy(arrays[name]) for name in ("observations", "next_observations", "actions", "rewards")
)
expert = torch.from_numpy(arrays["expert/observations"])
weights = torch.from_numpy(rng.exponential(size=ROWS).astype(np.float32))
generator = torch.Generator().manual_seed(0)


def stepping(update: Callable[[int], Any]) -> Callable[[], None]:
    """An update that counts its steps."""
    done = [0]

    def step() -> None:
        update(done[0])
        done[0] += 1

    return step


def ours(algo: str) -> Callable[[], None]:
    """The learner of train-policy."""
    disc = new_discriminator(dataset, Config(), generator).state_dict()
    upstream = {name: tensor.numpy() for name, tensor in disc.items()}
    upstream |= {"w": weights.numpy(), "reward": rewards.numpy(), "expert_reward": np.zeros(EXPERT, np.float32)}
    found = ALGORITHMS[algo]
    single = {"members": 1} if issubclass(found.Config, clone.Config) else {}  # as the plain one is
    learner = found.learner(dataset, found.Config(algo=algo, **single), upstream, generator, torch.device("cpu"))
    return stepping(learner.update)


# --- the same maths, plainly -----------------------------------------------------------------------------------------


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs)
    )


def plain_adam(*modules: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return torch.optim.Adam(parameters, lr=3e-4, fused=False, foreach=False)


def descend(loss: Tensor, optimiser: torch.optim.Optimizer) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def follow(target: nn.Module, source: nn.Module, share: float) -> None:
    for own, other in zip(target.parameters(), source.parameters(), strict=True):
        own.data.copy_(share * other.data + (1 - share) * own.data)


def plain_cloning(algo: str) -> Callable[[], None]:
    policy = nn.Sequential(mlp(STATE, ACTION), nn.Tanh())
    averaged, optimiser = copy.deepcopy(policy), plain_adam(policy)
    few = algo == "bc-expert-only"
    s, a = (expert[:-1], torch.from_numpy(arrays["expert/actions"])) if few else (states, actions)
    w = weights if ALGORITHMS[algo].starts_from == "value" else torch.ones(len(s))

    def step(count: int) -> None:
        rows = torch.randint(len(s), (BATCH,), generator=generator)
        descend((w[rows] * (policy(s[rows]) - a[rows]).square().sum(-1)).mean(), optimiser)
        follow(averaged, policy, 0.001)

    return stepping(step)


def plain_td3(algo: str) -> Callable[[], None]:
    actor, critics = nn.Sequential(mlp(STATE, ACTION), nn.Tanh()), [mlp(STATE + ACTION, 1) for _ in range(2)]
    inverse = nn.Sequential(mlp(2 * STATE, ACTION), nn.Tanh())
    actor_target, critic_targets = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_adam, critic_adam, inverse_adam = plain_adam(actor), plain_adam(*critics), plain_adam(inverse)

    def q(net: nn.Module, s: Tensor, a: Tensor) -> Tensor:
        return net(torch.cat([s, a], 1)).squeeze(1)

    def recursive(s: Tensor, a: Tensor, next_q: Tensor) -> Tensor:
        examples = expert[torch.randint(EXPERT, (BATCH,), generator=generator)]
        with torch.no_grad():
            odds = next_q.sigmoid() / (1 - next_q.sigmoid() + 1e-5)
            y, weight = GAMMA * odds / (1 + GAMMA * odds), 1 + GAMMA * odds
            acted = actor_target(examples)
        loss = torch.zeros(())
        for net in critics:
            loss = loss + F.binary_cross_entropy(q(net, s, a).sigmoid(), y, weight=weight)
            certain = q(net, examples, acted).sigmoid()
            loss = loss + (1 - GAMMA) * F.binary_cross_entropy(certain, torch.ones(BATCH))
        return loss

    def step(count: int) -> None:
        rows = torch.randint(ROWS, (BATCH,), generator=generator)
        s, after, a, r = states[rows], following[rows], actions[rows], rewards[rows]
        with torch.no_grad():
            noise = (torch.randn(a.shape, generator=generator) * NOISE).clamp(-CLIP, CLIP)
            next_a = (actor_target(after) + noise).clamp(-1, 1)
            next_q = torch.min(q(critic_targets[0], after, next_a), q(critic_targets[1], after, next_a))
        if algo == "rce":
            loss = recursive(s, a, next_q)
        else:
            loss = sum((F.mse_loss(q(net, s, a), r + GAMMA * next_q) for net in critics), torch.zeros(()))
        descend(loss, critic_adam)
        if algo == "sail":
            descend(F.mse_loss(inverse(torch.cat([s, after - s], 1)), a), inverse_adam)
        if count % 2:
            acted = actor(s)
            worth = q(critics[0], s, acted)
            worth = worth.sigmoid() if algo == "rce" else worth
            policy_loss = -ALPHA / worth.abs().mean().detach() * worth.mean() + F.mse_loss(acted, a)
            if algo == "sail":
                some = torch.randint(EXPERT - 1, (BATCH,), generator=generator)
                before, then = expert[some], expert[some + 1]
                policy_loss = policy_loss + F.mse_loss(
                    actor(before), inverse(torch.cat([before, then - before], 1)).detach()
                )
            descend(policy_loss, actor_adam)
            follow(actor_target, actor, TAU)
            for target, net in zip(critic_targets, critics, strict=True):
                follow(target, net, TAU)

    return stepping(step)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    print(f"{'one gradient step at batch 256':18}{'ours, /s':>10}{'plain, /s':>11}{'ratio':>8}")
    for algo, found in ALGORITHMS.items():
        plain = plain_td3(algo) if isinstance(found, TD3BC) else plain_cloning(algo)
        timed = interleaved({"ours": ours(algo), "plain": plain})
        mine, theirs = 1000 / timed["ours"], 1000 / timed["plain"]
        print(f"{algo:30}{mine:10.0f}{theirs:11.0f}{mine / theirs:8.2f}")


if __name__ == "__main__":
    main()
