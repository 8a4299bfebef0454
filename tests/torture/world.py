"""A world to break: a finished run on tiny data, recordings of every layout, a run's orders; copied for each try."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from torture.processes import ENV, finish, problems, start, tried

SMALL = ("--steps", "6", "--set", "hidden=4", "--set", "batch=4")
SCORE = ("--policy", "policy.safetensors", "--threads", "1", "--set", "curve_episodes=0")
TRAIN = f"--checkpoint-every 0 {' '.join(SMALL)} --out new.safetensors"
STAGES = {  # commands that write
    "build-dataset": f"--env {ENV} --offline sim:{ENV}#60 --expert sim:{ENV}#success=5 --threads 1 --out new.h5",
    "train-disc": f"--data dataset.h5 {TRAIN}",
    "train-value": f"--disc disc.safetensors {TRAIN}",
    "train-policy": f"--value value.safetensors {TRAIN}",
    "eval": "--policy policy.safetensors --episodes 1 --set curve_episodes=0 --threads 1 --out new.json",
    "tabular": "example --size 3 --episodes 50 --out new.h5",
    "export": "weights.h5 --to csv --out new.csv --force",
}
COSTLY = ("tabular",)  # a second each: every operation once, not once for each signal


def command(stage: str) -> list[str]:
    """What makes a stage's new file."""
    return [stage, *STAGES[stage].split()]


class World:
    """What is broken, what was tried, and what went wrong."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.rng = root, random.Random(seed)
        self.tried: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.noted: Callable[[], None] = lambda: None  # is told of it now and then
        self.whole = root / "whole"
        self.whole.mkdir(parents=True)
        data = f"--env {ENV} --offline sim:{ENV}#150 --expert sim:{ENV}#success=5 --threads 1 --out dataset.h5"
        self.must("build-dataset", *data.split())
        self.must("train-disc", "--data", "dataset.h5", *SMALL)
        self.must("train-value", "--disc", "disc.safetensors", *SMALL)
        self.must("train-policy", "--value", "value.safetensors", *SMALL)
        self.must("eval", *SCORE, "--episodes", "2")
        self.must("tabular", *STAGES["tabular"].replace("new.h5", "grid.h5").split())
        outcome = finish(*start(self.whole, _write_others), time.monotonic())
        assert outcome.code == 0, outcome.said
        self.expected: dict[str, dict[str, str]] = {}

    def must(self, *arguments: str) -> None:
        outcome = tried(self.whole, list(arguments))
        assert outcome.code == 0, outcome.said

    def note(self, what: str, problem: str = "") -> None:
        """Count a try, and what was wrong with it."""
        self.tried[what] += 1
        if problem:
            self.wrong.append(f"{what}: {problem}")
        if problem or self.tried.total() % 20 == 0:
            self.noted()

    def copy(self, *, all_of_it: bool = False) -> Path:
        """A fresh copy to work in: of the run's own artifacts, or of all."""
        place = Path(tempfile.mkdtemp(prefix="try.", dir=self.root)) / "run"
        names = None if all_of_it else {path.name for path in self.whole.iterdir() if path.suffix not in OURS}
        shutil.copytree(self.whole, place, ignore=(lambda *_: names or set()) if names else None)
        return place

    def gone(self, place: Path) -> None:
        shutil.rmtree(place.parent)

    def wanted(self, stage: str) -> dict[str, str]:
        """What a stage makes when nothing happens to it: the digest of every new file."""
        if stage not in self.expected:
            place = self.copy()
            outcome = tried(place, command(stage))
            assert outcome.code == 0, outcome.said
            self.expected[stage] = digests(place, set(os.listdir(self.whole)))
            self.gone(place)
        return self.expected[stage]

    def check_again(self, place: Path, stage: str) -> str:
        """Run a stage again after something happened; '' if all is as if nothing had."""
        if wrong := problems(tried(place, command(stage)), {0}):
            return f"again, {wrong}"
        found = digests(place, set(os.listdir(self.whole)))
        if hidden := [name for name in found if name.startswith(".")]:
            return f"left behind: {hidden}"
        return "" if found == self.wanted(stage) else f"differs: {found} from {self.wanted(stage)}"


OURS = (".h5", ".safetensors", ".json", ".jsonl", ".toml")


def digests(folder: Path, known: set[str]) -> dict[str, str]:
    """Every new file of a folder, hidden ones too, with what tells its content; pictures by their presence."""
    from smodice_cli import artifacts

    found = {}
    for name in sorted(set(os.listdir(folder)) - known):
        artifact = name.endswith((".h5", ".safetensors", ".json")) and not name.startswith(".")
        content = artifacts.read_any(folder / name).header.digest if artifact else "there"
        found[name] = (folder / name).read_text() if name.endswith((".jsonl", ".csv")) else content
    return found


def _write_others() -> None:
    """Files of others, in every layout, and what a run leaves for workers."""
    import formats
    import h5py
    import numpy as np
    from recordings import policy_file, write_file, write_minari

    write_file(Path("log.hdf5"), rows=30)
    write_minari(Path("minari.hdf5"), [8, 5, 9])
    with h5py.File("log.hdf5") as file:
        np.savez_compressed("log.npz", **{name: file[name][:] for name in file})
    with h5py.File("counts.hdf5", "w") as file:
        file["initial"], file["expert"] = [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]
        file["counts"] = np.ones((3, 2, 3))
    arm = formats.Arm.of()
    for name, (file_name, write, _) in formats.FORMATS.items():
        folder = Path("arms") / name
        folder.mkdir(parents=True)
        write(folder / file_name, arm)
    policy_file(Path("foreign.safetensors"), ENV)
    Path("map.txt").write_text("S..\n.#.\n..G\n")
    parts = [f"[{name}]\nsteps = 6\nhidden = 4\nbatch = 4\n" for name in ("disc", "value", "policy")]
    data = f'[dataset]\nenv = "{ENV}"\noffline = ["sim:{ENV}#60"]\nexpert = ["sim:{ENV}#success=5"]\n'
    Path("recipe.toml").write_text(data + "".join(parts) + "[eval]\nepisodes = 1\ncurve_episodes = 0\n")
    for on in ("local", "slurm"):
        _write_orders(Path("queue") / on, on)


def _write_orders(folder: Path, on: str) -> None:
    from smodice_cli import jobs, pipeline, recipes
    from smodice_cli.engine import Options

    recipe = recipes.read_recipe(Path("recipe.toml"))
    run = jobs.plan(recipe, {}, [0, 1], folder)
    for order in pipeline.orders(run, Options(), on, "", data=True):
        order.write()
        progress = {"kind": "progress", "label": "train-disc", "done": 3, "total": 6, "figures": {"loss": 0.5}}
        events = [{"kind": "start", "host": "here", "pid": 1}, progress, {"kind": "end", "code": 0}]
        order.events.write_text("".join(json.dumps(event) + "\n" for event in events[: 3 if on == "slurm" else 2]))
