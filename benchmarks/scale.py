"""How time and memory of every stage grow with the rows and with the dimensions of a state.

    python benchmarks/scale.py [--rows 100000 1000000 10000000] [--dims 10 100 400] [--plot FILE]   # make bench-scale

Every number of rows is measured with the first number of dimensions, every further number of dimensions with the first
number of rows. A training's step is the least time between two lines of its log; what is left is the time that does
not depend on steps (imports, preparation, passes over all rows).

Seconds are of processor time. Memory is a process's own (anonymous): mapped pages of the data can be dropped at any
time.
"""

from __future__ import annotations

import argparse
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
STEPS = 500  # gradient steps
IN_CHILD = "--timed"  # the word by which this file becomes `smodice` with a clock at every line of a training's log
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


def with_clock() -> None:
    """Be `smodice`, and print the milliseconds of a training's step in the end."""
    from smodice_cli import training
    from smodice_cli.__main__ import main as smodice

    real, times = training._Log.write, []

    def write(self: Any, step: int, figures: dict[str, float]) -> None:
        times.append(time.process_time())
        real(self, step, figures)
        times.append(time.process_time())

    training._Log.write = write  # type: ignore[method-assign]
    try:
        smodice()
    finally:
        between = [after - before for before, after in zip(times[1::2], times[2::2], strict=False)]
        print(1000 * min(between) / training.LOG_EVERY if between else 0)


def measured(*arguments: str | Path) -> tuple[float, float, float]:
    """Processor seconds, the largest own memory (MB) and a step's milliseconds of `smodice ARGUMENTS`, alone."""
    command = [sys.executable, __file__, IN_CHILD, *map(str, arguments), "--quiet"]
    variables = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # freed blocks go back to the system
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
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
    assert process.stdout
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    watcher.join()
    if process.returncode:
        raise SystemExit(f"failed: {command}")
    return usage.ru_utime + usage.ru_stime, largest / 1024, float(printed.split()[-1])


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
            command = once[stage] if stage in once else (*trained[stage], "--steps", str(STEPS))
            row["fixed s"], row["memory MB"], step = measured(*command)
            if stage in trained:
                row["ms a step"] = step
                row["fixed s"] -= STEPS * step / 1000
            found.append(row)
    return found


def shown(cell: Any) -> str:
    """A cell of the table."""
    return f"{cell:.1f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell


def draw(found: list[dict[str, Any]], dims: int, path: Path) -> None:
    """Time beside the steps, time of a step and memory over the rows, a line for each stage."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, name, unit in zip(axes, COLUMNS[3:], ("s", "ms", "MB"), strict=True):
        for stage in dict.fromkeys(row["stage"] for row in found):
            points = [row for row in found if row["stage"] == stage and row["dims"] == dims and name in row]
            axis.plot([row["rows"] for row in points], [row[name] for row in points], "o-", label=stage)
        axis.set(title=name, xlabel=f"rows of {dims} dimensions", ylabel=unit, xscale="log")
        axis.set(yscale="log") if unit == "s" else axis.set(ylim=(0, None))
    axes[0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 400])
    parser.add_argument("--plot", type=Path, help="where to draw it")
    options = parser.parse_args()
    cases = [(rows, options.dims[0]) for rows in options.rows] + [(options.rows[0], dims) for dims in options.dims[1:]]
    found = []
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for rows, dims in cases:
        for row in measure(rows, dims):
            found.append(row)
            print(f"| {' | '.join(shown(row.get(name, '')) for name in COLUMNS)} |", flush=True)
    if options.plot:
        draw(found, options.dims[0], options.plot)


if __name__ == "__main__":
    if sys.argv[1:2] == [IN_CHILD]:
        sys.argv = ["smodice", *sys.argv[2:]]
        with_clock()
    else:
        main()
