"""Reading a D4RL-layout file: time and peak memory of build-dataset, and reading against a loop over rows.

    python benchmarks/read_d4rl.py [--rows 1200000] [--json]

The file has Hopper's shapes and D4RL's columns, infos included, once stored plainly and once gzip-compressed in chunks
as D4RL stores it. Time and memory are those of the whole `smodice build-dataset` command in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from smodice_cli.sources import layouts
from smodice_cli.sources.layouts.d4rl import COLUMNS

OBSERVATIONS, ACTIONS, HORIZON = 11, 3, 1000
LOOP_ROWS = 100_000  # the loop is measured on the first rows only


def write_file(path: Path, rows: int, compression: str | None) -> None:
    """A file with D4RL's columns and Hopper's shapes: walks with a float's full mantissa, as real states have."""
    rng = np.random.default_rng(0)
    states = rng.standard_normal((rows + 1, OBSERVATIONS)).astype(np.float32)
    columns = {
        "observations": states[:-1],
        "next_observations": states[1:],
        "actions": rng.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32),
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % HORIZON == HORIZON - 1,
        "infos/qpos": rng.standard_normal((rows, 6)),
        "infos/qvel": rng.standard_normal((rows, 6)),
        "infos/action_log_probs": rng.standard_normal(rows).astype(np.float32),
    }
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file.create_dataset(name, data=column, compression=compression)


def build(path: Path, out: Path) -> dict[str, float]:
    """Seconds, processor seconds and peak memory (MB) of the command, from its own process."""
    command = [sys.executable, "-m", "smodice_cli", "build-dataset", "--quiet", "--force", "--env", "hopper"]
    command += ["--offline", f"file:{path}", "--expert", f"file:{path}#traj=0", "--out", str(out)]
    began = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"build-dataset failed: {command}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"seconds": time.perf_counter() - began, "cpu_seconds": cpu, "peak_mb": usage.ru_maxrss / 1024}


def read(path: Path) -> int:
    """Our reader, to the last row."""
    with layouts.opened(path) as recording:
        return sum(block.rows for block in recording.episodes(HORIZON))


def read_by_rows(path: Path, rows: int) -> int:
    """How the official loader goes about it: every row of every column on its own, episodes joined at the end."""
    with h5py.File(path, "r") as file:
        data = {name: file[name][:rows] for name in COLUMNS}
    finished: list[dict[str, np.ndarray]] = []
    episode: dict[str, list[np.ndarray]] = {name: [] for name in data}
    for row in range(rows):
        for name, column in data.items():
            episode[name].append(column[row].astype(np.float32))
        if data["terminals"][row] or data["timeouts"][row] or row == rows - 1:
            finished.append({name: np.array(values) for name, values in episode.items()})
            episode = {name: [] for name in data}
    return sum(len(part["rewards"]) for part in finished)


def best(repeats: int, function, *arguments) -> float:
    """The shortest of several runs, in seconds: other work on the machine only ever adds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, compression in (("plain", None), ("gzip", "gzip")):
            path = Path(folder) / f"{kind}.hdf5"
            write_file(path, options.rows, compression)
            size = path.stat().st_size / 1e6
            runs = [build(path, Path(folder) / "dataset.h5") for _ in range(options.repeats)]
            fastest = min(runs, key=lambda run: run["seconds"])
            ours = options.rows / best(options.repeats, read, path)
            loop = LOOP_ROWS / best(options.repeats, read_by_rows, path, LOOP_ROWS)
            results[kind] = {
                "rows": options.rows,
                "file_mb": size,
                "build_seconds": fastest["seconds"],
                "build_cpu_seconds": fastest["cpu_seconds"],
                "build_peak_mb": fastest["peak_mb"],
                "peak_over_file": fastest["peak_mb"] * 1.048576 / size,
                "read_rows_per_second": ours,
                "loop_rows_per_second": loop,
                "ratio": ours / loop,
            }
            path.unlink()
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for kind, r in results.items():
        print(
            f"{kind:>5}: {r['rows']:,} rows, {r['file_mb']:.0f} MB; build-dataset {r['build_seconds']:.2f} s "
            f"({r['build_cpu_seconds']:.2f} s of processor time), "
            f"peak {r['build_peak_mb']:.0f} MB ({r['peak_over_file']:.2f} x the file); reading "
            f"{r['read_rows_per_second'] / 1e6:.2f} M rows/s, row loop {r['loop_rows_per_second'] / 1e6:.3f}: "
            f"{r['ratio']:.0f} x"
        )


if __name__ == "__main__":
    main()
