"""The same recording of an arm in every format that is read, written with the formats' own libraries."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

JOINTS = ["shoulder", "elbow", "wrist"]
MOTORS = ["action_shoulder", "action_elbow"]
LENGTHS = (6, 4, 9, 5)


@dataclass(frozen=True)
class Arm:
    """Episodes of states and actions, a row each; the last action of each has no next state."""

    states: list[np.ndarray]
    actions: list[np.ndarray]

    @staticmethod
    def of(lengths: tuple[int, ...] = LENGTHS, width: int = 3, seed: int = 0) -> Arm:
        rng = np.random.default_rng(seed)
        states = [rng.normal(size=(length, width)).astype(np.float32) for length in lengths]
        actions = [rng.uniform(-0.9, 0.9, (length, 2)).astype(np.float32) for length in lengths]
        return Arm(states, actions)

    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """States, actions, and which rows are the last of their episode."""
        ends = np.concatenate([np.arange(len(part)) == len(part) - 1 for part in self.states])
        return np.concatenate(self.states), np.concatenate(self.actions), ends

    def episode(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.states)), [len(part) for part in self.states])

    def frame(self) -> np.ndarray:
        return np.concatenate([np.arange(len(part)) for part in self.states])


def d4rl(path: Path, arm: Arm) -> Path:
    states, actions, ends = arm.flat()
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"], file["timeouts"] = states, actions, ends
    return path


def numbered(path: Path, arm: Arm, first: int = 0) -> Path:
    """D4RL's columns with the number of the episode instead of marks, as HDF5 or npz."""
    states, actions, _ = arm.flat()
    columns = {"observations": states, "actions": actions, "episode": first + arm.episode()}
    if path.suffix == ".npz":
        np.savez(path, **columns)
        return path
    with h5py.File(path, "w") as file:
        file.update(columns)
    return path


def npz(path: Path, arm: Arm, names: tuple[str, str] = ("obs", "acts")) -> Path:
    states, actions, ends = arm.flat()
    np.savez(path, **{names[0]: states, names[1]: actions, "timeouts": ends})
    return path


def npy(path: Path, arm: Arm) -> Path:
    path.mkdir()
    states, actions, ends = arm.flat()
    for name, column in {"obs": states, "acts": actions, "timeouts": ends}.items():
        np.save(path / f"{name}.npy", column)
    return path


def ogbench(path: Path, arm: Arm) -> Path:
    states, actions, ends = arm.flat()
    np.savez(path, observations=states, actions=actions, terminals=ends, qpos=states, qvel=states)
    return path


def minari(path: Path, arm: Arm) -> Path:
    with h5py.File(path, "w") as file:
        for number, (states, actions) in enumerate(zip(arm.states, arm.actions, strict=True)):
            group = file.create_group(f"episode_{number}")
            group["observations/joints"], group["observations/desired_goal"] = states, np.ones((len(states), 2))
            group["actions"] = actions[:-1]
    return path


def robomimic(path: Path, arm: Arm, *, following: bool = False) -> Path:
    """With `following`, `next_obs` holds the last state of each episode, as robomimic's own files do."""
    with h5py.File(path, "w") as file:
        for number, (states, actions) in enumerate(zip(arm.states, arm.actions, strict=True)):
            demo = file.create_group(f"data/demo_{number}")
            rows = len(states) - following
            demo["actions"] = actions[:rows].astype(np.float64)
            demo["obs/joints"], demo["obs/rest"] = states[:rows, :2], states[:rows, 2:]
            demo["obs/camera"] = np.zeros((rows, 20, 20, 3), np.uint8)
            if following:
                demo["next_obs/joints"], demo["next_obs/rest"] = states[1:, :2], states[1:, 2:]
            demo["dones"] = np.zeros(rows, np.int64)
        names = [f"demo_{number}".encode() for number in range(len(arm.states))]
        file["mask/train"], file["mask/valid"] = np.array(names[:-1]), np.array(names[-1:])
    return path


def aloha(path: Path, arm: Arm) -> Path:
    """A folder with a file an episode."""
    path.mkdir()
    for number, (states, actions) in enumerate(zip(arm.states, arm.actions, strict=True)):
        with h5py.File(path / f"episode_{number}.hdf5", "w") as file:
            file["observations/qpos"], file["observations/qvel"] = states[:, :2], states[:, 2:]
            file["observations/images/top"] = np.zeros((len(states), 20, 20, 3), np.uint8)
            file["action"] = actions
    return path


def lerobot(path: Path, arm: Arm, version: str = "v3.0", *, data: bool = True, **info: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (path / "meta").mkdir(parents=True)
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": {"motors": JOINTS}},
        "action": {"dtype": "float32", "shape": [2], "names": MOTORS},
        "observation.images.top": {"dtype": "video", "shape": [480, 640, 3]},
    }
    told = {"codebase_version": version, "fps": 50, "total_episodes": len(arm.states), "splits": {"train": "0:2"}}
    (path / "meta/info.json").write_text(json.dumps({"features": features, **told, **info}))
    states, actions, _ = arm.flat()
    columns = {
        "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(states.reshape(-1)), states.shape[1]),
        "action": pa.array(list(actions)),
        "frame_index": pa.array(arm.frame()),
        "episode_index": pa.array(arm.episode()),
        "index": pa.array(np.arange(len(states))),
    }
    table = pa.table(columns)
    folder = path / "data/chunk-000"
    folder.mkdir(parents=True)
    if not data:
        return path
    if version == "v3.0":
        half = int((arm.episode() < len(arm.states) // 2).sum())
        pq.write_table(table.slice(0, half), folder / "file-000.parquet")
        pq.write_table(table.slice(half), folder / "file-001.parquet")
    else:
        for number in range(len(arm.states)):
            rows = np.flatnonzero(arm.episode() == number)
            pq.write_table(table.slice(rows[0], len(rows)), folder / f"episode_{number:06d}.parquet")
    return path


def columns_of(arm: Arm) -> dict[str, np.ndarray]:
    states, actions, _ = arm.flat()
    named = {f"joint_{name}": states[:, index] for index, name in enumerate(JOINTS)}
    named |= {name: actions[:, index] for index, name in enumerate(MOTORS)}
    return {"episode": arm.episode(), **named}


def write_csv(path: Path, arm: Arm) -> Path:
    columns = columns_of(arm)
    with open(path, "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return path


def parquet(path: Path, arm: Arm) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns_of(arm)), path)
    return path


def zarr(path: Path, arm: Arm) -> Path:
    import zarr as package

    states, actions, ends = arm.flat()
    store = package.open_group(str(path), mode="w", zarr_format=2)
    columns = {"data/state": states, "data/action": actions, "meta/episode_ends": np.flatnonzero(ends) + 1}
    for name, column in columns.items():
        store.create_array(name, data=column)
    store.create_array("data/img", data=np.zeros((len(states), 20, 20, 3), np.uint8))
    return path


def mjlab(path: Path, arm: Arm) -> Path:
    """The first episode as a motion, without actions."""
    states = arm.states[0]
    np.savez(path, joint_pos=states[:, :2], joint_vel=states[:, 2:], body_pos_w=np.ones((len(states), 4, 3)), fps=50)
    return path


TABLE = ("--state-columns", "joint_*", "--action-columns", "action_*", "--episode-column", "episode")
KEYS = ("--keys", "observations=obs,actions=acts")
Write = Callable[[Path, Arm], Path]
FORMATS: dict[str, tuple[str, Write, tuple[str, ...]]] = {  # file, writer, flags
    "d4rl": ("arm.hdf5", d4rl, ()),
    "d4rl-numbered": ("arm.hdf5", numbered, ("--episode-column", "episode")),
    "npz-numbered": ("arm.npz", numbered, ("--episode-column", "episode")),
    "npz": ("arm.npz", npz, KEYS),
    "npy": ("arm", npy, KEYS),
    "ogbench": ("arm.npz", ogbench, ()),
    "minari": ("arm.hdf5", minari, ("--obs-keys", "joints")),
    "robomimic": ("arm.hdf5", robomimic, ("--obs-keys", "joints,rest")),
    "robomimic-next": (
        "arm.hdf5",
        lambda path, arm: robomimic(path, arm, following=True),
        ("--obs-keys", "joints,rest"),
    ),
    "aloha": ("arm", aloha, ("--obs-keys", "qpos,qvel")),
    "lerobot-v2.1": ("arm", lambda path, arm: lerobot(path, arm, "v2.1"), ()),
    "lerobot-v3": ("arm", lerobot, ()),
    "csv": ("arm.csv", write_csv, TABLE),
    "parquet": ("arm.parquet", parquet, TABLE),
    "zarr": ("arm.zarr", zarr, ()),
}
