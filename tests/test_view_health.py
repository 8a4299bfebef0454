"""The health card of the weights: every figure against a plain computation, and the verdict on broken weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from conftest import ENV, succeed
from scipy import stats
from weights_files import some_weights, write_weights

from smodice_cli import artifacts
from smodice_cli.artifacts import Header
from smodice_cli.data import Dataset
from smodice_cli.views.diagnostics import (
    findings,
    fit_shape,
    flow_residual,
    tail_length,
    tail_shape,
    top_share,
    verdict,
    weight_health,
)


def test_health_equals_a_plain_computation() -> None:
    w = some_weights()
    source = np.arange(len(w)) % 3
    health = weight_health(w, source, ["a", "b", "c"])
    total = sum(w)
    assert health["effective_sample_size"] == pytest.approx(total**2 / sum(x * x for x in w))
    assert health["largest_share"] == pytest.approx(max(w) / total)
    assert health["top_1_percent_share"] == pytest.approx(sum(sorted(w)[-4:]) / total)
    assert health["zero_share"] == pytest.approx(sum(x == 0 for x in w) / len(w))
    assert (health["non_finite"], health["negative"]) == (0, 0)
    for index, label in enumerate("abc"):
        mine = [x for x, s in zip(w, source, strict=True) if s == index]
        assert health["by_source"][label]["rows"] == len(mine)
        assert health["by_source"][label]["mean"] == pytest.approx(sum(mine) / len(mine))
        assert health["by_source"][label]["share"] == pytest.approx(sum(mine) / total)
    assert health["quantiles"]["0.5"] == pytest.approx(np.median(w))
    assert top_share(np.ones(10), 0.001) == pytest.approx(0.1)  # never less than one row


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.4, 0.8, 1.5])
def test_tail_fit_recovers_the_shape_of_known_samples(shape: float) -> None:
    sample = np.sort(stats.genpareto.rvs(shape, scale=2.0, size=4000, random_state=np.random.default_rng(1)))
    assert fit_shape(sample, prior=False) == pytest.approx(shape, abs=0.08)
    assert fit_shape(sample * 1e6, prior=False) == pytest.approx(fit_shape(sample, prior=False), abs=1e-6)
    assert fit_shape(sample) == pytest.approx(fit_shape(sample, prior=False), abs=0.01)  # ten prior points of 4000


@pytest.mark.skipif(importlib.util.find_spec("arviz") is None, reason="arviz is not installed")
@pytest.mark.parametrize("seed", range(3))
def test_tail_shape_equals_arviz(seed: int) -> None:
    import arviz

    w = np.random.default_rng(seed).lognormal(sigma=1 + seed, size=5000)
    assert tail_shape(w) == pytest.approx(float(arviz.psislw(np.log(w))[1]), abs=1e-6)


def test_tail_of_heavy_weights_and_of_flat_ones() -> None:
    rng = np.random.default_rng(0)
    heavy = tail_shape(rng.pareto(0.8, 20_000))  # the tail of a Pareto with exponent a has k = 1/a
    assert heavy == pytest.approx(1 / 0.8, abs=0.15)
    light = tail_shape(rng.random(20_000))
    assert light is not None
    assert light < 0
    assert tail_shape(np.ones(1000)) is None
    assert tail_shape(np.ones(8)) is None
    assert tail_length(10_000) == 300
    assert tail_length(100) == 20


def test_flow_residual_is_zero_for_an_occupancy_and_large_for_nonsense(run: Path) -> None:
    gamma, chain = 0.9, np.arange(6)
    states = np.repeat(chain[:, None], 2, axis=1).astype(np.float32)
    arrays = {
        "observations": states,
        "next_observations": np.minimum(states + 1, 5),
        "terminals": np.zeros(6),
        "mean": states.mean(axis=0),
        "std": states.std(axis=0),
        "episode_offsets": np.array([0, 6]),
    }
    dataset = Dataset(arrays, ENV, [0, 1], False, ["a"])
    occupancy = (1 - gamma) * gamma**chain
    occupancy[5] = gamma**5  # the last state leads to itself
    assert flow_residual(dataset, occupancy, gamma) == pytest.approx(0, abs=1e-12)
    assert flow_residual(dataset, occupancy[::-1].copy(), gamma) > 1


def test_flow_residual_tells_weights_apart_on_slow_motion(finished_run: Path) -> None:
    """s' is nearly s in robot data, so that all weights flow on nearly alike: what flows in is the yardstick."""
    dataset = Dataset.of(artifacts.load(finished_run / "dataset.h5", "dataset"))
    t = dataset.time_of_row()
    discounted = flow_residual(dataset, 0.99**t, 0.99)
    late = flow_residual(dataset, np.where(t > 60, 1.0, 0.0), 0.99)
    single = flow_residual(dataset, np.eye(dataset.rows)[40], 0.99)
    assert discounted < 0.05
    assert late > 5 * discounted
    assert single > 1


def test_flow_residual_of_some_episodes_is_nearly_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single rows drawn from fast motion would not cancel out, and look as if nothing flowed."""
    rng, episodes, length = np.random.default_rng(0), 200, 50
    phase = rng.uniform(0, 6, (episodes, 1)) + np.arange(length + 1)
    states = np.stack([np.sin(phase), np.cos(phase), np.broadcast_to(np.arange(length + 1) / length, phase.shape)], -1)
    arrays = {
        "observations": states[:, :-1].reshape(-1, 3),
        "next_observations": states[:, 1:].reshape(-1, 3),
        "terminals": np.zeros(episodes * length),
        "mean": np.zeros(3),
        "std": np.ones(3),
        "episode_offsets": np.arange(episodes + 1) * length,
    }
    dataset = Dataset(arrays, ENV, [0, 1, 2], False, ["a"])
    w = np.repeat(rng.exponential(size=episodes), length) * 0.9 ** dataset.time_of_row()
    whole = flow_residual(dataset, w, 0.9)
    monkeypatch.setattr("smodice_cli.views.diagnostics.FEATURE_ROWS", 1_000)
    assert flow_residual(dataset, w, 0.9) == pytest.approx(whole, abs=0.1)


def test_verdict_is_green_on_even_weights_and_red_on_five_rows(run: Path) -> None:
    rng = np.random.default_rng(0)
    even = weight_health(rng.random(3000) + 0.5, np.zeros(3000, int), ["a"])
    assert verdict(findings(even)) == "green"
    broken = np.full(3000, 0.01 / 2995)
    broken[[5, 77, 400, 1000, 2999]] = 0.99 / 5
    path = write_weights(run / "broken.weights.h5", broken * 3000, run / "weights.h5")
    view = succeed("inspect", path, "--json").json
    assert view["verdict"]["level"] == "red"
    assert view["health"]["effective_sample_size"] == pytest.approx(5, rel=0.05)
    said = succeed("inspect", path).stdout
    assert "● red: not fit to train on" in said
    assert "value.alpha=0.3" in said
    assert "train V again" in said


def test_weights_that_are_no_numbers_are_counted_and_flagged(run: Path) -> None:
    w = np.ones(3000)
    w[:7] = np.nan
    w[7] = -1.0
    view = succeed("inspect", write_weights(run / "nan.weights.h5", w, run / "weights.h5"), "--json").json
    assert view["health"]["non_finite"] == 7
    assert view["health"]["negative"] == 1
    assert view["verdict"]["level"] == "red"
    nothing = write_weights(run / "zero.weights.h5", np.zeros(3000), run / "weights.h5")
    view = succeed("inspect", nothing, "--json").json
    assert "no row has any weight" in view["verdict"]["findings"][0]["text"]


def test_mass_that_ends_is_no_fault_of_the_mean_ratio(run: Path) -> None:
    like = artifacts.load(run / "weights.h5", "weights")
    arrays = {name: np.array(array) for name, array in like.arrays.items()} | {"w": np.ones(3000)}
    for terminal, level in (("zero", "green"), ("absorb", "red")):
        config = {**like.header.config, "terminal": terminal}
        header = Header("weights", "train-value", config, 0, metrics={"raw_mean": 0.4})
        artifacts.write_hdf5(run / "ends.weights.h5", header, arrays)
        assert succeed("inspect", run / "ends.weights.h5", "--json").json["verdict"]["level"] == level


def test_the_card_shows_what_the_stage_recorded(run: Path) -> None:
    header = artifacts.read_header(run / "weights.h5")
    view = succeed("inspect", run / "weights.h5", "--json").json
    assert view["health"]["held_out_objective"] == header.metrics["held_out_objective"]
    assert view["health"]["raw_mean"] == pytest.approx(1.0, abs=1e-6)
    said = succeed("inspect", run / "weights.h5").stdout
    for words in ("effective sample size", "Pareto k", "Bellman-flow residual", "held-out objective", "Gini index"):
        assert words in said
