"""`smodice inspect`: every figure against a plain computation, the verdict on broken weights, files, and bad input."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ENV, refuse, smodice, succeed
from scipy import stats

import smodice_cli
from smodice_cli import artifacts
from smodice_cli.algos.segments import row_weights
from smodice_cli.artifacts import Header, Link
from smodice_cli.data import Dataset
from smodice_cli.inspect import others, weights
from smodice_cli.inspect.diagnostics import findings, flow_residual, top_share, verdict, weight_health
from smodice_cli.inspect.pareto import fit_shape, tail_length, tail_shape
from smodice_cli.inspect.returns import over_seeds, steady, worst_deviation
from smodice_cli.inspect.subject import curves, log_path, open_subject
from smodice_cli.inspect.terminal import bar, percent, spark
from smodice_cli.inspect.views import usable


def some_weights(seed: int = 0, rows: int = 400) -> np.ndarray:
    rng = np.random.default_rng(seed)
    w = rng.lognormal(sigma=1.5, size=rows) * (rng.random(rows) > 0.1)
    return w / w.mean()


def write_weights(path: Path, w: np.ndarray, beside: Path, **columns: np.ndarray) -> Path:
    """A weights file like another one, with other weights."""
    like = artifacts.load(beside, "weights")
    arrays = {name: np.array(array) for name, array in like.arrays.items()} | {"w": w} | columns
    header = Header("weights", "train-value", like.header.config, 7, dict(like.header.inputs))
    artifacts.write_hdf5(path, header, arrays)
    return path


def dataset_of(run: Path) -> Dataset:
    return Dataset.of(artifacts.load(run / "dataset.h5", "dataset"))


# --- the health card -------------------------------------------------------------------------------------------------


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
    assert "value.alpha=1" in said
    assert "run train-value again" in said


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


# --- what the weights chose ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_auroc_and_ratio_equal_counting_pairs(seed: int) -> None:
    w = np.round(some_weights(seed, 150), 1)  # with ties
    rows = np.random.default_rng(seed).random(150) < 0.3
    found = weights.against_the_rest(w, weights.Chosen("x", "", rows))
    pairs = [(a > b) + 0.5 * (a == b) for a in w[rows] for b in w[~rows]]
    assert found["auroc"] == pytest.approx(sum(pairs) / len(pairs))
    assert found["ratio_of_means"] == pytest.approx(w[rows].mean() / w[~rows].mean())
    assert found["share"] == pytest.approx(w[rows].sum() / w.sum())
    assert found["base_rate"] == pytest.approx(rows.mean())
    np.testing.assert_allclose(weights.ranks(w), stats.rankdata(w))


def test_labels_come_from_the_source_or_from_success(run: Path) -> None:
    from smodice_cli.envs import registry

    dataset = dataset_of(run)
    chosen = weights.chosen_rows(dataset)
    assert chosen is not None
    success = registry.success(ENV)
    assert success is not None
    for k in range(len(dataset.offsets) - 1):
        a, b = dataset.offsets[k : k + 2]
        assert chosen.rows[a:b].all() == chosen.rows[a:b].any() == success(dataset["next_observations"][b - 1 : b])[0]
    half = len(dataset["episode_source"]) // 2
    arrays = {**dataset.arrays, "episode_source": (np.arange(len(dataset["episode_source"])) >= half).astype(np.int32)}
    two = Dataset(arrays, ENV, dataset.dims, False, ["x-random", "x-expert"])
    named = weights.chosen_rows(two)
    assert named is not None
    assert (named.name, named.rows.sum()) == ("x-expert", dataset.rows - dataset.offsets[half])
    returns, _ = weights.episode_returns(two)
    best = int(returns[:half].mean() < returns[half:].mean())
    found = weights.chosen_rows(Dataset(arrays, ENV, dataset.dims, False, ["p", "q"]))
    assert found is not None
    assert found.name == "pq"[best]


def test_histogram_counts_every_row_once() -> None:
    w = some_weights(3)
    w[0] = 1e-30
    groups = {"a": np.arange(len(w)) % 2 == 0, "b": np.arange(len(w)) % 2 == 1}
    found = weights.histogram(w, groups, bins=9)
    edges = found["log10_edges"]
    for name, rows in groups.items():
        entry = found["groups"][name]
        mine = w[rows]
        assert entry["zero"] == sum(x == 0 for x in mine)
        assert entry["below"] == sum(0 < x < 10 ** edges[0] for x in mine)
        assert sum(entry["counts"]) + entry["zero"] + entry["below"] == len(mine)
        inside = sum(10 ** edges[4] <= x < 10 ** edges[5] for x in mine)
        assert entry["counts"][4] == inside


def test_lorenz_and_gini_equal_their_definitions() -> None:
    w = some_weights(4, 60)
    found = weights.lorenz(w, points=61)
    ordered = sorted(w)
    for share, weight in zip(found["rows"], found["weight"], strict=True):
        assert weight == pytest.approx(sum(ordered[: round(share * 60)]) / sum(w))
    differences = sum(abs(a - b) for a in w for b in w) / (2 * len(w) ** 2 * w.mean())
    assert found["gini"] == pytest.approx(differences)
    assert weights.lorenz(np.ones(50))["gini"] == pytest.approx(0)
    assert weights.lorenz(np.eye(50)[0])["gini"] == pytest.approx(1 - 1 / 50)


def test_trajectories_equal_loops_over_them(run: Path) -> None:
    dataset, w = dataset_of(run), some_weights(5, 3000)
    found = weights.trajectories(w, dataset)
    assert sorted(entry["id"] for entry in found) == list(range(len(dataset.offsets) - 1))
    means = [entry["mean_weight"] for entry in found]
    assert means == sorted(means, reverse=True)
    for entry in found:
        a, b = dataset.offsets[entry["id"]], dataset.offsets[entry["id"] + 1]
        assert entry["length"] == b - a
        assert entry["return"] == pytest.approx(float(sum(dataset["rewards"][a:b])))
        assert entry["mean_weight"] == pytest.approx(w[a:b].mean())
        assert entry["share"] == pytest.approx(w[a:b].sum() / w.sum())


def test_one_trajectory_along_time(run: Path, tmp_path: Path) -> None:
    view = succeed("inspect", run / "weights.h5", "--trajectory", "3", "--json").json["trajectory"]
    dataset, arrays = dataset_of(run), artifacts.load(run / "weights.h5", "weights").arrays
    rows = slice(dataset.offsets[3], dataset.offsets[4])
    assert view["t"] == list(range(dataset.offsets[4] - dataset.offsets[3]))
    for shown, name in (("weight", "w"), ("R", "reward"), ("V", "v"), ("residual", "residual")):
        np.testing.assert_allclose(view[shown], arrays[name][rows], rtol=1e-6)
    np.testing.assert_allclose(view["task_reward"], dataset["rewards"][rows])
    succeed("inspect", run / "weights.h5", "--trajectory", "3", "--csv", tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0].startswith("# made with smodice")
    records = list(csv.DictReader(lines[1:]))
    assert [float(record["weight"]) for record in records] == pytest.approx(view["weight"])
    assert "trajectory 3" in succeed("inspect", run / "weights.h5", "--trajectory", "3").stdout
    assert "0 to" in refuse(2, "inspect", run / "weights.h5", "--trajectory", "999")
    refuse(2, "inspect", run / "weights.h5", "--trajectory", "-1")


@pytest.mark.parametrize("n", [1, 3, 50])
def test_weights_on_rows_that_count_alike_have_every_segments_own_discount(n: int) -> None:
    rng, gamma, offsets = np.random.default_rng(n), 0.9, np.array([0, 4, 5, 17, 40])
    t = np.arange(40) - np.repeat(offsets[:-1], np.diff(offsets))
    xi = rng.random(40)
    found = weights.occupancy(row_weights(xi, offsets, n, gamma), t, n, gamma)
    plain = [sum(gamma ** t[i] * xi[i - k] for k in range(min(n, t[i] + 1))) for i in range(40)]
    np.testing.assert_allclose(found, np.array(plain) / np.mean(plain), rtol=1e-9)


def test_peaks_are_separate_local_maxima_in_order_of_time() -> None:
    assert weights.peaks(np.array([5.0, 4.0, 3.0, 1.0, 2.0, 1.0, 7.0]), 2) == [0, 6]
    assert weights.peaks(np.array([5.0, 4.0, 3.0, 1.0, 2.0, 1.0, 7.0]), 9) == [0, 4, 6]
    assert len(weights.peaks(np.ones(100), 4)) == 4


def test_frames_are_drawn_where_the_weight_peaks(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    refuse(2, "inspect", run / "weights.h5", "--frames")
    assert "look at weights" in refuse(2, "inspect", run / "eval.json", "--frames", "--png", picture)
    outcome = smodice("inspect", run / "weights.h5", "--frames", "--png", picture, "--panels", "frames", "--quiet")
    assert outcome.code == 0 or "cannot render" in outcome.stderr
    said = smodice("inspect", run / "weights.h5", "--png", picture, "--panels", "histgram", "--quiet")
    assert (said.code, "did you mean histogram" in said.stderr) == (2, True)
    (run / "dataset.h5").unlink()
    assert "--frames needs the dataset" in refuse(3, "inspect", run / "weights.h5", "--frames", "--png", picture)


def test_profile_is_the_mean_by_time_step() -> None:
    rng = np.random.default_rng(0)
    t, w = rng.integers(0, 20, 500), rng.random(500)
    found = weights.profile(w, t, bins=100)
    for at, mean, low, high in zip(*found.values(), strict=True):
        mine = w[t == at]
        assert mean == pytest.approx(mine.mean())
        assert (low, high) == pytest.approx(tuple(np.quantile(mine, (0.25, 0.75))))


def test_what_if_equals_clipping_and_heating() -> None:
    w = some_weights(6)
    found = weights.what_if(w)
    for entry in found["clip"]:
        clipped = [min(x / np.mean(w), entry["cap"]) for x in w]
        size = sum(clipped) ** 2 / sum(x * x for x in clipped) / len(w)
        assert entry["effective_share"] == pytest.approx(size)
        assert entry["clipped"] == pytest.approx(np.mean(w / np.mean(w) > entry["cap"]))
    for entry in found["temperature"]:
        heated = [x ** (1 / entry["temperature"]) for x in w]
        assert entry["effective_share"] == pytest.approx(sum(heated) ** 2 / sum(x * x for x in heated) / len(w))
    assert found["clip"]


def test_compare_equals_scipy_and_sets(run: Path) -> None:
    a, b = some_weights(7, 3000), some_weights(8, 3000)
    b = a * 0.5 + b
    found = weights.compare(a, b)
    assert found["spearman"] == pytest.approx(stats.spearmanr(a, b).statistic)
    top = {int(i) for i in np.argsort(-a)[:30]} & {int(i) for i in np.argsort(-b)[:30]}
    assert found["overlap"]["top 1 %"] == pytest.approx(len(top) / 30)
    assert found["shared_weight"] == pytest.approx(sum(np.minimum(a / a.sum(), b / b.sum())))
    other = write_weights(run / "b.weights.h5", b, run / "weights.h5")
    view = succeed("inspect", run / "weights.h5", "--compare", other, "--json").json["compare"]
    mine = np.asarray(artifacts.load(run / "weights.h5", "weights").arrays["w"])
    assert view["spearman"] == pytest.approx(stats.spearmanr(mine, b).statistic)
    assert view["settings"] == {"seed": [0, 7]}
    assert "Spearman" in succeed("inspect", run / "weights.h5", "--compare", other).stdout
    assert weights.compare(np.ones(10), np.arange(10.0))["spearman"] is None


def test_state_map_counts_rows_weights_and_expert_states(run: Path) -> None:
    dataset, w = dataset_of(run), some_weights(9, 3000)
    seen = weights.plane(dataset)
    assert seen.dims == (0, 1)  # what the registry says
    cells = weights.state_map(dataset, w, seen, bins=7)
    x, y = cells["edges"]
    states, expert = dataset["observations"], dataset["expert/observations"]
    for i in range(7):
        for j in range(7):
            inside = [
                (x[i] <= s[:, 0]) & (s[:, 0] < x[i + 1]) & (y[j] <= s[:, 1]) & (s[:, 1] < y[j + 1])
                for s in (states, expert)
            ]
            assert cells["offline"][i, j] == pytest.approx(inside[0].sum() / 3000)
            assert cells["weighted"][i, j] == pytest.approx(w[inside[0]].sum() / w.sum())
            assert cells["expert"][i, j] == pytest.approx(inside[1].sum() / len(expert))


def test_plane_is_what_was_asked_for_or_principal_components(run: Path) -> None:
    dataset = dataset_of(run)
    assert weights.plane(dataset, (2, 3)).dims == (2, 3)
    unknown = Dataset(dataset.arrays, "no-such-env", dataset.dims, False, dataset.sources)
    seen = weights.plane(unknown)
    assert seen.dims is None
    z = (dataset["observations"] - dataset["mean"]) / dataset["std"]
    _, _, vectors = np.linalg.svd(z - z.mean(axis=0), full_matrices=False)
    expected = z @ vectors[:2].T
    for axis in range(2):
        r = np.corrcoef(seen.project(dataset["observations"])[:, axis], expected[:, axis])[0, 1]
        assert abs(r) == pytest.approx(1, abs=1e-3)
    part = Dataset(
        {**dataset.arrays, "expert/observations": dataset["expert/observations"][:, [1, 0]]}, ENV, [1, 0], False, ["a"]
    )
    shared = weights.state_map(part, np.ones(3000), weights.plane(part, (0, 1)))
    whole = weights.state_map(dataset, np.ones(3000), weights.plane(dataset, (0, 1)))
    np.testing.assert_allclose(shared["expert"], whole["expert"])
    assert weights.state_map(part, np.ones(3000), weights.plane(part, (0, 2)))["expert"] is None


# --- the other artifacts ---------------------------------------------------------------------------------------------


def test_dataset_view_equals_loops(run: Path) -> None:
    view, dataset = succeed("inspect", run / "dataset.h5", "--json").json, dataset_of(run)
    (source,) = view["sources"]
    lengths = [b - a for a, b in zip(dataset.offsets, dataset.offsets[1:], strict=False)]
    returns = [float(sum(dataset["rewards"][a:b])) for a, b in zip(dataset.offsets, dataset.offsets[1:], strict=False)]
    assert source["episodes"] == len(lengths)
    assert source["length"]["max"] == max(lengths)
    assert source["return"]["mean"] == pytest.approx(np.mean(returns))
    ended = [bool(dataset["terminals"][b - 1]) for b in dataset.offsets[1:]]
    assert source["ended_by_task"] == pytest.approx(np.mean(ended))
    for entry in view["states"]:
        column = dataset["observations"][:, entry["dim"]]
        assert (entry["min"], entry["max"]) == pytest.approx((column.min(), column.max()))
        assert entry["expert_mean"] == pytest.approx(dataset["expert/observations"][:, entry["dim"]].mean(), abs=1e-6)
    for entry in view["actions"]:
        assert entry["at_limit"] == pytest.approx(np.mean(np.abs(dataset["actions"][:, entry["dim"]]) >= 0.99))
    assert "ended by the task" in succeed("inspect", run / "dataset.h5").stdout


def test_discriminator_view_equals_the_network(run: Path) -> None:
    import torch

    from smodice_cli.stages import train_disc

    dataset, artifact = dataset_of(run), artifacts.load(run / "disc.safetensors", "disc")
    disc = train_disc.build(dataset, artifact.header.config["hidden"], "state")
    disc.load_state_dict(artifact.tensors())
    offline = train_disc.rewards(disc, dataset["observations"]).numpy()
    with torch.no_grad():
        expert = disc(torch.from_numpy(np.array(dataset["expert/observations"]))).numpy()
    found = succeed("inspect", run / "disc.safetensors", "--json").json["reward"]
    pairs = (expert[:, None] > offline).mean() + 0.5 * (expert[:, None] == offline).mean()
    assert found["auc"] == pytest.approx(pairs, abs=1e-4)
    assert found["groups"]["expert states"]["mean"] == pytest.approx(expert.mean(), abs=1e-5)
    (label,) = [name for name in found["groups"] if name != "expert states"]
    assert found["groups"][label]["max"] == pytest.approx(offline.max(), abs=1e-5)
    assert found["groups"][label]["saturated"] == pytest.approx(np.mean(np.abs(offline) > others.SATURATED))
    assert sum(found["histogram"]["shares"][label]) == pytest.approx(1)
    assert "R(s) on" in succeed("inspect", run / "disc.safetensors").stdout


def test_value_view_equals_the_stored_values(run: Path) -> None:
    arrays, dataset = artifacts.load(run / "weights.h5", "weights").arrays, dataset_of(run)
    chosen = weights.chosen_rows(dataset)
    assert chosen is not None
    found = succeed("inspect", run / "value.safetensors", "--json").json["value"]
    lengths = np.diff(dataset.offsets)[arrays["episode"]]
    for name, rows in ((chosen.name, chosen.rows), ("the rest", ~chosen.rows)):
        for part in range(5):
            mine = rows & (np.minimum(5 * arrays["t"] // lengths, 4) == part)
            assert found[name]["fifths"][part] == pytest.approx(arrays["v"][mine].astype(float).mean())


def test_policy_view_compares_actions_with_the_data(run: Path) -> None:
    found = succeed("inspect", run / "policy.safetensors", "--json").json["actions"]
    dataset, w = dataset_of(run), artifacts.load(run / "weights.h5", "weights").arrays["w"]
    for entry in found:
        column = dataset["actions"][:, entry["dim"]].astype(float)
        mean = np.average(column, weights=w)
        spread = np.sqrt(np.average((column - mean) ** 2, weights=w))
        assert entry["data"]["mean"] == pytest.approx(mean, abs=0.05 * spread + 1e-3)  # of a sample drawn by weight
        assert sum(entry["histogram"]["shares"]["policy"]) == pytest.approx(1)
    subject = open_subject(run / "policy.safetensors")
    acted = others.policy_actions(subject, dataset["observations"][:5])
    assert acted.shape == (5, dataset["actions"].shape[1])
    assert np.abs(acted).max() <= 1


def test_eval_view_counts_episodes(run: Path) -> None:
    payload = artifacts.read_payload(run / "eval.json")
    found = succeed("inspect", run / "eval.json", "--json").json
    assert found["episodes"]["count"] == len(payload["per_episode"])
    assert sum(found["episodes"]["ended"].values()) == len(payload["per_episode"])
    assert found["episodes"]["return"]["mean"] == pytest.approx(payload["score"]["mean_return"])
    assert "ended:" in succeed("inspect", run / "eval.json").stdout


def with_curve(path: Path, scores: list[float]) -> Path:
    """The score file with another return over training, at steps 10, 20, ..."""
    header, payload = artifacts.read_header(path), artifacts.read_payload(path)
    points = [{"episodes": 5, "mean_return": s / 100, "std_return": 0.1, "normalized": s} for s in scores]
    curve = [{"step": 10 * (index + 1), **point} for index, point in enumerate(points)]
    content = {name: payload[name] for name in ("env", "score", "per_episode")}
    artifacts.write_json(path, header, content | {"curve": curve})
    return path


def test_return_over_training_is_shown_drawn_and_written(run: Path, tmp_path: Path) -> None:
    curve = artifacts.read_payload(run / "eval.json")["curve"]
    assert len(curve) == 10
    table = tmp_path / "x.csv"
    path = with_curve(run / "eval.json", [0.0, 50.0, 90.0, 104.0, 80.0, 100.0])
    outcome = succeed("inspect", path, "--csv", table, "--png", tmp_path / "x.png", "--panels", "returns")
    assert "▁▄▇█▇█" in outcome.stdout
    assert re.search(r"last third of training within 10 % of its end +no \(20.0 %\)", outcome.stdout)
    records = list(csv.DictReader((tmp_path / "x.curve.csv").read_text().splitlines()[1:]))
    assert [float(record["normalized"]) for record in records] == [0.0, 50.0, 90.0, 104.0, 80.0, 100.0]
    assert len(table.read_text().splitlines()) == 4  # the episodes
    view = succeed("inspect", with_curve(path, [0.0, 50.0, 90.0, 91.0, 100.0, 95.0]), "--json").json
    assert view["worst_deviation"] == pytest.approx(5 / 95)
    assert view["steady"] == "yes (5.3 %)"
    for few in ([], [3.0]):
        view = succeed("inspect", with_curve(path, few), "--json").json
        assert not view.get("steady")
    (tmp_path / "y.curve.csv").write_text("mine")
    assert smodice("inspect", with_curve(path, [1.0, 2.0]), "--csv", tmp_path / "y.csv").code == 5
    assert not (tmp_path / "y.csv").exists()


def test_a_curve_that_ends_at_nothing_is_not_steady() -> None:
    line = {"steps": [1.0, 2.0, 3.0], "mean": [0.0, 50.0, 0.0], "low": [], "high": []}
    assert steady(worst_deviation(line)) == "no (5000.0 %)"
    assert steady(worst_deviation({**line, "mean": [9.0, 0.0, 0.0]})) == "yes (0.0 %)"
    assert over_seeds([{1: 1.0, 2: 4.0, 3: 9.0}, {2: 2.0, 3: 1.0}]) == {
        "steps": [2, 3],
        "mean": [3.0, 5.0],
        "low": [2.0, 1.0],
        "high": [4.0, 9.0],
    }


def test_curves_are_the_log(run: Path) -> None:
    view = succeed("inspect", run / "weights.h5", "--json").json
    lines = [json.loads(line) for line in (run / "value.log.jsonl").read_text().splitlines()]
    assert view["curves"]["loss"]["values"] == [line["loss"] for line in lines]
    assert log_path(Path("a/x.weights.h5"), "weights") == Path("a/x.log.jsonl")
    with open(run / "value.log.jsonl", "a") as file:
        file.write('{"step": 41, "los')  # a line cut short
    assert curves(open_subject(run / "weights.h5").log) == view["curves"]


# --- files and bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weights.h5", "dataset.h5", "disc.safetensors", "eval.json"])
def test_pictures_pages_and_tables_are_written(run: Path, tmp_path: Path, name: str) -> None:
    from PIL import Image

    page, picture, table = (tmp_path / f"x.{ending}" for ending in ("html", "png", "csv"))
    outcome = succeed("inspect", run / name, "--html", page, "--png", picture, "--csv", table)
    assert "written:" in outcome.stderr
    pixels = np.asarray(Image.open(picture).convert("L"))
    assert pixels.shape[1] > 1000
    assert 0.005 < (pixels < 200).mean() < 0.6  # neither empty nor full
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in text
    for word in ("http://", "https://", 'src="/', "@import"):
        assert word not in text
    assert text.count("<img ") == text.count("<source ") > 0
    assert len(list(csv.reader(table.read_text().splitlines()[1:]))) >= 2


def test_a_table_of_trajectories_reads_back(run: Path, tmp_path: Path) -> None:
    succeed("inspect", run / "weights.h5", "--csv", tmp_path / "t.csv", "--quiet")
    records = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()[1:]))
    assert sum(float(record["share"]) for record in records) == pytest.approx(1)
    assert sum(int(record["length"]) for record in records) == 3000


def test_foreign_files_are_not_overwritten(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "thesis.html"
    mine.write_text("<p>years of work</p>")
    refuse(5, "inspect", run / "eval.json", "--html", mine)
    assert mine.read_text() == "<p>years of work</p>"
    succeed("inspect", run / "eval.json", "--html", mine, "--force")
    succeed("inspect", run / "eval.json", "--html", mine)  # ours now
    refuse(2, "inspect", run / "eval.json", "--png", tmp_path / "picture.jpg")
    succeed("inspect", run / "eval.json", "--png", tmp_path / "new" / "folder" / "picture.png")
    refuse(3, "inspect", run / "eval.json", "--png", mine / "folder" / "picture.png")
    refuse(5, "inspect", run / "eval.json", "--html", _made(tmp_path / "folder.html"))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_weights_without_their_dataset_say_which_views_are_gone(run: Path) -> None:
    (run / "dataset.h5").unlink()
    outcome = succeed("inspect", run / "weights.h5")
    assert "without its dataset" in outcome.stdout
    assert "state map" in outcome.stdout
    assert "trajectories" in outcome.stdout
    view = succeed("inspect", run / "weights.h5", "--trajectory", "0", "--json").json
    assert view["health"]["rows"] == 3000
    assert "expert" not in view
    assert view["trajectory"]["weight"]
    assert "needs the dataset" in refuse(3, "inspect", run / "weights.h5", "--dims", "0,1")


def test_another_dataset_in_the_place_of_the_right_one_is_noticed(run: Path, tmp_path: Path) -> None:
    offline, expert = f"sim:{ENV}#600", f"sim:{ENV}#success=20"
    succeed("build-dataset", "--env", ENV, "--offline", offline, "--expert", expert, "--out", tmp_path / "d.h5")
    shutil.copy(tmp_path / "d.h5", run / "dataset.h5")
    view = succeed("inspect", run / "weights.h5", "--json").json
    assert "is not the dataset that" in view["without_dataset"]["why"]


def test_weights_of_another_dataset_are_not_compared(run: Path) -> None:
    other = write_weights(run / "o.weights.h5", np.ones(3000), run / "weights.h5")
    artifact = artifacts.load(other, "weights")
    header = Header("weights", "train-value", {}, 0, {"dataset": Link("elsewhere.h5", "f" * 32)})
    artifacts.write_hdf5(run / "o.weights.h5", header, {k: np.array(v) for k, v in artifact.arrays.items()})
    said = refuse(3, "inspect", run / "weights.h5", "--compare", other)
    assert "another dataset" in said
    refuse(3, "inspect", run / "weights.h5", "--compare", run / "absent.h5")
    refuse(3, "inspect", run / "weights.h5", "--compare", run / "dataset.h5")
    refuse(2, "inspect", run / "dataset.h5", "--compare", run / "weights.h5")


@pytest.mark.parametrize("dims", ["0", "0,0", "a,b", "0,99", "0,1,2"])
def test_bad_dimensions_are_refused(run: Path, dims: str) -> None:
    refuse(2, "inspect", run / "weights.h5", "--dims", dims)


def test_absent_labels_are_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smodice_cli.envs.registry.success", lambda name: None)
    view = succeed("inspect", run / "weights.h5", "--json").json
    assert "no labels" in view["expert"]["absent"]
    assert "no labels" in succeed("inspect", run / "weights.h5").stdout


def test_small_pieces() -> None:
    assert spark([0, 1, 2, 3]) == "▁▃▆█"
    assert len(spark(range(1000))) <= 40
    assert bar(1.0, 4) == "████"
    assert bar(0.5, 4) == "██"
    assert percent(0.5) == "50.0 %"
    assert percent(1e-6) == "0.0001 %"
    np.testing.assert_array_equal(usable(np.array([1.0, np.nan, -2.0, np.inf])), [1.0, 0.0, 0.0, 0.0])


def large_run(folder: Path, rows: int, width: int = 17, acts: int = 6) -> Path:
    """A dataset and weights of the size of the paper's, made of noise."""
    rng = np.random.default_rng(0)
    length = 1000
    offsets = np.append(np.arange(0, rows, length), rows).astype(np.int64)
    states = rng.standard_normal((rows, width), dtype=np.float32)
    arrays: dict[str, np.ndarray] = {
        "observations": states,
        "actions": np.clip(rng.standard_normal((rows, acts), dtype=np.float32), -1, 1),
        "rewards": rng.random(rows, dtype=np.float32),
        "next_observations": states,
        "terminals": np.zeros(rows, np.uint8),
        "timeouts": np.zeros(rows, np.uint8),
        "episode_offsets": offsets,
        "episode_source": (np.arange(len(offsets) - 1) >= 200).astype(np.int32),
        "mean": np.zeros(width, np.float32),
        "std": np.ones(width, np.float32),
        "expert/observations": states[:1000],
        "action_low": -np.ones(acts, np.float32),
        "action_high": np.ones(acts, np.float32),
    }
    metrics: dict[str, Any] = {"expert_dims": list(range(width)), "sources": ["hc-expert", "hc-random"], "rows": rows}
    config = {"env": "halfcheetah", "absorbing": False}
    written = artifacts.write_hdf5(folder / "dataset.h5", Header("dataset", "x", config, 0, metrics=metrics), arrays)
    dataset = Dataset(arrays, "halfcheetah", [], False, [])
    w = rng.lognormal(size=rows)
    columns = {
        "w": w / w.mean(),
        "log_w": np.log(w),
        "residual": rng.random(rows, dtype=np.float32),
        "reward": rng.random(rows, dtype=np.float32),
        "v": rng.random(rows, dtype=np.float32),
        "v_next": rng.random(rows, dtype=np.float32),
        "episode": dataset.episode_of_row(),
        "t": dataset.time_of_row(),
        "source": dataset.source_of_row(),
    }
    links = {"dataset": Link("dataset.h5", written.digest)}
    artifacts.write_hdf5(folder / "weights.h5", Header("weights", "x", {"gamma": 0.99}, 0, links), columns)
    return folder / "weights.h5"


@pytest.mark.slow
def test_a_file_of_the_papers_size_is_inspected_in_five_seconds(tmp_path: Path) -> None:
    path = large_run(tmp_path, 1_200_000)
    smodice("inspect", path, "--json")  # compiles and warms the caches
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    outcome = succeed("inspect", path, "--json")
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert outcome.json["health"]["rows"] == 1_200_000
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 5, f"{spent:.1f} s of processor time, {time.monotonic() - began:.1f} s in all"


def test_a_shipped_expert_tells_its_return_and_its_command() -> None:
    path = Path(smodice_cli.__file__).parent / "sources/policies/hopper.safetensors"
    evaluation = artifacts.read_header(path).metrics["evaluation"]
    shown = succeed("inspect", path).stdout
    assert f"{evaluation['mean']:.4g}" in shown
    assert "smodice train-expert hopper" in shown
