"""Nonsense after flags, and in the arguments of the Python functions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torture.batches import Case
from torture.inputs import _DATA, NEW
from torture.processes import ENV, Outcome
from torture.world import SCORE, SMALL, World

BASES = [
    ["train-disc", "--data", "dataset.h5", *SMALL, *NEW],
    ["train-value", "--disc", "disc.safetensors", *SMALL, *NEW],
    ["train-policy", "--value", "value.safetensors", *SMALL, *NEW],
    ["eval", *SCORE, "--episodes", "1", "--out", "new.json"],
    [*_DATA, "--offline", "file:log.hdf5"],
    ["build-dataset", "--env", "data", "--offline", "arms/csv/arm.csv", "--expert", "arms/csv/arm.csv#traj=0"],
    ["tabular", "map.txt", "--size", "3", "--episodes", "20", "--horizon", "9", "--out", "new.h5"],
    ["run", "recipe.toml", "--dry-run", "--out", "new"],
    ["run", "--env", "data", "--offline", "log.hdf5", "--expert", "log.hdf5#traj=0", "--dry-run", "--out", "new"],
    ["select-f", "recipe.toml", "--dry-run", "--out", "new"],
    ["inspect", "weights.h5"],
    ["inspect", "policy.safetensors"],
    ["inspect", "log.hdf5"],
    ["export", "weights.h5", "--to", "csv", "--out", "new.csv"],
    ["status", "."],
    ["status", "queue"],
    ["cancel", "queue"],
    ["report", "folder", "--html", "new.html"],
    ["recipes"],
    ["settings"],
    ["envs"],
]
BASES[5] += ["--state-columns", "joint_*", "--action-columns", "action_*", "--out", "new.h5"]
ABUSE = """
-1 0 1 -0.0 1e-300 1e308 1e999 nan -inf 0x10 ½ ٣ gym:: gym: gym:a:b gym:Pendulum-v1 data:0x0 data:9x data sim: file:
# ##= file:#1 meta mps gpu cuda cpu:99 cuda:-1 0:99999999999999999999 -99999999999:1 0,0 1,2, 0:0 /proc/x /dev/full
/dev/null/x /dev/zero loop fifo . .. folder dangling absent/a/b.h5 new.png new.csv new.html new.gif a=b [[ { lr=1e-300
hidden=0 batch=-1 gamma=1.0 steps=0 disc.lr=0.1 x.y.z=1 = a.b= value.f=auto f=kl alpha=1e-300 seed=1 lr=[1,2] lr={a=1}
lr=2020-01-01 env=1 algo=bc kl,chi2 file:fifo file:loop file:minari.hdf5 file:log.npz#steps=7 dataset.h5 weights.h5
eval.json bc smodice,bc slurm slurm:x ray ray:x:1 local:x time=1 ablation divergences tensorboard wandb,x csv npz
parquet filter-key episodes onnx joint_* ** [!] arms/*/arm arms/zarr/arm.zarr arms/lerobot-v3/arm queue 0-9 9-0 0,0
antmaze kitchen hopper-mixed
""".split()  # noqa: SIM905 (a list of a hundred lines)
ABUSE += ["", " ", "9" * 5000, "9" * 25, "x" * 300, "x" * 300 + ".safetensors", "é\u202e\x1b[2J", "lr=" + "9" * 400]
ABUSE += [f"sim:{ENV}{what}" for what in ("#5", "-random#states=3", "#traj=999999999999")]
ABUSE += [f"file:log.hdf5#{'9' * 5000}"]
LARGE = {"9" * 25, "1e308", "1e999", "9" * 5000}  # left out where a number asks for that much work
WORK = ("steps", "episodes", "horizon", "size", "threads", "jobs", "top", "checkpoint_every", "policy_steps")


def abuses(world: World, count: int) -> Iterator[Case]:
    """Commands with one to three flags, each of its own or of another, that are given nonsense."""
    import typer.main

    from smodice_cli.commands import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for _ in range(count):
        words = list(world.rng.choice(BASES))
        options = [p for p in commands[words[0]].params if p.opts[0].startswith("-")]
        options = [option for option in options if option.name not in ("help", "debug")]
        for option in world.rng.sample(options, min(len(options), world.rng.choice((1, 1, 2, 3)))):
            value = world.rng.choice(ABUSE)
            if option.name in WORK and (value in LARGE or value.isdecimal()):
                value = "-1"
            flag = world.rng.choice([*option.opts, *option.secondary_opts])
            words += [flag] if option.is_flag else [flag, value]
        if world.rng.random() < 0.1:
            words.append(world.rng.choice(ABUSE))
        yield Case(words, _traps)


def _traps(place: Path) -> None:
    """Things that a path may lead to."""
    os.mkfifo(place / "fifo")
    os.symlink("loop", place / "loop")
    os.symlink("nowhere", place / "dangling")
    (place / "folder").mkdir()


# --- the Python functions -------------------------------------------------------------------------------------------

TINY = {"steps": 6, "hidden": 4, "batch": 4}
STATES = [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]
CALLS: dict[str, dict[str, Any]] = {
    "build_dataset": {"offline": "log.hdf5", "expert": "log.hdf5#traj=0", "out": "new.h5"},
    "train_disc": {"data": "dataset.h5", "out": "new.safetensors", **TINY},
    "train_value": {"disc": "disc.safetensors", "out": "new.safetensors", **TINY},
    "train_policy": {"start": "value.safetensors", "out": "new.safetensors", **TINY},
    "evaluate": {"policy": "policy.safetensors", "out": "new.json", "episodes": 1, "curve_episodes": 0},
    "run": {"recipe": "absent.toml", "out": "new"},
    "load_weights": {"path": "weights.h5"},
    "load_policy": {"path": "policy.safetensors"},
}
OTHERS = ("seed", "preset", "options", "algo", "env", "seeds", "algos", "jobs", "settings", "variants", "source")
WRONG: list[Any] = [None, True, -1, 0, 1.5, float("nan"), float("inf"), 10**30, "", "absent", "\0", "x" * 5000, b"x"]
WRONG += ["fifo", "loop", "folder", "/dev/full", "/proc/x", "data", "gym::", "bc", "paper", "dataset.h5"]
WRONG += [[], {}, (), [[]], [0], [0, 0], ["a"], [None], {"a": 1}, {"x.y": 1}, object(), len, range(3), {1, 2}]
WRONG += [STATES, {"observations": STATES}, {"observations": STATES, "actions": STATES}, {"states": STATES}]
WRONG += [{"observations": [["a"]]}, {"observations": [[1], [1, 2]]}, {"observations": 3, "actions": None}]
WRONG += [[{"observations": STATES, "actions": STATES[:2], "terminated": True}], [{"observations": STATES}, {}]]
WRONG += [[{"observations": STATES, "actions": STATES, "rewards": "x"}], [{"observations": None}], 1j, Path("absent")]


def calls(world: World, count: int) -> Iterator[Case]:
    """Functions with one or two arguments that are nonsense."""
    for _ in range(count):
        name = world.rng.choice(sorted(CALLS))
        given = dict(CALLS[name])
        known = [*given, *(other for other in OTHERS if not name.startswith("load"))]
        for argument in world.rng.sample(known, min(len(known), world.rng.choice((1, 1, 2)))):
            given[argument] = world.rng.choice(WRONG)

        def do(words: list[str], name: str = name, given: dict[str, Any] = given) -> Outcome:
            return _call(name, given)

        yield Case(
            [f"smodice.{name}({', '.join(f'{key}={value!r}'[:80] for key, value in given.items())})"], _traps, do=do
        )


def _call(name: str, given: dict[str, Any]) -> Outcome:
    """The exception of ours that a function raises is a sentence; any other is a traceback."""
    import warnings

    import smodice

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            getattr(smodice, name)(**given)
        except smodice.SmodiceError as error:
            return Outcome(error.exit_code if error.exit_code != 1 else 2, error.message)
        except TypeError as error:
            if "unexpected keyword argument" in str(error):  # Python's own word for it
                return Outcome(2, str(error))
            return Outcome(1, f"Traceback: {error!r}")
        except Exception as error:
            return Outcome(1, f"Traceback: {error!r}")
    return Outcome(0, "")
