"""build-dataset: data that do not belong together, files opened once, and the expert of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import listing, refuse, succeed
from recordings import HOPPER, rows_of, write_d4rl

from smodice_cli import artifacts, lazy, sources
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError
from smodice_cli.sources.expert import expert_return, expert_states
from smodice_cli.sources.layouts import arrays


def wrong_environment(folder: Path) -> tuple[list[str], str]:
    path = write_d4rl(folder / "log.hdf5", env="walker2d")
    return ["--offline", f"file:{path}", "--expert", f"file:{path}#traj=0"], "observations have 17 dimensions"


def other_body(folder: Path) -> tuple[list[str], str]:
    return ["--offline", "sim:walker2d-random#100", "--expert", "sim:hopper-random#traj=0"], "acts in walker2d"


def expert_of_other_width(folder: Path) -> tuple[list[str], str]:
    return ["--offline", "sim:hopper-random#100", "--expert", "sim:walker2d-random#traj=0"], "17 dimensions"


def index_out_of_range(folder: Path) -> tuple[list[str], str]:
    path = write_d4rl(folder / "log.hdf5")
    return ["--offline", f"file:{path}", "--expert", f"file:{path}#traj=4"], "has only 4 trajectories (counted from 0)"


def too_many(folder: Path) -> tuple[list[str], str]:
    path = write_d4rl(folder / "log.hdf5")
    return ["--offline", f"file:{path}#9", "--expert", f"file:{path}#traj=0"], "has only 4 trajectories"


def cut_short(folder: Path) -> tuple[list[str], str]:
    path = write_d4rl(folder / "log.hdf5", episodes=100)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return ["--offline", f"file:{path}", "--expert", f"file:{path}#traj=0"], "cut short"


def no_policy(folder: Path) -> tuple[list[str], str]:
    return ["--offline", "sim:hopper-random#100", "--expert", f"sim:hopper@{folder}/p#traj=0"], "does not exist"


@pytest.mark.parametrize(
    "case",
    [wrong_environment, other_body, expert_of_other_width, index_out_of_range, too_many, cut_short, no_policy],
    ids=lambda case: case.__name__,
)
def test_bad_data_get_one_sentence_and_leave_nothing(
    case: Callable[[Path], tuple[list[str], str]], tmp_path: Path
) -> None:
    arguments, message = case(tmp_path)
    before = listing(tmp_path)
    assert message in refuse(3, "build-dataset", "--env", HOPPER, *arguments, "--out", tmp_path / "run" / "d.h5")
    assert listing(tmp_path) == before


# --- files are opened once --------------------------------------------------------------------------------------------


def as_npz(path: Path) -> Path:
    with h5py.File(path) as file:
        np.savez_compressed(path.with_suffix(".npz"), **{name: file[name][:] for name in file})
    return path.with_suffix(".npz")


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_a_file_is_opened_once_and_closed_in_the_end(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_d4rl(tmp_path / "log.hdf5")
    path = as_npz(path) if kind == "npz" else path
    opened: list[Any] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def remember(place: Path, *rest: Any, **options: Any) -> Any:
            found = function(place, *rest, **options)
            if str(place) == str(path):  # what is written goes to an open file
                opened.append(found)
            return found

        return remember

    monkeypatch.setattr(lazy.h5py, "File", watched(h5py.File))
    monkeypatch.setattr(lazy.np, "load", watched(np.load))
    sources = ("--offline", f"file:{path}", "--offline", f"file:{path}#2", "--expert", f"file:{path}#traj=0")
    succeed("build-dataset", "--env", "data", *sources, "--out", tmp_path / "d.h5")
    assert len(opened) == 1
    assert not opened[0] if kind == "hdf5" else opened[0].zip is None, "closed"
    assert succeed("build-dataset", "--env", "data", *sources, "--out", tmp_path / "d.h5", "--json").json["status"]


def test_clipping_a_source_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    """The same archive twice: what is clipped of the first is not gone from the second, which is the same memory."""
    path = write_d4rl(tmp_path / "log.hdf5")
    with h5py.File(path, "a") as file:
        file["actions"][3] = 5.0
    path = as_npz(path)
    sources = ("--offline", f"file:{path}", "--offline", f"file:{path}", "--expert", f"file:{path}#traj=0")
    said = succeed("build-dataset", "--env", HOPPER, *sources, "--out", tmp_path / "d.h5").stderr
    assert said.count("1 of 40 actions lay outside [-1, 1]") == 2


# --- the expert -------------------------------------------------------------------------------------------------------


def test_drawn_states_are_the_files_own_and_no_more_than_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_d4rl(tmp_path / "log.hdf5", episodes=30, length=20)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 100)
    found = expert_states(sources.parse(f"file:{path}#states=50"), HOPPER, 0, 1)
    drawn = found.states
    everything = rows_of(f"file:{path}", HOPPER).states()
    assert drawn.shape == (50, 11)
    assert not found.returns
    assert not len(found.lengths)
    assert len({state.tobytes() for state in drawn} & {state.tobytes() for state in everything}) == 50
    with pytest.raises(InputError, match="has only 630 such states"):
        expert_states(sources.parse(f"file:{path}#states=5000"), HOPPER, 0, 1)


def source(origin: str, episodes: int, mean: float) -> dict[str, object]:
    return {"label": origin, "origin": origin, "rows": 10 * episodes, "episodes": episodes, "mean_return": mean}


@pytest.mark.parametrize(
    ("offline", "demonstrated", "expected"),
    [
        # One trajectory is noisy: the 200 offline ones of the same expert count instead.
        ([source("e", 200, 3500), source("r", 50000, 18)], [source("e", 1, 3700)], 3500),
        # Success states or another body's expert: the best of several offline sources stands for the expert.
        ([source("e", 200, 3500), source("r", 50000, 18)], [], 3500),
        # The expert is not among the offline sources.
        ([source("m", 200, 1500), source("r", 50000, 18)], [source("e", 1, 3700)], 3700),
        # A single mixture does not say which of its rows are the expert's.
        ([source("mixed", 600, 0.25)], [], None),
        ([source("mixed", 600, 0.25)], [source("e", 10, 0.9)], 0.9),
    ],
)
def test_expert_return_is_that_of_the_best_source_of_the_imitators_body(
    offline: list[dict[str, object]], demonstrated: list[dict[str, object]], expected: float | None
) -> None:
    assert expert_return(offline, demonstrated) == expected


def test_one_trajectory_of_a_mixed_file_has_its_own_return(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "mixed.hdf5", scale=5)
    with h5py.File(path, "a") as file:
        rewards = file["rewards"][:]
        rewards[: len(rewards) // 2] = 0
        del file["rewards"]
        file["rewards"] = rewards
    out = ("--out", tmp_path / "d.h5", "--json")
    arguments = ("build-dataset", "--env", HOPPER, "--offline", f"file:{path}", "--expert")
    found = [succeed(*arguments, f"file:{path}#traj={k}", *out).json["metrics"] for k in (0, 2)]
    mean = found[0]["offline"][0]["mean_return"]
    assert found[0]["expert_return"] is None  # no reward: it stands for nothing
    assert found[1]["expert_return"] > mean


def test_header_holds_the_return_of_the_offline_experts(tmp_path: Path) -> None:
    good, bad = write_d4rl(tmp_path / "good.hdf5", scale=5), write_d4rl(tmp_path / "bad.hdf5", scale=-1)
    arguments = ("--offline", f"file:{good}", "--offline", f"file:{bad}", "--expert", f"file:{good}#traj=2")
    summary = succeed("build-dataset", "--env", HOPPER, *arguments, "--out", tmp_path / "d.h5", "--json").json
    assert summary["metrics"]["expert_return"] == pytest.approx(50)
    assert [entry["mean_return"] for entry in summary["metrics"]["offline"]] == pytest.approx([50, -10])


def test_the_best_trajectory_has_the_highest_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_d4rl(tmp_path / "log.hdf5", episodes=5, length=20)
    with h5py.File(path, "a") as file:
        file["rewards"][:] = np.repeat([1.0, 3.0, 2.0, 9.0, -1.0], 20)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 50)  # it is in the second of the blocks
    for text, number in (("#best", 3), ("#best=3", 1)):
        found, wanted = (rows_of(f"file:{path}{one}", HOPPER) for one in (text, f"#traj={number}"))
        np.testing.assert_array_equal(found.observations, wanted.observations)
    with pytest.raises(InputError, match="has only 5 trajectories"):
        rows_of(f"file:{path}#best=6", HOPPER)
    first, best = (rows_of(f"sim:hopper-random#{one}", HOPPER) for one in ("episodes=9", "best=9"))
    assert best.returns() == [max(first.returns())]
    arguments = ("build-dataset", "--env", HOPPER, "--offline", f"file:{path}", "--expert", f"file:{path}#best")
    told = succeed(*arguments, "--out", tmp_path / "d.h5", "--json").json
    assert told["metrics"]["expert_return"] == pytest.approx(180)


def test_a_best_trajectory_that_nothing_tells_is_refused(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "log.hdf5")
    with h5py.File(path, "a") as file:
        file["rewards"][:] = 0.0
    arguments = ("build-dataset", "--env", HOPPER, "--offline", f"file:{path}", "--expert")
    assert "holds no rewards that would tell" in refuse(3, *arguments, f"file:{path}#best", "--out", tmp_path / "d.h5")
    with h5py.File(path, "a") as file:
        file["rewards"][:] = np.nan
    assert "NaN or infinite rewards" in refuse(3, *arguments, f"file:{path}#best", "--out", tmp_path / "d.h5")
    said = refuse(2, *arguments, "sim:hopper-expert#best", "--out", tmp_path / "d.h5")
    assert "say how many trajectories the best is to be of" in said


def test_missing_states_of_the_expert_leave_pairs_that_are_one_step_apart(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "log.hdf5", episodes=4, length=20)
    out, given = tmp_path / "d.h5", ("--set", "expert_keep=0.5", "--set", "expert_actions=true", "--set", "keep=0.3")
    arguments = ("build-dataset", "--env", HOPPER, "--offline", f"file:{path}", "--expert", f"file:{path}#episodes=3")
    told = succeed(*arguments, *given, "--out", out, "--json").json["metrics"]
    data, whole = Dataset.of(artifacts.load(out, "dataset")), rows_of(f"file:{path}#episodes=3", HOPPER)
    assert told["rows"] == data.rows < 50
    steps = {(s.tobytes(), n.tobytes()) for s, n in zip(whole.observations, whole.next_observations, strict=True)}
    found = {(s.tobytes(), n.tobytes()) for s, n in zip(*data.expert_transitions(), strict=True)}
    assert 5 < len(found) < 40
    assert found < steps
    assert len(data["expert/observations"]) == data["expert/offsets"][-1] == told["expert_states"]
    taken = dict(zip((state.tobytes() for state in whole.observations), whole.actions, strict=True))
    for state, action in zip(*data.expert_pairs(), strict=True):
        np.testing.assert_array_equal(action, taken[state.tobytes()])
    full = succeed(*arguments, "--out", tmp_path / "whole.h5", "--json").json["metrics"]
    assert told["expert_return"] == full["expert_return"], "of the whole episodes"
