"""Recordings in every format: equal arrays from equal data, through folders and patterns too, with their names."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import formats
import h5py
import numpy as np
import pytest
from conftest import refuse, succeed
from formats import FORMATS, Arm
from recordings import write_minari

from smodice_cli import artifacts
from smodice_cli.sources.layouts import arrays

COLUMNS = ("observations", "actions", "next_observations", "terminals", "timeouts", "episode_offsets")
ARM = Arm.of()


def build(out: Path, offline: str | Path, *flags: str, expert: str | Path = "") -> artifacts.Artifact:
    source = ("--offline", str(offline), "--expert", str(expert or f"{offline}#traj=0"))
    succeed("build-dataset", "--env", "data", *source, *flags, "--out", out / "dataset.h5", "--force", "--quiet")
    return artifacts.load(out / "dataset.h5", "dataset")


def expected(arm: Arm) -> dict[str, np.ndarray]:
    """The obvious reading: every row but the last of an episode, whose next state nobody has."""
    lengths = [len(part) - 1 for part in arm.states]
    cut = np.concatenate([np.arange(length) == length - 1 for length in lengths])
    return {
        "observations": np.concatenate([part[:-1] for part in arm.states]),
        "actions": np.concatenate([part[:-1] for part in arm.actions]),
        "next_observations": np.concatenate([part[1:] for part in arm.states]),
        "terminals": np.zeros(len(cut), np.uint8),
        "timeouts": cut.astype(np.uint8),
        "episode_offsets": np.cumsum([0, *lengths]),
    }


def same(found: artifacts.Artifact, arm: Arm) -> None:
    for name, column in expected(arm).items():
        np.testing.assert_array_equal(found.arrays[name], column, err_msg=name)


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
@pytest.mark.parametrize("name", FORMATS)
def test_equal_data_give_equal_arrays(name: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK_ROWS", block)  # the content must not depend on how it is cut into blocks
    place, write, flags = FORMATS[name]
    found = build(tmp_path / "run", write(tmp_path / place, ARM), *flags)
    same(found, ARM)
    np.testing.assert_array_equal(found.arrays["expert/observations"], ARM.states[0])


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_and_a_pattern_give_the_recordings_in_the_order_of_their_numbers(name: str, tmp_path: Path) -> None:
    """Twelve recordings: as text, 10 would come before 2."""
    place, write, flags = FORMATS[name]
    folder = tmp_path / "many"
    folder.mkdir()
    parts = [Arm.of((4, 3), seed=number) for number in range(12)]
    for number, arm in enumerate(parts):
        write(folder / f"{number}{Path(place).suffix}", arm)
    whole = Arm([s for arm in parts for s in arm.states], [a for arm in parts for a in arm.actions])
    sources = [folder / "*"] + ([folder] if Path(place).suffix else [])
    for source in sources:
        found = build(tmp_path / "run", source, *flags)
        same(found, whole)
        where = found.arrays["episode_origin"][:, :2].tolist()
        one_each = name == "aloha"  # whose episodes are files, here two in each of twelve folders
        assert where == ([[f, 0] for f in range(24)] if one_each else [[f, e] for f in range(12) for e in range(2)])


def test_a_motion_is_an_expert_as_it_is(tmp_path: Path) -> None:
    offline, motion = formats.d4rl(tmp_path / "arm.hdf5", ARM), formats.mjlab(tmp_path / "motion.npz", ARM)
    found = build(tmp_path, offline, expert=motion)
    np.testing.assert_array_equal(found.arrays["expert/observations"], ARM.states[0])
    found = build(tmp_path, offline, "--expert-keys", "joint_vel,joint_pos", expert=motion)
    np.testing.assert_array_equal(found.arrays["expert/observations"], ARM.states[0][:, [2, 0, 1]])


def test_a_single_npy_is_an_expert(tmp_path: Path) -> None:
    np.save(tmp_path / "demo.npy", ARM.states[2].astype(np.float64))
    found = build(tmp_path, formats.d4rl(tmp_path / "arm.hdf5", ARM), expert=tmp_path / "demo.npy")
    np.testing.assert_array_equal(found.arrays["expert/observations"], ARM.states[2])


NAMES: dict[str, list[str]] = {
    "robomimic": ["joints[0]", "joints[1]", "rest"],
    "lerobot-v3": formats.JOINTS,
    "csv": [f"joint_{name}" for name in formats.JOINTS],
    "parquet": [f"joint_{name}" for name in formats.JOINTS],
    "zarr": ["state[0]", "state[1]", "state[2]"],
    "d4rl": [],
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_dimensions_are_kept(name: str, tmp_path: Path) -> None:
    place, write, flags = FORMATS[name]
    found = build(tmp_path / "run", write(tmp_path / place, ARM), *flags)
    assert found.header.metrics["state_names"] == NAMES[name]


def test_the_order_of_the_parts_is_the_users(tmp_path: Path) -> None:
    path = formats.robomimic(tmp_path / "arm.hdf5", ARM)
    found = build(tmp_path, path, "--obs-keys", "rest,joints")
    np.testing.assert_array_equal(found.arrays["observations"], expected(ARM)["observations"][:, [2, 0, 1]])
    assert found.header.metrics["state_names"] == ["rest", "joints[0]", "joints[1]"]


def test_parts_that_are_left_out_are_named_in_a_warning_and_in_the_artifact(tmp_path: Path) -> None:
    path = formats.minari(tmp_path / "arm.hdf5", ARM)
    arguments = ("--offline", path, "--expert", path, "--obs-keys", "joints", "--out", tmp_path / "d.h5")
    said = succeed("build-dataset", "--env", "data", *arguments).stderr
    assert "desired_goal of the observation is left out; the imitator will not see its goal" in said
    header = artifacts.read_header(tmp_path / "d.h5")
    assert any("desired_goal" in note for note in header.notes)
    assert header.metrics["offline"][0]["left_out"] == ["desired_goal"]


def test_a_goal_is_left_out_by_the_user_or_by_the_environment_alone(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "goal.hdf5", [8, 5, 9], goal=True)
    load = ("build-dataset", "--offline", path, "--expert", path, "--out", tmp_path / "d.h5", "--env")
    assert "nothing says whether the state has it" in refuse(3, *load, "data")
    guessed = shlex.split(succeed("inspect", path, "--json").json["command"])
    succeed(*guessed[1:], "--out", tmp_path / "d.h5")
    assert artifacts.read_header(tmp_path / "d.h5").config["obs_keys"] == "observation,desired_goal"
    succeed(*load, "data", "--obs-keys", "observation")
    succeed(*load, "pointmass-4direction")  # whose states are known


@pytest.mark.parametrize(("name", "rows"), [("robomimic", {"train": 16, "valid": 4}), ("lerobot-v3", {"train": 8})])
def test_a_named_part_of_the_episodes(name: str, rows: dict[str, int], tmp_path: Path) -> None:
    place, write, flags = FORMATS[name]
    path = write(tmp_path / place, ARM)
    for subset, count in rows.items():
        found = build(tmp_path / "run", f"{path}#filter={subset}", *flags, expert=path)
        assert found.header.metrics["rows"] == count


def test_terminals_come_from_dones_and_from_keys(tmp_path: Path) -> None:
    path = formats.robomimic(tmp_path / "arm.hdf5", ARM, following=True)
    with h5py.File(path, "a") as file:
        file["data/demo_1/dones"][-1] = 1
    found = build(tmp_path, path, "--obs-keys", "joints,rest")
    ends = found.arrays["episode_offsets"][1:] - 1
    assert found.arrays["terminals"][ends].tolist() == [0, 1, 0, 0]
    assert found.arrays["timeouts"][ends].tolist() == [1, 0, 1, 1]
    lines = [f"{row // 3},{row}.5,0.25,{int(row == 2)}" for row in range(6)]
    (tmp_path / "arm.csv").write_text("\n".join(["episode,joint_a,action_b,done", *lines]) + "\n")
    found = build(tmp_path, tmp_path / "arm.csv", *formats.TABLE, "--keys", "terminals=done")
    assert found.arrays["terminals"].tolist() == [0, 0, 1, 0, 0]
    assert found.arrays["timeouts"].tolist() == [0, 0, 0, 0, 1]


def test_a_changed_file_of_a_folder_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(3):
        formats.d4rl(folder / f"{number}.hdf5", Arm.of((5,), seed=number))
    run = ("build-dataset", "--env", "data", "--expert", f"{folder}/0.hdf5", "--out", tmp_path / "d.h5", "--json")
    for source in (folder, folder / "*.hdf5"):
        arguments: tuple[Any, ...] = (*run, "--offline", source)
        succeed(*arguments)
        assert succeed(*arguments).json["status"] == "cached"
        assert succeed("status", tmp_path, "--json").json["artifacts"][0]["state"] == "ok"
        formats.d4rl(folder / "1.hdf5", Arm.of((6,), seed=len(str(source))))
        assert "changed" in succeed(*arguments).json["reason"]


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("npz", "npy", "minari", "aloha")])
def test_inspect_says_what_a_recording_holds_and_how_to_load_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place, write, _ = FORMATS[name]
    path = write(Path(place), ARM)
    told = succeed("inspect", path, "--json").json
    assert (told["episodes"], told["transitions"], told["state"], told["action"]) == (4, 20, 3, 2)
    assert told["holds"]
    words = shlex.split(told["command"])
    assert words[:2] == ["smodice", "build-dataset"]
    succeed(*words[1:], "--out", tmp_path / "run/dataset.h5")
    same(artifacts.load(tmp_path / "run/dataset.h5", "dataset"), ARM)
    assert "load it: smodice build-dataset" in succeed("inspect", path).stdout


def test_inspect_says_what_stands_in_the_way(tmp_path: Path) -> None:
    said = succeed("inspect", formats.npz(tmp_path / "arm.npz", ARM, ("seen", "done"))).stdout
    assert "24 x 3 float32" in said
    assert "cannot be read as it is" in said
    assert "has no 'observations'" in said
    assert "--keys observations=NAME" in said


def test_inspect_guesses_names_and_asks_where_episodes_end(tmp_path: Path) -> None:
    states, actions, ends = ARM.flat()
    np.savez(tmp_path / "log.npz", state=states, cmd=actions, over=ends)
    told = succeed("inspect", tmp_path / "log.npz", "--json").json
    assert told["guessed"] == ["--keys", "observations=state,actions=cmd"]
    assert (told["episodes"], told["ends"]) == (1, False)
    assert "nothing marks where episodes end" in succeed("inspect", tmp_path / "log.npz").stdout
    keys = "observations=state,actions=cmd,timeouts=over"
    assert succeed("inspect", tmp_path / "log.npz", "--keys", keys, "--json").json["episodes"] == 4


def test_inspect_takes_what_build_dataset_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = formats.npz(Path("arm.npz"), ARM)
    told = succeed("inspect", path, *formats.KEYS, "--json").json
    assert told["guessed"] == []
    succeed(*shlex.split(told["command"])[1:], "--out", "run/dataset.h5")
    same(artifacts.load(Path("run/dataset.h5"), "dataset"), ARM)
    table = formats.write_csv(Path("arm.csv"), ARM)
    told = succeed("inspect", table, "--state-columns", "joint_wrist", "--json").json
    assert (told["state"], told["action"]) == (1, 2)
    told = succeed("inspect", table, "--action-columns", "acton_*", "--json").json
    assert "no 'acton_*', which --action-columns names" in told["problem"]
    assert "is no recording" in refuse(2, "inspect", "run/dataset.h5", "--keys", "observations=obs")


@pytest.mark.parametrize("name", ["demo.csv", "demo.npy", "motion.npz"])
def test_of_a_recording_without_actions_inspect_says_how_it_is_an_expert(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = formats.write_csv(Path("arm.csv"), ARM)
    if name == "demo.csv":
        joints = [f"joint_{joint}" for joint in formats.JOINTS]
        lines = [
            ",".join(["time", *joints]),
            *(f"{t},{','.join(map(str, row))}" for t, row in enumerate(ARM.states[0])),
        ]
        Path(name).write_text("\n".join(lines))
    elif name == "demo.npy":
        np.save(name, ARM.states[0])
    else:
        formats.mjlab(Path(name), ARM)
    told = succeed("inspect", name, "--json").json
    assert "command" not in told
    assert "can only be the expert of other data" in succeed("inspect", name).stdout
    data = ("--env", "data", "--offline", table, *formats.TABLE)
    succeed("build-dataset", *data, *shlex.split(told["as_expert"]), "--out", "run/dataset.h5")
    found = artifacts.load(Path("run/dataset.h5"), "dataset").arrays["expert/observations"]
    np.testing.assert_allclose(found, ARM.states[0], rtol=1e-5)


def test_episodes_keep_the_numbers_that_a_column_gives_them(tmp_path: Path) -> None:
    found = build(tmp_path, formats.numbered(tmp_path / "arm.hdf5", ARM, first=7), "--episode-column", "episode")
    assert found.arrays["episode_origin"][:, 1].tolist() == [7, 8, 9, 10]


def test_a_column_of_numbers_that_nobody_named_is_not_passed_over(tmp_path: Path) -> None:
    path = formats.numbered(tmp_path / "arm.hdf5", ARM)
    data = ("--env", "data", "--offline", path, "--expert", f"{path}#traj=0", "--out", tmp_path / "dataset.h5")
    assert "nothing says whether it numbers the episodes" in refuse(3, "build-dataset", *data)
    assert "has no 'trial'" in refuse(3, "build-dataset", *data, "--episode-column", "trial")
    own = formats.robomimic(tmp_path / "own.hdf5", ARM)
    said = refuse(3, "build-dataset", *data[:2], "--offline", own, *data[4:], "--episode-column", "episode")
    assert "is for tables and for columns" in said


@pytest.mark.parametrize(
    ("numbers", "ends", "words"),
    [
        ([0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0], "comes again"),
        ([0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 0, 1], "is marked as an end"),
        ([0.5, 0.5, 0.5, 1, 1, 1], [0, 0, 0, 0, 0, 0], "must be a whole number"),
    ],
)
def test_numbers_of_episodes_that_make_no_sense_are_refused(
    numbers: list[float], ends: list[int], words: str, tmp_path: Path
) -> None:
    columns = {"observations": np.ones((6, 2)), "actions": np.full((6, 1), 0.5)}
    np.savez(tmp_path / "arm.npz", **columns, trial=np.array(numbers), terminals=np.array(ends))
    data = ("--env", "data", "--offline", tmp_path / "arm.npz", "--expert", tmp_path / "arm.npz")
    assert words in refuse(3, "build-dataset", *data, "--episode-column", "trial", "--out", tmp_path / "dataset.h5")


def test_names_label_tables_axes_and_dims(tmp_path: Path) -> None:
    build(tmp_path, formats.lerobot(tmp_path / "arm", ARM))
    told = succeed("inspect", tmp_path / "dataset.h5", "--json").json
    assert [state["name"] for state in told["states"]] == formats.JOINTS
    assert [action["name"] for action in told["actions"]] == formats.MOTORS
    picture = ("--png", tmp_path / "d.png", "--dims")
    succeed("inspect", tmp_path / "dataset.h5", *picture, "elbow,wrist")
    assert "no 'elbo'" in refuse(2, "inspect", tmp_path / "dataset.h5", *picture, "elbo,wrist")
