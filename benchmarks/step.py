"""Speed of one value + policy step, in one run on one machine: ours, the official way, and the bare matrix products.

    python benchmarks/step.py            # or: make bench

"Official way" is the same update written as the published code is organised (from the paper's equations): value and
policy in one loop, three forward passes for s, s' and s_0, the reward network evaluated on every batch, weights
recomputed from fresh values, unfused Adam. All at batch 256, one thread, 11-dimensional states, 3-dimensional actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from smodice_cli.algos.nets import Discriminator, TanhGaussianPolicy, ValueFunction, initialise, log_prob
from smodice_cli.algos.smodice import average, bellman_residual, policy_mse, value_loss
from smodice_cli.config import PolicyConfig, ValueConfig
from smodice_cli.stages.trainer import adam, descend

STATE, ACTION, HIDDEN, BATCH, ROWS = 11, 3, 256, 256, 200_000
ROUNDS, STEPS = 7, 40

generator = torch.Generator().manual_seed(0)
states, next_states = torch.randn(ROWS, STATE, generator=generator), torch.randn(ROWS, STATE, generator=generator)
actions = torch.rand(ROWS, ACTION, generator=generator) * 2 - 1
reward = torch.randn(ROWS, generator=generator)
initial = torch.randn(5_000, STATE, generator=generator)


def networks() -> tuple[ValueFunction, TanhGaussianPolicy, Discriminator]:
    zero, one, limit = torch.zeros(STATE), torch.ones(STATE), torch.ones(ACTION)
    value = ValueFunction(zero, one, HIDDEN, 1.0)
    policy = TanhGaussianPolicy(zero, one, -limit, limit, HIDDEN)
    disc = Discriminator(zero, one, range(STATE), HIDDEN)
    for module in (value, policy, disc):
        initialise(module, generator)
    return value, policy, disc


def ours() -> tuple[Callable[[], None], Callable[[], None]]:
    """The steps of train-value and train-policy."""
    value, policy, _ = networks()
    averaged = networks()[1]
    config, cloning = ValueConfig(), PolicyConfig()
    nu = torch.nn.Parameter(torch.zeros(()))
    value_adams = [adam(value.parameters(), 3e-4), adam([nu], 3e-4)]
    policy_adam = adam(policy.parameters(), 3e-4)

    def value_step() -> None:
        rows = torch.randint(ROWS, (BATCH,), generator=generator)
        starts = initial[torch.randint(len(initial), (config.initial_batch,), generator=generator)]
        v, v_next, v0 = value(torch.cat([states[rows], next_states[rows], starts])).split([BATCH, BATCH, len(starts)])
        residual = bellman_residual(reward[rows], v, v_next, 0.99)
        loss, _ = value_loss("kl", residual, v0, 0.99, 1.0, config.cap, nu)
        descend(loss, value_adams)

    def policy_step() -> None:
        rows = torch.randint(ROWS, (BATCH,), generator=generator)
        mean, _ = policy(states[rows])
        loss = policy_mse(mean, policy.unit(actions[rows]), torch.ones(BATCH))
        descend(loss, [policy_adam])
        average(averaged, policy, cloning.average)

    return value_step, policy_step


def official_way() -> Callable[[], None]:
    """One joint step: discriminator reward, value loss, fresh weights, weighted likelihood with entropy constraint."""
    value, policy, disc = networks()
    log_temperature = torch.zeros((), requires_grad=True)
    value_adam = torch.optim.Adam(value.parameters(), lr=3e-4, weight_decay=1e-4, fused=False, foreach=False)
    policy_adam = torch.optim.Adam(policy.parameters(), lr=3e-4, fused=False, foreach=False)
    temperature_adam = torch.optim.Adam([log_temperature], lr=3e-4, fused=False, foreach=False)

    def step() -> None:
        rows = torch.randint(ROWS, (BATCH,), generator=generator)
        starts = initial[torch.randint(len(initial), (BATCH,), generator=generator)]
        s, s_next, a = states[rows], next_states[rows], actions[rows]
        with torch.no_grad():
            r = disc(s)
        v, v_next, v0 = value(s), value(s_next), value(starts)
        e = r + 0.99 * v_next - v
        loss = 0.01 * v0.mean() + torch.logsumexp(e, 0)
        value_adam.zero_grad()
        loss.backward()
        value_adam.step()
        weights = e.detach().exp()
        mean, log_std = policy(s)
        sample = torch.tanh(mean + log_std.exp() * torch.randn(mean.shape, generator=generator))
        negative_entropy = log_prob(mean, log_std, sample)
        temperature = log_temperature.exp().detach()
        policy_loss = -(weights * log_prob(mean, log_std, a)).mean() + temperature * negative_entropy.mean()
        policy_adam.zero_grad()
        policy_loss.backward()
        policy_adam.step()
        temperature_loss = -(log_temperature * (negative_entropy.detach() - ACTION).mean())
        temperature_adam.zero_grad()
        temperature_loss.backward()
        temperature_adam.step()

    return step


def matrix_products() -> Callable[[], None]:
    """Forward and backward products of our value + policy step and nothing else."""
    starts = ValueConfig().initial_batch
    jobs = []
    for rows, outputs in ((2 * BATCH + starts, 1), (BATCH, ACTION)):
        widths = [(STATE, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, outputs)]
        jobs += [(torch.randn(rows, i), torch.randn(i, o), torch.randn(rows, o), i != STATE) for i, o in widths]

    def products() -> None:
        for x, w, gradient, needs_input_gradient in jobs:
            x @ w
            x.T @ gradient
            if needs_input_gradient:
                gradient @ w.T

    return products


def interleaved(functions: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Best processor milliseconds a call over interleaved rounds, so that a busy machine hurts all alike."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for name, function in functions.items():
            function()
            began = time.process_time()
            for _ in range(STEPS):
                function()
            best[name] = min(best[name], 1000 * (time.process_time() - began) / STEPS)
    return best


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    value_step, policy_step = ours()
    found = interleaved(
        {"value": value_step, "policy": policy_step, "official way": official_way(), "products": matrix_products()}
    )
    both = found["value"] + found["policy"]
    print(f"{'one step at batch 256, one thread':42} {'ms':>6}")
    for name, label in (("value", "ours, value"), ("policy", "ours, policy")):
        print(f"{label:42} {found[name]:6.2f}")
    print(f"{'ours, value + policy':42} {both:6.2f}")
    print(f"{'official way, joint step':42} {found['official way']:6.2f}   {found['official way'] / both:.2f}x ours")
    print(f"{'matrix products alone':42} {found['products']:6.2f}   {100 * found['products'] / both:.0f} % of our time")


if __name__ == "__main__":
    main()
