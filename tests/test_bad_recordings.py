"""Recordings that cannot be meant, in every format: a sentence names the file and what was found, nothing is made."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import formats
import h5py
import numpy as np
import pytest
from conftest import listing, refuse, smodice
from formats import FORMATS, KEYS, TABLE, Arm

ARM = Arm.of()


def refused(tmp_path: Path, source: str | Path, *flags: str, code: int = 3) -> str:
    """A failing build-dataset that leaves nothing behind; what it says, with the hint."""
    before = listing(tmp_path)
    arguments = ("--env", "data", "--offline", str(source), "--expert", str(source), *flags)
    outcome = smodice("build-dataset", *arguments, "--out", tmp_path / "runs" / "dataset.h5")
    assert outcome.code == code, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr.count("error: ") == 1
    assert listing(tmp_path) == before
    assert not (tmp_path / "runs").exists()
    return outcome.stderr


def change(path: Path, name: str, value: np.ndarray | None) -> Path:
    with h5py.File(path, "a") as file:
        del file[name]
        if value is not None:
            file[name] = value
    return path


# --- all formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_a_number_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    arm = Arm.of()
    arm.states[2][3, 1] = np.nan
    place, write, flags = FORMATS[name]
    said = refused(tmp_path, write(tmp_path / place, arm), *flags)
    assert "holds NaN or infinite states" in said
    assert place in said


@pytest.mark.parametrize("name", [name for name in FORMATS if "lerobot" not in name and FORMATS[name][2] != TABLE])
def test_mixed_widths_between_files_are_refused(name: str, tmp_path: Path) -> None:
    place, write, flags = FORMATS[name]
    folder = tmp_path / "logs"
    folder.mkdir()
    write(folder / f"1{Path(place).suffix}", ARM)
    wide = Arm([np.pad(part, ((0, 0), (0, 1)), constant_values=1) for part in ARM.states], ARM.actions)
    write(folder / f"2{Path(place).suffix}", wide)
    assert "4 dimensions of state and 2 of action" in refused(tmp_path, folder / "*", *flags)


@pytest.mark.parametrize("name", FORMATS)
def test_whole_numbers_are_no_actions(name: str, tmp_path: Path) -> None:
    arm = Arm(ARM.states, [np.ones(part.shape, np.int64) for part in ARM.actions])
    place, write, flags = FORMATS[name]
    if "robomimic" in name:
        path = change(write(tmp_path / place, ARM), "data/demo_0/actions", np.ones((6 - ("next" in name), 2), np.int64))
    else:
        path = write(tmp_path / place, arm)
    said = refused(tmp_path, path, *flags)
    assert "whole numbers" in said
    assert "hint: if they are quantities" in said


# --- HDF5 -------------------------------------------------------------------------------------------------------------


ROBOMIMIC = ("--obs-keys", "joints,rest")


@pytest.mark.parametrize(
    ("name", "value", "flags", "words"),
    [
        ("data/demo_1/actions", None, ROBOMIMIC, "demo_1 has 3 dimensions of state and 0 of action"),
        (
            "data/demo_1/obs/rest",
            None,
            ROBOMIMIC,
            "demo_1 has no 'rest', which --obs-keys names (it has: camera, joints)",
        ),
        ("data/demo_1/actions", np.ones((3, 2)), ROBOMIMIC, "demo_1: 'actions' has 3 rows, the observation 4"),
        ("data/demo_1/obs/rest", np.ones((3, 1)), ROBOMIMIC, "parts of the observation differ in their rows"),
        ("data/demo_1/obs/rest", np.ones((4, 3)), ROBOMIMIC, "demo_1 has 5 dimensions of state and 2 of action"),
        (
            "data/demo_1/obs/rest",
            np.ones((4, 1), complex),
            ROBOMIMIC,
            "'rest' is not an array of numbers: it holds complex",
        ),
        ("data/demo_1/obs/rest", np.array([b"a"] * 4), ROBOMIMIC, "'rest' is not an array of numbers: it holds text"),
        ("data/demo_1/dones", np.full(4, 0.5), ROBOMIMIC, "'dones' must be true or false"),
        ("data/demo_1/dones", None, (), "an observation has several parts (joints, rest): say which"),
        ("data/demo_1/dones", None, ("--obs-keys", "camera"), "'camera' holds pictures (20 x 20 x 3 a row)"),
        ("mask/valid", None, (), "has no filter key 'valid' (it has: train)"),
    ],
)
def test_robomimic(tmp_path: Path, name: str, value: np.ndarray | None, flags: tuple[str, ...], words: str) -> None:
    path = change(formats.robomimic(tmp_path / "arm.hdf5", ARM), name, value)
    said = refused(tmp_path, f"{path}#filter=valid" if name == "mask/valid" else path, *flags)
    assert words in said
    assert str(path) in said


@pytest.mark.parametrize(
    ("name", "value", "flags", "words"),
    [
        ("action", np.ones((5, 2)), (), "'actions' has 5 rows, 'observations' 6"),
        ("observations/qpos", np.ones((0, 2)), (), "has no rows"),
        ("observations/qvel", None, ("--obs-keys", "qvel"), "has no 'qvel', which --obs-keys names"),
        ("action", np.ones((6, 5, 2)), (), "'actions' holds 5 x 2 numbers a row, not a vector"),
    ],
)
def test_aloha(tmp_path: Path, name: str, value: np.ndarray | None, flags: tuple[str, ...], words: str) -> None:
    folder = formats.aloha(tmp_path / "arm", ARM)
    change(folder / "episode_0.hdf5", name, value)
    said = refused(tmp_path, folder, *flags)
    assert words in said
    assert "episode_0.hdf5" in said


@pytest.mark.parametrize("shape", [(20, 32, 32, 3), (20, 50, 7), (20, 64, 64)], ids=str)
def test_a_row_is_a_vector(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "arm.npz", observations=np.ones(shape), actions=np.ones((20, 2)))
    said = refused(tmp_path, tmp_path / "arm.npz")
    assert ("holds pictures" in said) == (shape != (20, 50, 7))
    assert "not a vector" in said or "pictures" in said


# --- npz, npy, zarr ---------------------------------------------------------------------------------------------------


def test_other_names_are_asked_for(tmp_path: Path) -> None:
    path = formats.npz(tmp_path / "arm.npz", ARM)
    said = refused(tmp_path, path)
    assert "arm.npz has no 'observations' (it has: acts, obs, timeouts)" in said
    assert "--keys observations=NAME" in said
    assert "has no 'observations'" in refused(tmp_path, path, "--keys", "observations=o,actions=acts")
    assert "expected OURS=THEIRS" in refused(tmp_path, path, "--keys", "observations", code=2)
    assert "is no column of ours" in refused(tmp_path, path, "--keys", "observation=obs", code=2)
    folder = formats.npy(tmp_path / "arm", ARM)
    np.save(folder / "acts.npy", np.ones((3, 2)))
    assert "'actions' has 3 rows, 'observations' 24" in refused(tmp_path, folder, *KEYS)


def test_a_motion_has_no_actions(tmp_path: Path) -> None:
    path = formats.mjlab(tmp_path / "motion.npz", ARM)
    assert "holds no actions" in refused(tmp_path, path)


@pytest.mark.parametrize(("ends", "words"), [([6, 10], "must rise to the number of rows, 24"), ([], "0 ends")])
def test_zarr(tmp_path: Path, ends: list[int], words: str) -> None:
    import zarr

    path = formats.zarr(tmp_path / "arm.zarr", ARM)
    store = zarr.open_group(str(path), mode="a")
    del store["meta/episode_ends"]
    store.create_array("meta/episode_ends", data=np.array(ends, np.int64))
    assert words in refused(tmp_path, path)
    assert "'img' holds pictures" in refused(tmp_path, path, "--obs-keys", "img")
    shutil.rmtree(path / "meta")
    assert "has no 'data' and 'meta/episode_ends' (it has: data)" in refused(tmp_path, path)


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "without --state-columns (it has: episode, joint_shoulder"),
        (("--state-columns", "joint_*"), "nothing says whether it numbers the episodes"),
        ((*TABLE[:4], "--episode-column", "demo"), "has no 'demo', which --episode-column names"),
        (("--state-columns", "angle_*", *TABLE[2:]), "has no 'angle_*', which --state-columns names"),
        ((*TABLE[:2], "--action-columns", "b_*", *TABLE[4:]), "holds no actions"),
        ((*TABLE[:4], "--episode-column", "joint_elbow"), "'joint_elbow' must be a whole number"),
    ],
)
def test_tables_that_are_not_explained(tmp_path: Path, name: str, flags: tuple[str, ...], words: str) -> None:
    place, write, _ = FORMATS[name]
    assert words in refused(tmp_path, write(tmp_path / place, ARM), *flags)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0,", "zero,", "'episode' holds text"),
        ("3,", "0,", "episode 0 comes again after others"),
    ],
)
def test_csv_lines_that_cannot_be_meant(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = formats.write_csv(tmp_path / "arm.csv", ARM)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(new + line.removeprefix(old) if line.startswith(old) else line for line in lines) + "\n")
    assert words in refused(tmp_path, path, *TABLE)


def test_csv_that_is_cut_short_or_has_no_names(tmp_path: Path) -> None:
    path = formats.write_csv(tmp_path / "arm.csv", ARM)
    path.write_text(path.read_text()[:-30])
    assert "a line does not hold its numbers" in refused(tmp_path, path, *TABLE)
    path.write_text("0,1.5,2.5\n0,1.5,2.5\n")
    assert "is a CSV file without a line of names" in refused(tmp_path, path, *TABLE)
    path.write_text("episode,joint_a,action_b\n")
    assert "has no rows" in refused(tmp_path, path, *TABLE)
    path.write_text("")
    assert "without a line of names" in refused(tmp_path, path, *TABLE)


def test_ragged_lists_of_parquet_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [[1.0, 2.0], [1.0, 2.0], [1.0]]
    pq.write_table(pa.table({"state": rows, "act": [0.5, 0.5, 0.5]}), tmp_path / "arm.parquet")
    said = refused(tmp_path, tmp_path / "arm.parquet", "--state-columns", "state", "--action-columns", "act")
    assert "'state' holds 1 to 2 numbers a row" in said


# --- LeRobot ----------------------------------------------------------------------------------------------------------

VIDEO = {"observation.images.top": {"dtype": "video", "shape": [480, 640, 3]}, "action": {"dtype": "float32"}}


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"features": VIDEO}, "has no vector of states: only pictures were observed (observation.images.top)"),
        ({"storage_format": "lance"}, "in a Lance store, which is not read"),
        ({"codebase_version": "v1.6"}, "of version v1.6; v2.1 and v3 are read"),
        ({"total_episodes": 9}, "holds 4 episodes of two frames or more"),
        ({"features": None}, "info.json is not LeRobot's"),
        (
            {"features": {"observation.eef": {"dtype": "float32"}}},
            "has no 'observation.state' (it has: observation.eef)",
        ),
        ({"features": {"observation.eef": {}, "observation.state": {}}}, "has no 'observation.eef'"),
    ],
)
def test_lerobot(tmp_path: Path, info: dict[str, object], words: str) -> None:
    path = formats.lerobot(tmp_path / "arm", ARM, **info)
    flags = ("--obs-keys", "observation.eef") if "has no 'observation.eef'" in words else ()
    assert words in refused(tmp_path, path, *flags)


def test_lerobot_files_that_are_not_there_or_damaged(tmp_path: Path) -> None:
    path = formats.lerobot(tmp_path / "arm", ARM, data=False)
    assert "has no parquet files under data" in refused(tmp_path, path)
    (path / "data/chunk-000/file-000.parquet").write_bytes(b"PAR1 and nothing more")
    assert "is not a LeRobot data set, or is cut short" in refused(tmp_path, path)
    (path / "meta/info.json").write_text(json.dumps({"codebase_version": "v3.0"})[:-3])
    assert "info.json is not LeRobot's" in refused(tmp_path, path)


def test_lerobot_frames_that_are_missing(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = formats.lerobot(tmp_path / "arm", ARM)
    file = path / "data/chunk-000/file-001.parquet"
    table = pq.read_table(file)
    pq.write_table(table.filter(np.arange(len(table)) != 4), file)
    assert "episode 2 goes from frame 3 to 5: frames are missing" in refused(tmp_path, path)


# --- what is no recording ---------------------------------------------------------------------------------------------


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"observations": [1, 2, 3]}))


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("log.pkl", write_pickle, "it is a pickle"),
        ("log.hdf5", write_pickle, "is not an HDF5 file, or is cut short: it is a pickle"),
        ("log.bag", lambda path: path.write_bytes(b"#ROSBAG V2.0\n\x80\x81"), "it is a ROS bag"),
        ("log.mcap", lambda path: path.write_bytes(b"\x89MCAP0\r\n"), "it is a ROS 2 bag (MCAP)"),
        ("x.tfrecord-00000-of-00001", lambda path: path.write_bytes(b"\x0b\xff\x00\x00"), "it is an RLDS (TensorFlow)"),
        ("log.txt", lambda path: path.write_text("time x y\n"), "it is text"),
        ("log.json", lambda path: path.write_text("{}"), "it is JSON"),
        (
            "log.npz",
            lambda path: path.write_bytes(b"PK\x03\x04 cut"),
            "is not an .npz file of numbers, or is cut short",
        ),
        ("log.bin", lambda path: path.write_bytes(b"\xfe\xfe\xfe"), "of a format that is not known here"),
        ("empty", lambda path: path.write_bytes(b""), "it is an empty file"),
        ("folder", lambda path: path.mkdir(), "it is an empty folder"),
        ("notes", lambda path: (path.mkdir(), (path / "a.txt").write_text("x")), "it is a folder without recordings"),
        ("rlds", lambda path: (path.mkdir(), (path / "features.json").write_text("{}")), "it is an RLDS (TensorFlow)"),
    ],
)
def test_a_file_is_named_for_what_it_is(tmp_path: Path, name: str, write: Callable[[Path], object], words: str) -> None:
    write(tmp_path / name)
    said = refused(tmp_path, tmp_path / name)
    assert words in said
    assert name in said


def test_paths_that_are_not_there(tmp_path: Path) -> None:
    assert "nothing matches" in refused(tmp_path, f"file:{tmp_path}/*.hdf5")
    assert "does not exist" in refused(tmp_path, f"file:{tmp_path}/arm")
    assert "expected SCHEME:NAME[#SELECTION], a path or an id" in refused(tmp_path, tmp_path / "arm.hdf5", code=2)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("parquet", "pyarrow", "lerobot"), ("lerobot-v3", "pyarrow", "lerobot"), ("zarr",) * 3],
)
def test_a_package_that_is_not_installed_is_named(
    name: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, write, flags = FORMATS[name]
    path = write(tmp_path / place, ARM)
    monkeypatch.setitem(sys.modules, package, None)
    said = refused(tmp_path, path, *flags)
    assert f"needs the {package} package" in said
    assert f"pip install 'smodice[{extra}]'" in said


def test_an_artifact_is_not_written_among_the_recordings(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = formats.d4rl(folder / "1.hdf5", ARM)
    flags = ("--env", "data", "--offline", folder, "--expert", path, "--out", folder / "run/dataset.h5")
    assert "which is read" in refuse(2, "build-dataset", *flags)
    pattern = ("--env", "data", "--offline", folder / "*.h*5", "--expert", path, "--out", folder / "dataset.h5")
    assert "which is read" in refuse(2, "build-dataset", *pattern)


def test_a_filter_is_for_files_that_have_one(tmp_path: Path) -> None:
    path = formats.d4rl(tmp_path / "arm.hdf5", ARM)
    assert "#filter=train is for robomimic's filter keys" in refused(tmp_path, f"{path}#filter=train")


# --- files that ask for more than they hold ---------------------------------------------------------------------------


@pytest.mark.parametrize("group", [0, 1])
def test_free_space_that_leads_in_a_circle_is_one_sentence(tmp_path: Path, group: int) -> None:
    """The HDF5 library follows it for ever, and takes memory at every step."""
    path = formats.robomimic(tmp_path / "arm.hdf5", ARM)
    whole = bytearray(path.read_bytes())
    places = [place for place in range(len(whole)) if whole[place : place + 4] == b"HEAP"]
    first, names = struct.unpack_from("<QQ", whole, places[group] + 16)
    struct.pack_into("<Q", whole, names + first, first)  # the first free piece says that the next one is itself
    path.write_bytes(whole)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, hard))  # without a bound of ours it ends here, and not with all
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        assert "is cut short" in refused(tmp_path, path)
        shutil.copy(path, tmp_path / "dataset.h5")
        assert "Traceback" not in smodice("inspect", tmp_path / "dataset.h5").stderr
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kB


def test_a_zarr_store_that_declares_what_it_does_not_hold(tmp_path: Path) -> None:
    """Its missing chunks would be read as fill values, for hours."""
    path = formats.zarr(tmp_path / "arm.zarr", ARM)
    rows = 3_000_000_000
    for name in ("data/state", "data/action"):
        told = json.loads((path / name / ".zarray").read_text())
        (path / name / ".zarray").write_text(json.dumps(told | {"shape": [rows, told["shape"][1]]}))
    assert "are stored" in refused(tmp_path, path)


def test_a_zarr_chunk_of_a_negative_size_is_one_sentence(tmp_path: Path) -> None:
    path = formats.zarr(tmp_path / "arm.zarr", ARM)
    chunk = path / "data/state/0.0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:4] + b"\xff" * 4 + whole[8:])  # where Blosc keeps the size
    assert "is cut short" in refused(tmp_path, path)


def test_a_zarr_store_runs_no_code(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    path = formats.zarr(tmp_path / "arm.zarr", ARM)
    name = "meta/episode_ends"
    told = json.loads((path / name / ".zarray").read_text())
    told |= {"dtype": "|O", "filters": [{"id": "pickle", "protocol": 4}], "compressor": None, "fill_value": 0}
    (path / name / ".zarray").write_text(json.dumps(told))
    (path / name / "0").write_bytes(pickle.dumps(Attack()))
    refused(tmp_path, path)
    assert not (tmp_path / "executed").exists()


def test_a_parquet_file_that_unpacks_to_far_more_than_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smodice_cli.sources.layouts.arrays.ROOM", 1000)
    long = Arm.of((20_000,))
    path = formats.parquet(
        tmp_path / "arm.parquet", Arm([0 * part for part in long.states], [0.5 + 0 * long.actions[0]])
    )
    assert "are stored" in refused(tmp_path, path, *TABLE)


def test_a_split_of_endless_episodes_is_only_compared_with_them(tmp_path: Path) -> None:
    path = formats.lerobot(tmp_path / "arm", ARM, splits={"train": "0:99999999999999", "odd": "a:b", "none": None})
    arguments = ("--env", "data", "--offline", f"{path}#filter=train", "--expert", f"{path}#traj=0")
    assert smodice("build-dataset", *arguments, "--out", tmp_path / "new.h5").code == 0
    for name in ("odd", "none"):
        refuse(3, "build-dataset", *arguments, "--offline", f"{path}#filter={name}", "--out", tmp_path / "new2.h5")


@pytest.mark.parametrize(
    "field", ["1" * 100_000 + "x", "y" * 200_000, "\0", '"'], ids=["digits", "text", "nul", "quote"]
)
def test_odd_fields_of_a_csv_file_are_one_sentence(tmp_path: Path, field: str) -> None:
    """Digits: an expression that can take each in two ways takes the square of their number."""
    path = tmp_path / "arm.csv"
    path.write_text(f"joint_a,action_a,episode\n{field},0.5,0\n1,0.5,0\n")
    refused(tmp_path, path, *TABLE)
    assert smodice("inspect", path).code in (0, 3)


def test_an_npy_file_whose_header_is_cut_is_one_sentence(tmp_path: Path) -> None:
    path = formats.npy(tmp_path / "arm", ARM)
    whole = (path / "obs.npy").read_bytes()
    (path / "obs.npy").write_bytes(whole[:20] + b" " * 100 + whole[120:])
    refused(tmp_path, path, *KEYS)


def test_a_file_whose_root_is_no_group_is_one_sentence(tmp_path: Path) -> None:
    """It opens, and the first look into it fails."""
    path = formats.robomimic(tmp_path / "arm.hdf5", ARM)
    whole = bytearray(path.read_bytes())
    (root,) = struct.unpack_from("<Q", whole, 64)  # the superblock says where
    struct.pack_into("<H", whole, root + 16, 0)  # instead of: here is the table of a group
    path.write_bytes(whole)
    refuse(3, "inspect", path)
    refused(tmp_path, path)
