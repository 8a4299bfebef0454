"""Processor time from dataset.h5 to a policy with 95 % of the expert's return: our stages against the official way.

    python benchmarks/hopper.py runs/hopper/dataset.h5 [--steps 60000] [--episodes 5] [--times 0]    # make bench-hopper
    python benchmarks/hopper.py runs/halfcheetah/dataset.h5 --times 10                          # make bench-halfcheetah

Ours is train-disc, train-value and train-policy with default settings; the policy's snapshots are scored, and the
first good one costs its share of the policy's training. The official way (`official.py`) trains its discriminator and
then V and policy together at batch 256, and is scored every 5,000 steps. Both run one thread in this process; playing
episodes costs neither of them anything. `--steps` bounds the official loop and every stage of ours
whose number of steps does not follow from the data.

Where the official way may never get there, `--times 10` gives it ten times our processor time instead of `--steps`, and
tells its scores once ours is done, and in the end.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from official import Official

from smodice_cli import artifacts, envs, rollout
from smodice_cli.algos.acting import SNAPSHOT_STEPS, NumpyPolicy
from smodice_cli.data import Dataset
from smodice_cli.engine import make
from smodice_cli.stages import DEFAULT, chain

GOOD = 0.95  # of the expert's return
EVERY, DISC_UPDATES = 5_000, 4_000  # of the official loop: steps between scores, updates of its discriminator
AT_A_TIME = 100  # its steps between looks at the clock
Point = tuple[int, float, NumpyPolicy]  # policy steps, processor seconds since dataset.h5, the policy


def timed(work: Callable[[], Any]) -> float:
    """Processor seconds of a piece of work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def ours(data: Path, folder: Path, limit: int) -> Iterator[Point]:
    """The snapshots of our policy, in order."""
    before = seconds = 0.0
    start = data
    for stage in chain(DEFAULT)[1:-1]:
        before, config = before + seconds, stage.config_of(DEFAULT)()
        config = replace(config, steps=min(limit, config.steps))  # type: ignore[call-arg, attr-defined]
        seconds = timed(lambda: make(stage, start, folder / stage.file, config))  # noqa: B023 (called at once)
        start = folder / stage.file
    stacked = artifacts.load(stage.companion(start, "snapshots"), "snapshots").arrays
    steps = stacked[SNAPSHOT_STEPS].tolist()
    for index, step in enumerate(steps):
        snapshot = NumpyPolicy({name: tensors[index] for name, tensors in stacked.items()})
        yield step, before + seconds * step / steps[-1], snapshot


def official(data: Path, limit: int, marks: list[float]) -> Iterator[Point]:
    """The policy of the joint loop every so many steps; with marks, when it has had each so many seconds."""
    began = time.process_time()
    loop = Official(Dataset.of(artifacts.load(data, "dataset")))
    seconds = time.process_time() - began

    def some(step: Callable[[], None], count: int) -> None:
        for _ in range(count):
            step()

    seconds += timed(lambda: some(loop.discriminate, min(limit, DISC_UPDATES)))
    done = 0
    for mark in marks:
        while seconds < mark:
            seconds += timed(lambda: some(loop.step, AT_A_TIME))
            done += AT_A_TIME
        yield done, seconds, NumpyPolicy(loop.tensors())
    for start in range(0, limit if not marks else 0, EVERY):
        count = min(EVERY, limit - start)
        seconds += timed(lambda count=count: some(loop.step, count))  # type: ignore[misc]
        yield start + count, seconds, NumpyPolicy(loop.tensors())


def mean_return(policy: NumpyPolicy, env: Any, episodes: int) -> float:
    """The mean return of the policy's mode over seeded episodes."""
    played = (rollout.begin(env, policy, None, seed=episode)[1] for episode in range(episodes))
    return float(np.mean([sum(float(step.reward) for step in steps) for steps in played]))


def first_good(
    name: str, points: Iterator[Point], env: Any, episodes: int, expert: float, good: float = GOOD
) -> float | None:
    """Print the score of every point up to the first good one, and return that one's time."""
    for step, seconds, policy in points:
        share = mean_return(policy, env, episodes) / expert
        print(f"{name:13} {step:7,} steps {seconds:8.1f} s {100 * share:6.1f} % of the expert", flush=True)
        if share >= good:
            return seconds
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument(
        "--times", type=float, default=0.0, help="our processor time, of which the official way gets so many times"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    artifact = artifacts.load(options.data, "dataset")
    if artifact.header.config["absorbing"]:
        parser.error("the data must be without an absorbing state")
    env, expert = envs.make(artifact.header.config["env"]), float(artifact.header.metrics["expert_return"])
    with tempfile.TemporaryDirectory() as folder:
        own = first_good("ours", ours(options.data, Path(folder), options.steps), env, options.episodes, expert)
    if options.times and own is None:
        raise SystemExit(f"ours did not reach {100 * GOOD:.0f} % of the expert: there is no time to give a multiple of")
    marks = [own, own * options.times] if options.times and own else []
    points = official(options.data, options.steps, marks)
    other = first_good("official way", points, env, options.episodes, expert, math.inf if marks else GOOD)
    for name, seconds in (("ours", own), *([] if marks else [("official way", other)])):
        reached = f"{seconds:.0f} s" if seconds else "not reached"
        print(f"{name:13} {100 * GOOD:.0f} % of the expert: {reached}")
    if own and other:
        print(f"ratio {other / own:.1f}")


if __name__ == "__main__":
    main()
