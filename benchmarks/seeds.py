"""Two seeds at once on two cores against one: how much of the second core is lost to shared caches and memory.

    python benchmarks/seeds.py [--steps 200] [--rounds 3]

Every process runs the value and the policy update of `step.py` with one thread, as the seeds of `smodice run` do. Only
an otherwise idle machine gives an honest figure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import Any

import torch
from step import ours, random_data


def seed(steps: int, ready: Any, go: Any, done: Any) -> None:
    """One process: prepare, wait for the others, then run the steps and say so."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    value_step, policy_step = ours(random_data())
    value_step()
    policy_step()
    ready.release()
    go.wait()
    for _ in range(steps):
        value_step()
        policy_step()
    done.release()


def steps_per_second(processes: int, steps: int) -> float:
    """Value + policy steps a second of all processes together."""
    context = multiprocessing.get_context("spawn")
    ready, go, done = context.Semaphore(0), context.Event(), context.Semaphore(0)
    running = [context.Process(target=seed, args=(steps, ready, go, done)) for _ in range(processes)]
    for process in running:
        process.start()
    for _ in running:
        ready.acquire()
    began = time.monotonic()
    go.set()
    for _ in running:
        done.acquire()
    seconds = time.monotonic() - began
    for process in running:
        process.join()
    return processes * steps / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = [tuple(steps_per_second(n, options.steps) for n in (1, 2)) for _ in range(options.rounds)]
    one, two = (max(column) for column in zip(*rounds, strict=True))
    print(f"value + policy steps a second: one seed {one:.0f}, two seeds at once {two:.0f} together, {two / one:.2f}x")


if __name__ == "__main__":
    main()
