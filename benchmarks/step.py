"""Speed of one value + policy step, in one run on one machine: ours, the official way, and the bare matrix products.

    python benchmarks/step.py            # or: make bench

Ours are the updates that train-value and train-policy execute with their default settings, sampling included, and for
the comparison one network instead of several members; the official way is the joint step of `official.py`. All at batch
256, one thread, 11-dimensional states, 3-dimensional actions, 200,000 rows in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from official import Official

from smodice_cli.algos import dual
from smodice_cli.algos.clone import MEMBERS
from smodice_cli.algos.products import product
from smodice_cli.algos.smodice import SMODICE, Config
from smodice_cli.data import Dataset
from smodice_cli.training import Learner

STATE, ACTION, HIDDEN, BATCH, ROWS, EPISODE = 11, 3, 256, 256, 200_000, 200
ROUNDS, STEPS = 25, 12


def random_data() -> Dataset:
    """Rows without meaning, in episodes that end in a terminal state every other time."""
    rng = np.random.default_rng(0)
    offsets = np.arange(0, ROWS + 1, EPISODE)
    terminals = np.zeros(ROWS, np.uint8)
    terminals[offsets[1::2] - 1] = 1
    arrays: dict[str, np.ndarray] = {
        **{name: rng.normal(size=(ROWS, STATE)).astype(np.float32) for name in ("observations", "next_observations")},
        "actions": rng.uniform(-1, 1, (ROWS, ACTION)).astype(np.float32),
        "rewards": np.zeros(ROWS, np.float32),
        "terminals": terminals,
        "timeouts": np.zeros(ROWS, np.uint8),
        "episode_offsets": offsets,
        "episode_source": np.zeros(len(offsets) - 1, np.int32),
        "mean": np.zeros(STATE, np.float32),
        "std": np.ones(STATE, np.float32),
        "action_low": -np.ones(ACTION, np.float32),
        "action_high": np.ones(ACTION, np.float32),
        "expert/observations": rng.normal(size=(1000, STATE)).astype(np.float32),
    }
    return Dataset(arrays, "hopper", list(range(STATE)), False, ["random"])


def ours(dataset: Dataset) -> tuple[Callable[[], None], ...]:
    """The steps of train-value and train-policy, the latter of one network and of several."""
    generator, device = torch.Generator().manual_seed(0), torch.device("cpu")
    rng = np.random.default_rng(0)
    config = dual.Config(batch=BATCH, hidden=HIDDEN)
    reward, end_reward = (rng.normal(size=n).astype(np.float32) for n in (ROWS, ROWS // EPISODE))
    problem = dual.set_up(dataset, reward, end_reward, config)
    value = dual.ValueLearner(problem, dual.new_value(dataset, config, generator), generator, device)
    w = rng.exponential(size=ROWS)
    clones = [Config(batch=BATCH, hidden=HIDDEN, members=members) for members in (1, MEMBERS)]
    policies = [SMODICE().learner(dataset, own, {"w": w}, generator, device) for own in clones]

    def looked_at(learner: Learner) -> Callable[[], None]:
        return lambda: float(learner.update(0)["loss"])  # type: ignore[return-value]  # as the training loop does

    return tuple(looked_at(learner) for learner in (value, *policies))


def matrix_products(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    """Forward and backward products of our value + policy step and nothing else."""
    jobs = []
    for rows, outputs in ((2 * BATCH + dual.Config.initial_batch, 1), (BATCH, ACTION)):
        widths = [(STATE, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, outputs)]
        jobs += [(torch.randn(rows, i), torch.randn(i, o), torch.randn(rows, o), i != STATE) for i, o in widths]

    def products() -> None:
        for x, w, gradient, needs_input_gradient in jobs:
            multiply(x, w)
            multiply(x.T, gradient)
            if needs_input_gradient:
                multiply(gradient, w.T)

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
    dataset = random_data()
    value_step, policy_step, members_step = ours(dataset)
    functions = {"value": value_step, "policy": policy_step, "members": members_step}
    functions["official way"] = Official(dataset, BATCH, HIDDEN).step
    bare = {"products": matrix_products(product), "torch's products": matrix_products(torch.matmul)}
    found = interleaved(functions | bare)
    both = found["value"] + found["policy"]
    print(f"{'one step at batch 256, one thread':42} {'ms':>6}")
    several = f"ours, policy of {MEMBERS} members, where rows are few"
    for name, label in (("value", "ours, value"), ("policy", "ours, policy of one network"), ("members", several)):
        print(f"{label:42} {found[name]:6.2f}")
    print(f"{'ours, value + policy':42} {both:6.2f}")
    print(f"{'official way, joint step':42} {found['official way']:6.2f}   {found['official way'] / both:.2f}x ours")
    for name, label in (("products", "matrix products alone"), ("torch's products", "the same by torch's own")):
        print(f"{label:42} {found[name]:6.2f}   {100 * found[name] / both:.0f} % of our time")


if __name__ == "__main__":
    main()
