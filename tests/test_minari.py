"""Minari's data sets: its layout, its folder and its downloads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import refuse
from recordings import POINT, read, rows_of, write_minari

from smodice_cli import sources
from smodice_cli.errors import InputError, UsageError
from smodice_cli.sources import layouts, minari
from smodice_cli.sources.source import Choice


@pytest.fixture
def minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "minari"
    root.mkdir()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root


def test_minari_episodes_come_in_the_order_of_their_numbers(minari_root: Path) -> None:
    write_minari(minari_root / "mine/point-v0" / minari.DATA, [3] * 12)
    block = rows_of("minari:mine/point-v0", POINT)
    np.testing.assert_array_equal(block.observations[::3, 0], np.arange(12))
    assert block.episodes == 12


def test_minari_next_observations_are_the_following_ones(minari_root: Path) -> None:
    path = write_minari(minari_root / "mine/point-v0" / minari.DATA, [4, 5])
    block = rows_of("minari:mine/point-v0#traj=1", POINT)
    with h5py.File(path) as file:
        states = np.float32(file["episode_1/observations"])
    np.testing.assert_array_equal(block.observations, states[:-1])
    np.testing.assert_array_equal(block.next_observations, states[1:])
    np.testing.assert_array_equal(block.states(), states)
    assert (block.terminals.tolist(), block.timeouts.tolist()) == ([False] * 5, [False] * 4 + [True])


def test_goal_dictionaries_give_the_parts_the_environment_names(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "goal.hdf5", [3, 4], goal=True)
    plain = read(path, 200)
    assert plain.observations.shape == (7, 4)
    joined = read(path, 200, choice=Choice(parts=("achieved_goal", "observation")))
    np.testing.assert_array_equal(joined.observations[:, 2:], plain.observations)
    with layouts.opened(path, Choice(parts=("achieved_goal", "observation"))) as recording:
        held = recording.describe()
    assert (held.observations, held.actions) == (6, 2)
    with pytest.raises(InputError, match=r"no 'camera', which --obs-keys names \(it has: achieved_goal, desired"):
        read(path, 200, choice=Choice(parts=("camera",)))


def test_genuine_minari_data_set_reads_back(minari_root: Path) -> None:
    package = pytest.importorskip("minari")
    import gymnasium
    from minari.data_collector.episode_buffer import EpisodeBuffer

    rng = np.random.default_rng(0)
    lengths = [5, 7, 6]
    buffers = [
        EpisodeBuffer(
            id=number,
            observations=rng.normal(size=(length + 1, 4)),
            actions=rng.uniform(-1, 1, (length, 2)),
            rewards=[1.0] * length,
            terminations=[False] * (length - 1) + [True],
            truncations=[False] * length,
            infos={},
        )
        for number, length in enumerate(lengths)
    ]
    box = gymnasium.spaces.Box
    with pytest.warns(UserWarning, match="is set to None"):
        package.create_dataset_from_buffers(
            "mine/genuine-v0", buffers, observation_space=box(-9, 9, (4,)), action_space=box(-1, 1, (2,))
        )
    block = rows_of("minari:mine/genuine-v0", POINT)
    assert np.diff(block.offsets).tolist() == lengths
    np.testing.assert_allclose(block.observations[5:12], np.float32(buffers[1].observations)[:-1])


def test_absent_minari_set_without_the_package_names_the_file(
    minari_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(InputError, match="needs the minari package") as caught:
        sources.parse("minari:mujoco/hopper/expert-v0").file()
    assert str(minari_root / "mujoco/hopper/expert-v0" / minari.DATA) in caught.value.hint


@pytest.mark.parametrize("works", [True, False])
def test_remote_minari_set_arrives_whole_or_not_at_all(
    minari_root: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    package = pytest.importorskip("minari")

    def download(name: str) -> None:
        place = Path(os.environ["MINARI_DATASETS_PATH"]) / name / minari.DATA
        write_minari(place, [3, 3])
        if not works:
            raise ConnectionError("the line went dead")

    monkeypatch.setattr(package, "download_dataset", download)
    if works:
        assert sources.parse("minari:mine/point-v0").file() == minari_root / "mine/point-v0" / minari.DATA
        assert minari.local_ids() == ["mine/point-v0"]
    else:
        with pytest.raises(InputError, match="the line went dead"):
            sources.parse("minari:mine/point-v0").file()
        assert not list(minari_root.iterdir())
    assert os.environ["MINARI_DATASETS_PATH"] == str(minari_root)


def test_minari_ids_stay_inside_their_folder() -> None:
    for text in ("../x-v0", "/etc/x-v0", "a//b-v0", "x"):
        with pytest.raises(UsageError):
            sources.parse(f"minari:{text}").check_offline(POINT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"episode_1/observations": np.ones((5, 3))}, "episode_1 has 3 dimensions of state and 2 of action"),
        ({"episode_1/actions/left": np.ones((4, 1))}, "'actions' is not an array with a row for each step"),
        ({"episode_0/observations": np.float32(3)}, "'observations' is not an array with a row for each step"),
        ({"episode_0/terminations": np.array([1, 0, 1])}, "'terminations' is set before the last step"),
        ({"episode_0/terminations": np.array([0, 0, np.nan])}, "'terminations' must be true or false"),
    ],
)
def test_minari_episodes_that_cannot_be_meant(tmp_path: Path, change: dict[str, np.ndarray], words: str) -> None:
    path = write_minari(tmp_path / "m.hdf5", [3, 4])
    with h5py.File(path, "a") as file:
        for name, value in change.items():
            parts = name.split("/")
            del file["/".join(parts[:2])]
            file[name] = value
    sources = ("--offline", f"file:{path}", "--expert", f"file:{path}", "--out", tmp_path / "d.h5")
    assert words in refuse(3, "build-dataset", "--env", POINT, *sources)


def test_minari_episodes_without_a_step_are_passed_over(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "m.hdf5", [3, 4])
    with h5py.File(path, "a") as file:
        for number, states in ((2, 1), (3, 0)):
            group = file.create_group(f"episode_{number}")
            group["observations"], group["actions"] = np.ones((states, 4)), np.ones((0, 2))
    assert read(path, 200).episodes == 2
