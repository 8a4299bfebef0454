"""Reading a million frames of LeRobot parquet and of robomimic HDF5: time and memory beside those of the D4RL reader.

    python benchmarks/read_formats.py [--rows 1000000] [--json]

The same data in each format, an arm's 14 joints and 14 motors in episodes of 500 frames; each is read in a process of
its own, and its memory is what that process adds while it reads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from smodice_cli.sources import layouts
from smodice_cli.sources.source import Choice

WIDTH, LENGTH = 14, 500
CHUNK = 100_000  # frames written at a time
CHOICES = {
    "d4rl": Choice(),
    "robomimic": Choice(parts=("joints",)),
    "lerobot": Choice(),
    "csv": Choice(columns=("s*",), actions=("a*",), episode="episode"),
}


def rows_of(start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(start)
    states = rng.standard_normal((count, WIDTH)).astype(np.float32)
    return states, rng.uniform(-1, 1, (count, WIDTH)).astype(np.float32)


def write_d4rl(path: Path, rows: int) -> None:
    with h5py.File(path, "w") as file:
        columns = [file.create_dataset(name, (rows, WIDTH), np.float32) for name in ("observations", "actions")]
        for start in range(0, rows, CHUNK):
            for column, part in zip(columns, rows_of(start, min(CHUNK, rows - start)), strict=True):
                column[start : start + len(part)] = part
        file["timeouts"] = np.arange(rows) % LENGTH == LENGTH - 1


def write_robomimic(path: Path, rows: int) -> None:
    with h5py.File(path, "w") as file:
        for start in range(0, rows, CHUNK):
            states, actions = rows_of(start, min(CHUNK, rows - start))
            for first in range(0, len(states), LENGTH):
                demo = file.create_group(f"data/demo_{(start + first) // LENGTH}")
                demo["obs/joints"], demo["actions"] = states[first : first + LENGTH], actions[first : first + LENGTH]


def write_lerobot(path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (path / "meta").mkdir(parents=True)
    (path / "data/chunk-000").mkdir(parents=True)
    vector = {"dtype": "float32", "shape": [WIDTH]}
    info = {"codebase_version": "v3.0", "features": {"observation.state": vector, "action": vector}}
    (path / "meta/info.json").write_text(json.dumps(info))
    for start in range(0, rows, CHUNK):
        states, actions = rows_of(start, min(CHUNK, rows - start))
        index = start + np.arange(len(states))
        columns = {
            "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(states.reshape(-1)), WIDTH),
            "action": pa.FixedSizeListArray.from_arrays(pa.array(actions.reshape(-1)), WIDTH),
            "frame_index": pa.array(index % LENGTH),
            "episode_index": pa.array(index // LENGTH),
        }
        pq.write_table(pa.table(columns), path / f"data/chunk-000/file-{start // CHUNK:03d}.parquet")


def write_csv(path: Path, rows: int) -> None:
    with open(path, "w") as handle:
        handle.write(",".join(["episode", *(f"{k}{i}" for k in "sa" for i in range(WIDTH))]) + "\n")
        for start in range(0, rows, CHUNK):
            states, actions = rows_of(start, min(CHUNK, rows - start))
            episode = (start + np.arange(len(states))) // LENGTH
            np.savetxt(handle, np.column_stack([episode, states, actions]), "%.7g", ",")


WRITERS = {"d4rl": write_d4rl, "robomimic": write_robomimic, "lerobot": write_lerobot, "csv": write_csv}


def own_memory() -> float:
    """The process's own memory, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def read(path: Path, name: str) -> dict[str, float]:
    """All blocks of a recording, in this process."""
    with layouts.opened(path, CHOICES[name]) as recording:
        recording.describe()
        before, most, rows = own_memory(), 0.0, 0
        began = time.perf_counter()
        for block in recording.episodes(1 << 40):
            rows += block.rows
            most = max(most, own_memory())
    return {"rows": rows, "seconds": time.perf_counter() - began, "memory_mb": most - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(WRITERS), help="formats, e.g. d4rl,lerobot")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read", nargs=2, metavar=("PATH", "FORMAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(Path(options.read[0]), options.read[1])))
        return
    results: dict[str, dict[str, float]] = {}
    for name in options.only.split(","):
        write = WRITERS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / {"lerobot": "set", "csv": "log.csv"}.get(name, "log.hdf5")
            rows = options.rows if name != "csv" else options.rows // 10
            write(path, rows)
            command = [sys.executable, __file__, "--read", str(path), name]
            runs = [json.loads(subprocess.check_output(command)) for _ in range(options.repeats)]
        results[name] = min(runs, key=lambda run: run["seconds"])
        results[name]["rows_per_second"] = results[name]["rows"] / results[name]["seconds"]
        first = next(iter(results.values()))  # D4RL's, unless it was left out
        results[name]["of_first"] = results[name]["rows_per_second"] / first["rows_per_second"]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, r in results.items():
        print(
            f"{name:>9}: {r['rows']:,.0f} transitions in {r['seconds']:.2f} s, {r['rows_per_second'] / 1e6:.2f} M/s, "
            f"{r['of_first']:.2f} x the first's; {r['memory_mb']:.0f} MB of its own memory"
        )


if __name__ == "__main__":
    main()
