"""Simulating data: `sim:hopper-random` on every core against a plain gymnasium loop.

    python benchmarks/simulate.py [--env hopper] [--steps 60000] [--repeats 3] [--json]

Both make the same kind of rows (uniform actions, float32 columns kept). The loop is one process, as such a script is
usually written; ours starts its processes inside the measured time. Best of several: other work only ever adds.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import gymnasium
import numpy as np

from smodice_cli import sources
from smodice_cli.parallel import cores

GYMNASIUM = {"hopper": "Hopper-v5", "walker2d": "Walker2d-v5", "halfcheetah": "HalfCheetah-v5", "ant": "Ant-v5"}


def plain_loop(env_name: str, steps: int) -> int:
    """Collect rows the usual way: one environment, one loop, lists turned into arrays."""
    env = gymnasium.make(GYMNASIUM[env_name])
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    rows = []
    for _ in range(steps):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((observation, action, reward, following, terminated, truncated))
        observation = env.reset()[0] if terminated or truncated else following
    columns = [np.asarray(column, np.float32) for column in zip(*rows, strict=True)]
    return len(columns[0])


def ours(env_name: str, steps: int) -> int:
    """The same number of rows from the `sim:` source."""
    source = sources.parse(f"sim:{env_name}-random#{steps}")
    return sum(block.rows for block in source.episodes(env_name, 0, cores()))


def rate(function, env_name: str, steps: int) -> float:
    """Rows a second."""
    began = time.perf_counter()
    rows = function(env_name, steps)
    return rows / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", choices=list(GYMNASIUM), default="hopper")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loops, simulations = [], []
    for _ in range(options.repeats):  # in turn, so that both meet the same conditions
        loops.append(rate(plain_loop, options.env, options.steps))
        simulations.append(rate(ours, options.env, options.steps))
    result = {
        "env": options.env,
        "steps": options.steps,
        "cores": cores(),
        "loop_rows_per_second": max(loops),
        "sim_rows_per_second": max(simulations),
        "ratio": max(simulations) / max(loops),
        "peak_mb_of_a_worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{result['env']}: gymnasium loop {result['loop_rows_per_second']:,.0f} rows/s, sim: on {result['cores']} "
            f"cores {result['sim_rows_per_second']:,.0f} rows/s: {result['ratio']:.2f} x; a worker's peak memory "
            f"{result['peak_mb_of_a_worker']:.0f} MB"
        )


if __name__ == "__main__":
    main()
