"""How time and memory of every stage grow with the rows and with the dimensions of a state.

    python benchmarks/scale.py [--rows 100000 1000000] [--dims 10 100 400] [--json]      # or: make bench-scale

Every number of rows is measured with the first number of dimensions, every further number of dimensions with the first
number of rows. A training runs twice, with few steps and with more: the difference is the time of a step, and what is
left of the shorter one the time that does not depend on steps (imports, preparation, passes over all rows).

Seconds are of processor time. Memory is a process's own (anonymous): mapped pages of the data can be dropped at any
time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ACTIONS, HORIZON, BLOCK = 6, 1000, 50_000
FEW, MORE = 100, 500  # gradient steps
COLUMNS = ("rows", "dims", "stage", "fixed s", "ms a step", "memory MB")


def write_file(path: Path, rows: int, dims: int) -> None:
    """A recording in D4RL's layout, written block by block."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, width in (("observations", dims), ("actions", ACTIONS)):
            column = file.create_dataset(name, (rows, width), np.float32)
            for start in range(0, rows, BLOCK):
                column[start : start + BLOCK] = rng.uniform(-1, 1, (min(BLOCK, rows - start), width))
        file["terminals"], file["timeouts"] = np.zeros(rows, bool), np.arange(rows) % HORIZON == HORIZON - 1


def measured(*arguments: str | Path) -> tuple[float, float]:
    """Processor seconds and the largest own memory (MB) of `smodice ARGUMENTS`, in a process of its own."""
    command = [sys.executable, "-m", "smodice_cli", *map(str, arguments), "--quiet"]
    variables = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # freed blocks go back to the system
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
    largest = 0

    def watch() -> None:
        nonlocal largest
        while process.returncode is None:
            try:
                found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            except OSError:
                return
            largest = max(largest, int(found[1]) if found else 0)
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    watcher.join()
    if process.returncode:
        raise SystemExit(f"failed: {command}")
    return usage.ru_utime + usage.ru_stime, largest / 1024


def measure(rows: int, dims: int) -> list[dict[str, Any]]:
    """Every stage from a recording of this size to a policy, and a look at the weights."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        log = folder / "log.hdf5"
        write_file(log, rows, dims)
        build = ("build-dataset", "--env", "data", "--offline", log, "--expert", f"{log}#traj=0")
        once = {
            "build-dataset": (*build, "--out", folder / "dataset.h5"),
            "inspect": ("inspect", folder / "weights.h5", "--json"),
        }
        trained = {
            "train-disc": ("train-disc", "--data", folder / "dataset.h5"),
            "train-value": ("train-value", "--disc", folder / "disc.safetensors"),
            "train-policy": ("train-policy", "--value", folder / "value.safetensors"),
        }
        for stage in ("build-dataset", *trained, "inspect"):
            row: dict[str, Any] = {"rows": rows, "dims": dims, "stage": stage}
            if stage in once:
                row["fixed s"], row["memory MB"] = measured(*once[stage])
            else:
                few, memory = measured(*trained[stage], "--steps", str(FEW))
                more, row["memory MB"] = measured(*trained[stage], "--steps", str(MORE))
                row["ms a step"] = 1000 * (more - few) / (MORE - FEW)
                row["fixed s"] = few - FEW * (more - few) / (MORE - FEW)
                row["memory MB"] = max(memory, row["memory MB"])
            found.append(row)
    return found


def shown(cell: Any) -> str:
    """A cell of the table."""
    return f"{cell:.1f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 400])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = [(rows, options.dims[0]) for rows in options.rows] + [(options.rows[0], dims) for dims in options.dims[1:]]
    found = []
    if not options.json:
        print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for rows, dims in cases:
        for row in measure(rows, dims):
            found.append(row)
            if not options.json:
                cells = [
                    f"{row[name]:.1f}" if isinstance(row.get(name), float) else row.get(name, "") for name in COLUMNS
                ]
                print(f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in cells)} |", flush=True)
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
