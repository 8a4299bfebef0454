"""Simulating data: `sim:hopper-random` on every core against a plain gymnasium loop.

    python benchmarks/simulate.py [--env hopper] [--steps 60000] [--repeats 3] [--json]

Both make the same kind of rows (uniform actions, float32 columns kept). The loop is one process, as such a script is
usually written; ours starts its processes inside the measured time. Best of several: other work only ever adds.

Beside them, in microseconds of processor time: what a row costs in one process of ours, and what MuJoCo alone takes for
the same steps, from the same states with the same actions.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from itertools import pairwise

import gymnasium
import mujoco
import numpy as np

from smodice_cli import rollout, sources
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


def in_one_process(env_name: str, steps: int) -> tuple[float, float]:
    """Processor microseconds a row of ours, and of MuJoCo alone on the same episodes."""
    blocks = list(sources.parse(f"sim:{env_name}-random#{steps}").episodes(env_name, 0, 1))  # builds what is built once
    began = time.process_time()
    blocks = list(sources.parse(f"sim:{env_name}-random#{steps}").episodes(env_name, 0, 1))
    own = time.process_time() - began
    env, alone, rows, number = rollout.environment(env_name).unwrapped, 0.0, 0, 0
    for block in blocks:
        for first, last in pairwise(block.offsets.tolist()):
            env.reset(seed=rollout.seeded(0, number)[1])
            ctrl, actions = env.data.ctrl, list(block.actions[first:last])
            began = time.process_time()
            for action in actions:
                ctrl[:] = action
                mujoco.mj_step(env.model, env.data, env.frame_skip)
            alone += time.process_time() - began
            rows, number = rows + len(actions), number + 1
    return 1e6 * own / rows, 1e6 * alone / rows


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
    loops, simulations, rows = [], [], []
    for _ in range(options.repeats):  # in turn, so that both meet the same conditions
        loops.append(rate(plain_loop, options.env, options.steps))
        simulations.append(rate(ours, options.env, options.steps))
        rows.append(in_one_process(options.env, options.steps // 10))
    result = {
        "env": options.env,
        "steps": options.steps,
        "cores": cores(),
        "loop_rows_per_second": max(loops),
        "sim_rows_per_second": max(simulations),
        "ratio": max(simulations) / max(loops),
        "microseconds_a_row": min(own for own, _ in rows),
        "microseconds_of_mujoco": min(alone for _, alone in rows),
        "peak_mb_of_a_worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{result['env']}: gymnasium loop {result['loop_rows_per_second']:,.0f} rows/s, sim: on {result['cores']} "
            f"cores {result['sim_rows_per_second']:,.0f} rows/s: {result['ratio']:.2f} x; a row takes "
            f"{result['microseconds_a_row']:.0f} us, of which MuJoCo {result['microseconds_of_mujoco']:.0f}; "
            f"peak memory {result['peak_mb_of_a_worker']:.0f} MB"
        )


if __name__ == "__main__":
    main()
