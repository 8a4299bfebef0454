"""Recorded files in D4RL's layout and its variants, against a slow and obvious reading of the same file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import SHARED_DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import HOPPER, POINT, read, rows_of, write_d4rl

from smodice_cli import sources
from smodice_cli.data import Transitions, concatenate
from smodice_cli.errors import InputError
from smodice_cli.sources import layouts
from smodice_cli.sources.expert import expert_states
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.d4rl import COLUMNS

HORIZON = 5
Row = tuple[Any, ...]


def write(path: Path, columns: dict[str, np.ndarray]) -> Path:
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column
    return path


def read_all(path: Path, horizon: int = HORIZON, **options: Any) -> Transitions | None:
    """Every row, or None where there is none."""
    with layouts.opened(path) as recording:
        blocks = list(recording.episodes(horizon, **options))
    return concatenate(blocks) if blocks else None


def slow_reading(columns: dict[str, np.ndarray], horizon: int) -> list[list[Row]]:
    """Row by row: split at ends, give each row its next state, drop rows whose next state nobody knows."""
    rows = len(columns["observations"])
    episodes: list[list[Row]] = []
    current: list[dict[str, Any]] = []
    for i in range(rows):
        terminal = bool(columns["terminals"].reshape(-1)[i]) if "terminals" in columns else False
        timeout = bool(columns["timeouts"].reshape(-1)[i]) if "timeouts" in columns else False
        row = {
            "s": np.float32(columns["observations"][i]).tolist(),
            "a": np.float32(columns["actions"][i]).reshape(-1).tolist(),
            "r": float(np.float32(columns["rewards"].reshape(-1)[i])) if "rewards" in columns else 0.0,
            "next": np.float32(columns["next_observations"][i]).tolist() if "next_observations" in columns else None,
            "terminal": terminal,
            "timeout": timeout,
        }
        current.append(row)
        limit = "timeouts" not in columns and len(current) == horizon  # marked as a terminal, or not at all
        if not (terminal or timeout or limit or i == rows - 1):
            continue
        last = current[-1]
        if limit:
            last["terminal"], last["timeout"] = False, True
        if not last["terminal"]:
            last["timeout"] = True
        for here, there in pairwise(current):
            here["next"] = here["next"] or there["s"]
        if last["next"] is None and last["terminal"]:
            last["next"] = last["s"]
        if last["next"] is None:
            current.pop()
            if current:
                current[-1]["timeout"] = True
        if current:
            episodes.append([tuple(row.values()) for row in current])
        current = []
    return episodes


def as_rows(found: Transitions | None) -> list[list[Row]]:
    if found is None:
        return []
    rows = [
        (s.tolist(), a.tolist(), float(r), n.tolist(), bool(terminal), bool(timeout))
        for s, a, r, n, terminal, timeout in zip(
            found.observations,
            found.actions,
            found.rewards,
            found.next_observations,
            found.terminals,
            found.timeouts,
            strict=True,
        )
    ]
    return [rows[a:b] for a, b in pairwise(found.offsets)]


@st.composite
def recordings(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Files of every shape: episodes of any length, ended by a terminal, a timeout, both or the end of the file."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    ends = draw(
        st.lists(st.sampled_from(["terminal", "timeout", "both"]), min_size=len(lengths), max_size=len(lengths))
    )
    cut = draw(st.booleans())
    rows = sum(lengths)
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    kind = draw(st.sampled_from([np.float32, np.float64]))
    columns = {
        "observations": rng.normal(size=(rows, 3)).astype(kind),
        "actions": rng.normal(size=(rows, 1, 2) if draw(st.booleans()) else (rows, 2)).astype(kind),
        "infos/qpos": rng.normal(size=(rows, 2)),
        "metadata/name": np.bytes_("x"),
    }
    at = np.cumsum(lengths) - 1
    flags = {
        name: np.isin(np.arange(rows), [i for i, e in zip(at, ends, strict=True) if e in (name[:-1], "both")])
        for name in ("terminals", "timeouts")
    }
    for flag in flags.values():
        flag[-1] &= not cut
    flag_shape = (rows, 1) if draw(st.booleans()) else (rows,)
    columns["terminals"] = flags["terminals"].reshape(flag_shape).astype(draw(st.sampled_from([bool, np.uint8, float])))
    if draw(st.booleans()):
        columns["timeouts"] = flags["timeouts"].reshape(flag_shape)
    if draw(st.booleans()):
        columns["next_observations"] = rng.normal(size=(rows, 3)).astype(kind)
    if draw(st.booleans()):
        columns["rewards"] = rng.normal(size=(rows,)).astype(kind)
    return columns


@settings(max_examples=150, deadline=None)
@given(columns=recordings(), block=st.integers(1, 20))
def test_every_variant_reads_as_the_obvious_reader_reads_it(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, np.ndarray], block: int
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "recording.hdf5", columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "BLOCK_ROWS", block)  # the content must not depend on how it is cut into blocks
        found = read_all(path)
    assert as_rows(found) == slow_reading(columns, HORIZON)


@settings(max_examples=60, deadline=None)
@given(columns=recordings())
def test_an_expert_file_needs_only_observations(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, np.ndarray]
) -> None:
    """Every state of the file is there once, in order."""
    path = write(tmp_path_factory.getbasetemp() / "states.hdf5", {"observations": columns["observations"]})
    found = read_all(path, states_only=True)
    assert found is not None
    assert found.states().tolist() == np.float32(columns["observations"]).tolist()


def test_episodes_without_any_mark_end_at_the_time_limit(tmp_path: Path) -> None:
    """HalfCheetah never ends: a log of it that names no timeouts still holds no step from one episode to the next."""
    states = np.arange(12.0)[:, None] + 100 * (np.arange(12) // 4)[:, None]
    columns = {"observations": states, "actions": np.zeros((12, 1)), "terminals": np.zeros(12, bool)}
    found = read_all(write(tmp_path / "x.hdf5", columns), horizon=4)
    assert found is not None
    assert np.diff(found.offsets).tolist() == [3, 3, 3]
    assert (found.next_observations - found.observations == 1).all()


def test_states_that_each_stand_alone_are_an_expert(tmp_path: Path) -> None:
    """A handful of success states, each marked as an episode, or without any mark."""
    states = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    for marks in ({"timeouts": np.ones(5, bool)}, {"terminals": np.ones(5, bool)}, {}):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npz"
        np.savez(path, observations=states, **marks)
        for selection in ("", "#states=5"):
            spec = sources.parse(f"file:{path}{selection}")
            found = expert_states(spec, POINT, 0, 1)
            np.testing.assert_array_equal(np.sort(found.states, axis=0), np.sort(states, axis=0))


def test_another_body_has_a_time_limit_of_its_own(tmp_path: Path) -> None:
    columns = {"observations": np.arange(3000.0).reshape(500, 6), "actions": np.zeros((500, 2))}
    source = sources.parse(f"file:{write(tmp_path / 'other.hdf5', columns)}#traj=0")
    assert len(expert_states(source, POINT, 0, 1).states) == 500


def test_a_state_that_ends_the_task_is_counted_once(tmp_path: Path) -> None:
    """A file of single success states, each marked terminal, has no next states to add."""
    states = np.arange(1.0, 13.0).reshape(6, 2)
    found = read_all(write(tmp_path / "x.hdf5", {"observations": states, "terminals": np.ones(6)}), states_only=True)
    assert found is not None
    assert found.states().tolist() == states.tolist()


def test_the_public_maze_file_reads_whole() -> None:
    path = SHARED_DATA / "maze2d-umaze-v1-expert.hdf5"
    if not path.exists():
        pytest.skip(f"{path} is absent; set SMODICE_SHARED_DATA to its folder")
    with h5py.File(path) as file:
        names = [n for n in COLUMNS if n in file]
        columns = {name: file[name][:] for name in names}
    found = read_all(path, horizon=300)
    assert as_rows(found) == slow_reading(columns, 300)
    assert found is not None
    assert np.isfinite(found.next_observations).all()


# --- other files ------------------------------------------------------------------------------------------------------


def test_npz_and_hdf5_of_the_same_columns_give_the_same_rows(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "log.hdf5")
    with h5py.File(path) as file:
        np.savez(tmp_path / "log.npz", **{name: file[name][:] for name in file})
    one, two = (rows_of(f"file:{tmp_path}/log.{ending}", HOPPER) for ending in ("hdf5", "npz"))
    for name in ("observations", "actions", "rewards", "next_observations", "timeouts", "offsets"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_npz_with_pickles_inside_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", observations=np.array([{"a": 1}], dtype=object), actions=np.zeros((1, 3)))
    with pytest.raises(InputError, match=r"not an \.npz file of numbers"):
        rows_of(f"file:{tmp_path}/log.npz", HOPPER)


def test_compressed_chunks_read_like_plain_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write_d4rl(tmp_path / "plain.hdf5", episodes=40, length=37)
    for name, options in {"gzip": {}, "shuffled": {"shuffle": True}, "checked": {"fletcher32": True}}.items():
        with h5py.File(plain) as source, h5py.File(tmp_path / f"{name}.hdf5", "w") as target:
            for column in source:
                data = source[column][:]
                chunks = (100, 4)[: data.ndim] if data.ndim == 1 or data.shape[1] > 3 else (100, 3)
                target.create_dataset(column, data=data, chunks=chunks, compression="gzip", **options)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 150)
    blocks = read(plain, 1000)
    for name in ("gzip", "shuffled", "checked"):
        found = read(tmp_path / f"{name}.hdf5", 1000)
        for column in ("observations", "actions", "rewards", "next_observations", "timeouts", "offsets"):
            np.testing.assert_array_equal(getattr(found, column), getattr(blocks, column))
