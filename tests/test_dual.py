"""Ratios of a whole data set, block by block in single precision, against row by row in double precision."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from smodice_cli.algos import dual, segments
from smodice_cli.algos.dual import Config
from smodice_cli.algos.segments import row_weights
from smodice_cli.data import Dataset

EPISODES, STATE, GAMMA, ALPHA = 12, 3, 0.9, 0.5


def random_data() -> Dataset:
    """Episodes of one to twenty rows that end in a terminal state, at a time limit, or in both."""
    rng = np.random.default_rng(4)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 21, EPISODES))])
    rows, last = offsets[-1], offsets[1:] - 1
    states = rng.normal(size=(rows, STATE)).astype(np.float32)
    following = np.roll(states, -1, axis=0)
    following[last] = rng.normal(size=(EPISODES, STATE))
    terminals, timeouts = np.zeros(rows, np.uint8), np.zeros(rows, np.uint8)
    terminals[last[::2]], timeouts[last[1::2]], timeouts[last[0]] = 1, 1, 1
    arrays = {
        "observations": states,
        "next_observations": following,
        "terminals": terminals,
        "timeouts": timeouts,
        "episode_offsets": offsets,
        "mean": np.zeros(STATE, np.float32),
        "std": np.ones(STATE, np.float32),
    }
    return Dataset(arrays, "hopper", [0], False, ["random"])


def row_by_row(
    dataset: Dataset, config: Config, reward: np.ndarray, end: np.ndarray, v: np.ndarray, v_next: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Residual and probability of every segment by their definitions (D7, D10, D11), in plain Python."""
    n, discounted, residual, probability = config.n_step, config.sampling == "discounted", [], []
    loops: list[tuple[float, float]] = []
    for k, (start, stop) in enumerate(itertools.pairwise(dataset.offsets.tolist())):
        terminal = bool(dataset["terminals"][stop - 1])
        cut = bool(dataset["timeouts"][stop - 1]) and not terminal
        stays = config.terminal == "absorb" if terminal else config.timeout == "absorb"
        late = [*reward[start:stop].tolist(), float(end[k])][-n:]
        goes_on = float(end[k]) if terminal else sum(late) / len(late)
        for t in range(start, stop):
            taken = reward[t : min(t + n, stop)].tolist()
            last = t + len(taken) - 1
            reaches = last == stop - 1
            if reaches and stays:
                taken += [goes_on] * (n - len(taken))
            discount = GAMMA ** len(taken)
            if reaches and terminal and config.terminal == "zero":
                discount = 0.0
            total = sum(GAMMA**i * r for i, r in enumerate(taken))
            residual.append(total + discount * float(v_next[last]) - float(v[t]))
            dropped = config.timeout == "drop" and reaches and cut
            probability.append(0.0 if dropped else GAMMA ** (t - start) if discounted else 1.0)
        if stays:
            stay = goes_on * sum(GAMMA**i for i in range(n)) + (GAMMA**n - 1) * float(v_next[stop - 1])
            loops.append((stay, GAMMA ** (stop - start) if discounted else 1.0))
    both = [*zip(residual, probability, strict=True), *loops]
    return np.array([r for r, _ in both]), np.array([p for _, p in both])


@pytest.mark.parametrize("terminal", ["absorb", "zero", "bootstrap"])
@pytest.mark.parametrize(
    ("timeout", "sampling"), [("bootstrap", "discounted"), ("absorb", "discounted"), ("drop", "uniform")]
)
@pytest.mark.parametrize("n", [1, 4, 50])
def test_ratios_are_those_of_a_row_by_row_computation(
    terminal: str, timeout: str, sampling: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (segments, dual):
        monkeypatch.setattr(module, "BLOCK", 7)
    dataset, rng = random_data(), np.random.default_rng(5)
    settings = {"terminal": terminal, "timeout": timeout, "sampling": sampling, "n_step": n}
    config = Config(**settings, gamma=GAMMA, alpha=ALPHA, hidden=16, f="kl", cap=0.0)  # type: ignore[arg-type]
    reward, end = (rng.normal(size=size).astype(np.float32) for size in (dataset.rows, EPISODES))
    problem = dual.set_up(dataset, reward, end, config)
    value = dual.new_value(dataset, config, torch.Generator().manual_seed(0))
    v, v_next = dual.values(value, dataset)
    for found, states in ((v, "observations"), (v_next, "next_observations")):
        np.testing.assert_allclose(
            found, value(torch.from_numpy(dataset[states])).detach().numpy(), rtol=1e-5, atol=1e-6
        )

    residual, probability = row_by_row(dataset, config, reward, end, v, v_next)
    np.testing.assert_allclose(problem.probability, probability, rtol=1e-6)
    odds = np.exp(residual / (ALPHA * (1 - GAMMA**n) / (1 - GAMMA)))
    expected = odds / (probability @ odds / probability.sum())  # KL: the normaliser is the log-mean-exp
    expected[probability == 0] = 0  # dropped
    everywhere = np.ones(len(probability), bool)
    xi = dual.ratios(problem, v, v_next, everywhere)
    assert xi.dtype == np.float32
    np.testing.assert_allclose(xi, expected, rtol=1e-4)
    plain = replace(problem, config=replace(config, normaliser=False))
    np.testing.assert_allclose(dual.ratios(plain, v, v_next, everywhere), expected, rtol=1e-4)
    w = row_weights(xi[: dataset.rows], dataset.offsets, n, GAMMA)
    since = dataset.time_of_row()
    covering = [sum(GAMMA**k * expected[t - k] for k in range(min(n, since[t] + 1))) for t in range(dataset.rows)]
    np.testing.assert_allclose(w, covering, rtol=1e-4)


def test_the_rows_of_a_very_long_episode_keep_their_weights() -> None:
    """gamma^t is below the least number of single precision there."""
    data, rows = random_data(), 12_000
    arrays = {name: np.resize(data[name], (rows, *data[name].shape[1:])) for name in ("observations", "timeouts")}
    arrays |= {"next_observations": arrays["observations"], "terminals": np.zeros(rows, np.uint8)}
    arrays |= {"episode_offsets": np.array([0, rows]), "mean": data["mean"], "std": data["std"]}
    problem = dual.set_up(Dataset(arrays, "hopper", [0], False, ["a"]), np.zeros(rows), np.zeros(1), Config())
    zero = np.zeros(rows, np.float32)
    assert (dual.ratios(problem, zero, zero, np.ones(len(problem.probability), bool)) > 0).all()


def test_what_v_was_not_taught_has_no_larger_ratio_than_what_it_was() -> None:
    """An end that V never saw is held up by nothing: V' may be anything there (D56)."""
    data = random_data()
    config = Config(n_step=1, sampling="uniform", timeout="bootstrap", terminal="bootstrap", cap=0.0, alpha=1.0)
    problem = dual.set_up(data, np.zeros(data.rows, np.float32), np.zeros(len(data.offsets) - 1, np.float32), config)
    v, v_next = (np.random.default_rng(seed).normal(size=data.rows).astype(np.float32) for seed in (0, 1))
    taught, unseen = np.ones(data.rows, bool), data.offsets[1] - 1
    taught[: data.offsets[1]] = False
    v_next[unseen] = 20.0
    wild, bounded = (dual.ratios(problem, v, v_next, mask) for mask in (np.ones(data.rows, bool), taught))
    assert wild[unseen] / wild.sum() > 0.99
    assert bounded[unseen] == bounded[taught].max()
    np.testing.assert_allclose(bounded[taught] / bounded[taught].sum(), wild[taught] / wild[taught].sum(), rtol=1e-3)
    assert bounded.mean() == pytest.approx(1, rel=1e-4)


def test_reward_counts_no_more_above_a_quantile_of_the_experts_own() -> None:
    """And a ceiling of 1 bounds nothing, not even rows that are more like the expert than it is itself."""
    expert, rows, ends = (np.array(x, np.float32) for x in ([0, 1, 2, 3, 4], [-5, 0.5, 1, 9], [7]))
    bounded = dual.bounded(Config(ceiling=0.25), expert, rows, ends)
    assert [x.tolist() for x in bounded] == [[-5, 0.5, 1, 1], [1]]
    assert [x.dtype for x in bounded] == [np.float32] * 2
    common = dual.bounded(Config(ceiling=0.25), expert - 3, rows)  # half of the expert is like the data
    assert common[0].tolist() == [-5, 0, 0, 0]
    free = dual.bounded(Config(ceiling=1.0), expert, rows, ends)
    assert [x.tolist() for x in free] == [rows.tolist(), ends.tolist()]


def test_watched_segments_stand_for_all_held_out_ones() -> None:
    """Each is watched in proportion to its probability, to within one: none that matters can be missed."""
    probability = np.random.default_rng(0).exponential(size=500).astype(np.float32)
    probability[::3] = 0
    found = np.bincount(dual._watched_rows(probability).numpy(), minlength=len(probability))
    assert found.sum() == dual.HELD_OUT_ROWS
    assert np.abs(found - dual.HELD_OUT_ROWS * probability / probability.sum(dtype=np.float64)).max() < 1
    assert not len(dual._watched_rows(np.zeros(5, np.float32)))
