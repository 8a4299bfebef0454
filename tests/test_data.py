"""Transitions in memory and on disk: cutting, absorbing states, moments, seeds."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import ENV, digest, succeed
from hypothesis import given
from hypothesis import strategies as st

from smodice_cli import artifacts
from smodice_cli.data import ROW_COLUMNS, Dataset, Transitions, concatenate, moments, parse_dims, with_absorbing


def make(lengths: list[int], terminal: list[bool]) -> Transitions:
    """Episodes whose states count 1, 2, 3 ...; each ends in a terminal row or in a timeout."""
    rows = sum(lengths)
    ends = np.cumsum(lengths) - 1
    last = np.isin(np.arange(rows), ends)
    by_end = np.isin(np.arange(rows), ends[np.array(terminal)])
    # every episode has one more state than rows, so the count skips one between episodes
    first = np.arange(1, rows + 1) + np.repeat(np.arange(len(lengths)), lengths)
    states = np.stack([first, -first], axis=1).astype(np.float32)
    return Transitions(
        observations=states,
        actions=np.full((rows, 1), 0.5, np.float32),
        rewards=np.arange(rows, dtype=np.float32),
        next_observations=states + np.array([1, -1], np.float32),
        terminals=by_end,
        timeouts=last & ~by_end,
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
    )


episodes = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=6).map(
    lambda pairs: make([n for n, _ in pairs], [t for _, t in pairs])
)


@given(block=episodes)
def test_states_are_every_state_once_in_order(block: Transitions) -> None:
    assert block.states()[:, 0].tolist() == list(range(1, block.rows + block.episodes + 1))


@given(block=episodes, data=st.data())
def test_taking_episodes_and_joining_them_gives_the_whole(block: Transitions, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, block.episodes))
    parts = [block.take(a, b) for a, b in ((0, cut), (cut, block.episodes)) if a < b]
    joined = concatenate(parts)
    for name in (*ROW_COLUMNS, "offsets"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(block, name))


@given(block=episodes, data=st.data())
def test_a_truncated_block_ends_where_it_is_cut_in_a_timeout(block: Transitions, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, block.rows + 3))
    cut = block.truncate(rows)
    kept = min(rows, block.rows)
    assert cut.rows == kept == cut.offsets[-1]
    np.testing.assert_array_equal(cut.observations, block.observations[:kept])
    assert cut.offsets[:-1].tolist() == [offset for offset in block.offsets[:-1] if offset < kept]
    ends = cut.offsets[1:] - 1
    assert (cut.terminals[ends] ^ cut.timeouts[ends]).all()
    assert np.delete(cut.terminals | cut.timeouts, ends).sum() == 0


@given(block=episodes, share=st.floats(0.05, 0.95), seed=st.integers(0, 99))
def test_missing_rows_leave_the_others_with_their_own_next_states(block: Transitions, share: float, seed: int) -> None:
    found = block.thin(share, np.random.default_rng(seed))
    kept = np.random.default_rng(seed).random(block.rows) < share
    for name in ("observations", "actions", "rewards", "next_observations", "terminals"):
        np.testing.assert_array_equal(getattr(found, name), getattr(block, name)[kept])
    episode = np.repeat(np.arange(block.episodes), np.diff(block.offsets))[kept]
    np.testing.assert_array_equal(np.diff(found.offsets), np.unique(episode, return_counts=True)[1])
    ends = found.offsets[1:] - 1
    assert (found.terminals[ends] ^ found.timeouts[ends]).all()
    assert np.delete(found.terminals | found.timeouts, ends).sum() == 0


@given(block=episodes)
def test_terminal_rows_lead_to_the_absorbing_state_and_it_to_itself(block: Transitions) -> None:
    found = with_absorbing(block)
    ended = block.terminals[block.offsets[1:] - 1]
    state = [0.0, 0.0, 1.0]
    assert found.rows == block.rows + ended.sum()
    assert not found.terminals.any()
    absorbing = found.observations[:, 2] == 1
    assert absorbing.sum() == ended.sum()
    assert (found.observations[absorbing] == state).all()
    assert (found.next_observations[absorbing] == state).all()
    np.testing.assert_array_equal(found.observations[~absorbing][:, :2], block.observations)
    leads = (found.next_observations[:, 2] == 1) & ~absorbing
    np.testing.assert_array_equal(leads[~absorbing], block.terminals)
    others = ~block.terminals
    np.testing.assert_array_equal(found.next_observations[~absorbing][others][:, :2], block.next_observations[others])
    for k in range(block.episodes):  # a self-loop is the last row of its own episode
        assert absorbing[found.offsets[k] : found.offsets[k + 1]].tolist()[-1] == ended[k]


@given(st.integers(1, 300), st.floats(0.01, 100), st.floats(-100, 100))
def test_moments_are_numpys(rows: int, scale: float, shift: float) -> None:
    column = np.random.default_rng(rows).normal(shift, scale, (rows, 3)).astype(np.float32)
    column[:, 2] = 7.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smodice_cli.data.STATS_BLOCK", 64)
        mean, std = moments(column)
    np.testing.assert_allclose(mean, column.mean(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-5)
    if rows > 1:
        np.testing.assert_allclose(std[:2], column.std(axis=0, dtype=np.float64)[:2], rtol=1e-4)
    assert std[2] == 1.0, "a constant dimension is left alone"


@pytest.mark.parametrize(("text", "dims"), [("", [0, 1, 2, 3]), ("0:2", [0, 1]), ("3,0", [3, 0]), ("0,2:4", [0, 2, 3])])
def test_dims_are_read_as_written(text: str, dims: list[int]) -> None:
    assert parse_dims(text, 4) == dims


# --- built datasets ---------------------------------------------------------------------------------------------------


def build(out: Path, *flags: str, offline: str = f"sim:{ENV}#700") -> artifacts.Artifact:
    sources = ("--offline", offline, "--expert", f"sim:{ENV}#success=20")
    succeed("build-dataset", "--env", ENV, *sources, *flags, "--out", out)
    return artifacts.load(out, "dataset")


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path: Path) -> None:
    first, second, third = (
        build(tmp_path / f"{name}.h5", "--seed", seed).header.digest for name, seed in zip("abc", "445", strict=True)
    )
    assert first == second != third


def test_the_number_of_processes_does_not_change_the_bytes(tmp_path: Path) -> None:
    build(tmp_path / "one.h5")
    build(tmp_path / "two.h5", "--threads", "2")
    assert digest(tmp_path / "one.h5") == digest(tmp_path / "two.h5")


def test_a_dataset_is_contiguous_float32_and_mapped(tmp_path: Path) -> None:
    dataset = build(tmp_path / "d.h5")
    assert isinstance(dataset.arrays["observations"], np.memmap)
    with h5py.File(tmp_path / "d.h5") as file:
        for name in ("observations", "actions", "next_observations", "rewards", "expert/observations"):
            assert file[name].dtype == np.float32
            assert file[name].chunks is None
    assert len(dataset.arrays["observations"]) == 700 == dataset.arrays["episode_offsets"][-1]
    mean, std = moments(dataset.arrays["observations"])
    np.testing.assert_array_equal(dataset.arrays["mean"], mean)
    np.testing.assert_array_equal(dataset.arrays["std"], std)


def test_two_sources_are_joined_and_labelled(tmp_path: Path) -> None:
    dataset = Dataset.of(build(tmp_path / "d.h5", "--offline", f"sim:{ENV}#200"))
    assert dataset.rows == 900
    assert np.bincount(dataset.source_of_row()).tolist() == [700, 200]
    assert not np.array_equal(dataset["observations"][:200], dataset["observations"][700:]), "no repetition"
    starts = dataset.offsets[:-1]
    assert (dataset.time_of_row()[starts] == 0).all()
    np.testing.assert_array_equal(dataset.initial_observations(), dataset["observations"][starts])


def test_expert_dims_choose_what_is_matched(tmp_path: Path) -> None:
    whole = build(tmp_path / "whole.h5")
    part = build(tmp_path / "part.h5", "--expert-dims", "1,0")
    np.testing.assert_array_equal(part.arrays["expert/observations"], whole.arrays["expert/observations"][:, [1, 0]])
    assert Dataset.of(part).dims == [1, 0]
    np.testing.assert_array_equal(part.arrays["observations"], whole.arrays["observations"])


def test_self_loops_are_sampled_by_the_value_stage_and_never_by_the_policy_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smodice_cli.algos import clone, dual, sampling

    dataset = Dataset.of(build(tmp_path / "d.h5", "--absorbing"))
    loops = ~dataset.real_rows()
    assert loops.sum() == 8, "700 rows hold eight whole episodes"
    assert (dataset["observations"][loops] == [0, 0, 0, 0, 1]).all()
    drawn: list[np.ndarray] = []

    def watched(probability, generator):  # type: ignore[no-untyped-def]
        sample = sampling.row_sampler(probability, generator)

        def remember(count: int):  # type: ignore[no-untyped-def]
            rows = sample(count)
            drawn.append(rows.numpy())
            return rows

        return remember

    small = ("--steps", "60", "--set", "hidden=8", "--set", "batch=64")
    succeed("train-disc", "--data", tmp_path / "d.h5", *small)
    monkeypatch.setattr(dual, "row_sampler", watched)
    monkeypatch.setattr(clone, "row_sampler", watched)
    succeed("train-value", "--disc", tmp_path / "disc.safetensors", *small, "--set", "sampling=uniform")
    rows = np.concatenate(drawn)
    assert loops[rows[rows < len(loops)]].any()  # beyond the rows are the absorbing ends
    for how in ("weights", "uniform"):
        drawn.clear()
        succeed("train-policy", "--value", tmp_path / "value.safetensors", *small, "--sampling", how)
        assert drawn
        assert not loops[np.concatenate(drawn)].any()
    succeed("eval", "--policy", tmp_path / "policy.safetensors", "--episodes", "1", "--threads", "1")
