"""Data larger than memory: what each stage keeps for itself grows by a fraction of the data.

Mapped pages of the data count as memory used but can be dropped at any time, so the measure is a process's own
(anonymous) memory, sampled while it runs, on a small and on a large file: the difference is what the data cost.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

OBSERVATIONS, ACTIONS = 27, 8  # the ant's
SMALL, LARGE = 100_000, 1_000_000  # rows; the difference is 220 MB
BLOCK = 50_000


def write_file(path: Path, rows: int) -> int:
    """A D4RL-layout file written block by block; returns its size."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, width in (("observations", OBSERVATIONS), ("next_observations", OBSERVATIONS), ("actions", ACTIONS)):
            column = file.create_dataset(name, (rows, width), np.float32)
            for start in range(0, rows, BLOCK):
                column[start : start + BLOCK] = rng.uniform(-1, 1, (min(BLOCK, rows - start), width))
        file["rewards"], file["terminals"] = np.ones(rows, np.float32), np.zeros(rows, bool)
        file["timeouts"] = np.arange(rows) % 1000 == 999
    return path.stat().st_size


def own_memory(*arguments: str | Path) -> int:
    """The largest anonymous memory (bytes) of `smodice ARGUMENTS`, in a process of its own."""
    command = [sys.executable, "-m", "smodice_cli", *map(str, arguments), "--quiet"]
    # Blocks of a megabyte and more go back to the system when they are freed, so that what is counted is in use.
    variables = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
    largest = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        largest = max(largest, 1024 * int(found[1])) if found else largest
        time.sleep(0.005)
    assert process.wait() == 0, process.stderr.read() if process.stderr else ""
    assert largest > 10_000_000, "nobody looked: python alone needs more"
    return largest


def chain(folder: Path, rows: int) -> tuple[int, dict[str, int]]:
    """The size of a file of that many rows, and the own memory of every stage from it to a policy."""
    folder.mkdir()
    log = folder / "log.hdf5"
    size = write_file(log, rows)
    data, disc, value = folder / "dataset.h5", folder / "disc.safetensors", folder / "value.safetensors"
    few = ("--steps", "20")
    return size, {
        "build-dataset": own_memory(
            "build-dataset", "--env", "ant", "--offline", f"file:{log}", "--expert", f"file:{log}#traj=0", "--out", data
        ),
        "train-disc": own_memory("train-disc", "--data", data, *few),
        "train-value": own_memory("train-value", "--disc", disc, *few),
        "train-policy": own_memory("train-policy", "--value", value, *few),
    }


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
def test_memory_stays_flat_while_the_data_grow(tmp_path: Path) -> None:
    small_size, small = chain(tmp_path / "small", SMALL)
    large_size, large = chain(tmp_path / "large", LARGE)
    grown = {stage: (large[stage] - small[stage]) / (large_size - small_size) for stage in small}
    assert grown["build-dataset"] < 0.1, grown
    assert grown["train-disc"] < 0.1, grown
    assert grown["train-policy"] < 0.25, grown
    # The columns of weights.h5 (44 bytes a row, whatever the width of the states) and what their diagnosis sorts.
    assert grown["train-value"] < 1.0, grown


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
def test_frames_of_other_formats_are_streamed_too() -> None:
    """Four fifths of a million frames more, 90 MB of numbers, cost no more memory than a block or two."""
    script = Path(__file__).parents[1] / "benchmarks/read_formats.py"
    memory: dict[int, dict[str, float]] = {}
    for rows in (200_000, 1_000_000):
        command = [
            sys.executable,
            script,
            "--rows",
            str(rows),
            "--repeats",
            "1",
            "--only",
            "robomimic,lerobot",
            "--json",
        ]
        found = json.loads(subprocess.check_output(command))
        memory[rows] = {name: result["memory_mb"] for name, result in found.items()}
    grown = {name: memory[1_000_000][name] - memory[200_000][name] for name in memory[200_000]}
    assert max(grown.values()) < 40, (memory, grown)
