"""Time and peak memory of the tabular solver against the size of the grid, beside the paper's dense listing.

    python benchmarks/tabular_scaling.py                      the whole table, a few minutes
    python benchmarks/tabular_scaling.py --sizes 9 15 25      a quick look

Each measurement runs in a process of its own (peak memory is a process's) with one thread, on the example task with
every pair tried about 20 times, so that non-zeros are proportional to states. The clock covers the empirical MDP, d^O,
the solution and the policy.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

SIZES = (9, 15, 25, 40, 60, 90, 120, 150)
DENSE_LIMIT = 36  # cells along a side; the dense listing needs minutes beyond
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
TABLE = Path(__file__).with_suffix(".md")


@dataclass(frozen=True)
class Measured:
    """One run."""

    method: str
    size: int
    gamma: float
    nonzeros: int
    seconds: float  # of processor time, which other work on the machine does not stretch
    wall: float
    megabytes: float
    iterations: int
    residual: float


def scaled_gamma(size: int) -> float:
    """The discount whose horizon grows like the time a random walk needs to cross the grid; 0.99 at size 9."""
    return 1.0 - 0.01 * (9.0 / size) ** 2


def measure(method: str, size: int, gamma: float) -> Measured:
    """Solve one grid by one method in this process."""
    import numpy as np

    from smodice_cli.algos import tabular
    from smodice_cli.envs import gridworld

    grid = gridworld.paper_grid(size)
    counts = gridworld.collect(grid, max(200, 80 * size * size // 50), 50, seed=0, anywhere=True)
    expert = np.zeros(grid.n_states)
    expert[list(grid.goals)] = 1.0
    smoothing = 1e-4 * 81 / grid.n_states
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, clock = time.process_time(), time.perf_counter()
    mdp, behaviour = tabular.maximum_likelihood(counts, grid.initial, gamma)
    offline = tabular.occupancy(mdp, behaviour)
    reward = tabular.log_ratio_reward(expert, offline.sum(axis=1), smoothing)
    if method == "dense listing":
        iterations, residual = 1, dense_listing(mdp, offline, reward)
    else:
        found = tabular.solve(mdp, offline, reward, method, behaviour=behaviour)
        iterations, residual = found.iterations, found.flow_residual
    seconds, wall = time.process_time() - began, time.perf_counter() - clock
    peak = max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024
    return Measured(method, size, gamma, mdp.transition.nnz, seconds, wall, peak, iterations, residual)


def dense_listing(mdp, offline, reward) -> float:
    """The paper's algorithm with dense matrices and a pseudo-inverse; returns the flow residual."""
    import numpy as np

    weight = offline.ravel()
    stay = np.repeat(np.eye(mdp.n_states), mdp.n_actions, axis=0)
    a = mdp.gamma * mdp.transition.toarray() - stay
    d = np.diag(weight)
    hessian = a.T @ d @ a
    value = np.linalg.pinv(hessian) @ -((1 - mdp.gamma) * mdp.initial + a.T @ d @ (1 + stay @ reward))
    xi = stay @ reward + a @ value + 1
    return float(np.abs((1 - mdp.gamma) * mdp.initial + a.T @ (weight * xi)).max())


def exponent(runs: list[Measured], smallest: int) -> float:
    """The slope of log time over log states (non-zeros are proportional), from `smallest` cells a side on."""
    import numpy as np

    large = [run for run in runs if run.size >= smallest]
    if len(large) < 2:
        return float("nan")
    return float(np.polyfit(np.log([r.size**2 for r in large]), np.log([r.seconds for r in large]), 1)[0])


def plan(sizes: list[int]) -> list[tuple[str, int, float]]:
    """What is measured."""
    jobs = [(method, size, 0.99) for method in ("chi2", "kl") for size in sizes]
    jobs += [(method, size, scaled_gamma(size)) for method in ("chi2", "kl") for size in sizes if size >= 60]
    dense = [size for size in sorted({*sizes, 20, 30, DENSE_LIMIT}) if size <= DENSE_LIMIT]
    return jobs + [("dense listing", size, 0.99) for size in dense]


def table(runs: list[Measured]) -> str:
    """The runs as Markdown, with the exponents and the ratio to the dense listing."""
    head = [
        "method",
        "grid",
        "states",
        "non-zeros",
        "gamma",
        "CPU s",
        "wall s",
        "peak MB",
        "factorisations",
        "flow residual",
    ]
    rows = ["| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)]
    for run in runs:
        cells = [run.method, f"{run.size} x {run.size}", f"{run.size**2:,}", f"{run.nonzeros:,}", f"{run.gamma:.6g}"]
        cells += [
            f"{run.seconds:.3f}",
            f"{run.wall:.3f}",
            f"{run.megabytes:.0f}",
            str(run.iterations),
            f"{run.residual:.0e}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    plain = {
        name: [r for r in runs if r.method == name and r.gamma == 0.99] for name in ("chi2", "kl", "dense listing")
    }
    lines = [
        f"- {name}: processor time grows like states^{exponent(found, 20 if 'dense' in name else 40):.2f}"
        for name, found in plain.items()
    ]
    for size in sorted({r.size for r in plain["dense listing"]} & {r.size for r in plain["chi2"]}):
        pair = [next(r.seconds for r in plain[name] if r.size == size) for name in ("dense listing", "chi2")]
        lines.append(f"- {size} x {size}: dense listing / sparse chi2 = {pair[0] / pair[1]:.1f}")
    return "\n".join([*rows, "", *lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="cells along a side")
    parser.add_argument("--write", action="store_true", help=f"save the table as {TABLE.name}")
    options = parser.parse_args()
    for name in THREADS:
        os.environ[name] = "1"
    runs = []
    context = multiprocessing.get_context("spawn")
    for job in plan(options.sizes):
        with context.Pool(1) as pool:
            runs.append(pool.apply(measure, job))
        run = runs[-1]
        print(f"{run.method:>13} {run.size:4d}  {run.seconds:8.3f} s  {run.megabytes:6.0f} MB", flush=True)
    text = table(runs)
    print("\n" + text)
    if options.write:
        TABLE.write_text(
            "# Tabular solver: time and memory against size\n\nThis folder's "
            "`tabular_scaling.py`; one thread. Non-zeros are those of the empirical T.\n\n" + text
        )


if __name__ == "__main__":
    main()
