"""What the weights chose: labels, histogram, trajectories, places and comparisons against plain computations."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from conftest import ENV, refuse, smodice, succeed
from scipy import stats
from weights_files import dataset_of, some_weights, write_weights

from smodice_cli import artifacts
from smodice_cli.algos.segments import occupancy, row_weights
from smodice_cli.data import Dataset
from smodice_cli.envs import ENVIRONMENTS
from smodice_cli.statistics import ranks
from smodice_cli.views import choice
from smodice_cli.views.places import choose_plane, state_map
from smodice_cli.views.plots import profile


@pytest.mark.parametrize("seed", range(3))
def test_auroc_and_ratio_equal_counting_pairs(seed: int) -> None:
    w = np.round(some_weights(seed, 150), 1)  # with ties
    rows = np.random.default_rng(seed).random(150) < 0.3
    found = choice.against_the_rest(w, choice.Chosen("x", "", rows))
    pairs = [(a > b) + 0.5 * (a == b) for a in w[rows] for b in w[~rows]]
    assert found["auroc"] == pytest.approx(sum(pairs) / len(pairs))
    assert found["ratio_of_means"] == pytest.approx(w[rows].mean() / w[~rows].mean())
    assert found["share"] == pytest.approx(w[rows].sum() / w.sum())
    assert found["base_rate"] == pytest.approx(rows.mean())
    np.testing.assert_allclose(ranks(w), stats.rankdata(w))


def test_labels_come_from_the_source_or_from_success(run: Path) -> None:
    dataset = dataset_of(run)
    chosen = choice.chosen_rows(dataset)
    assert chosen is not None
    success = ENVIRONMENTS[ENV].success
    assert success is not None
    for k in range(len(dataset.offsets) - 1):
        a, b = dataset.offsets[k : k + 2]
        assert chosen.rows[a:b].all() == chosen.rows[a:b].any() == success(dataset["next_observations"][b - 1 : b])[0]
    half = len(dataset["episode_source"]) // 2
    arrays = {**dataset.arrays, "episode_source": (np.arange(len(dataset["episode_source"])) >= half).astype(np.int32)}
    two = Dataset(arrays, ENV, dataset.dims, False, ["x-random", "x-expert"])
    named = choice.chosen_rows(two)
    assert named is not None
    assert (named.name, named.rows.sum()) == ("x-expert", dataset.rows - dataset.offsets[half])
    returns, _ = choice.episode_returns(two)
    best = int(returns[:half].mean() < returns[half:].mean())
    found = choice.chosen_rows(Dataset(arrays, ENV, dataset.dims, False, ["p", "q"]))
    assert found is not None
    assert found.name == "pq"[best]


def test_histogram_counts_every_row_once() -> None:
    w = some_weights(3)
    w[0] = 1e-30
    groups = {"a": np.arange(len(w)) % 2 == 0, "b": np.arange(len(w)) % 2 == 1}
    found = choice.histogram(w, groups, bins=9)
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
    found = choice.lorenz(w, points=61)
    ordered = sorted(w)
    for share, weight in zip(found["rows"], found["weight"], strict=True):
        assert weight == pytest.approx(sum(ordered[: round(share * 60)]) / sum(w))
    differences = sum(abs(a - b) for a in w for b in w) / (2 * len(w) ** 2 * w.mean())
    assert found["gini"] == pytest.approx(differences)
    assert choice.lorenz(np.ones(50))["gini"] == pytest.approx(0)
    assert choice.lorenz(np.eye(50)[0])["gini"] == pytest.approx(1 - 1 / 50)


def test_trajectories_equal_loops_over_them(run: Path) -> None:
    dataset, w = dataset_of(run), some_weights(5, 3000)
    found = choice.trajectories(w, dataset)
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
    found = occupancy(row_weights(xi, offsets, n, gamma), t, n, gamma)
    plain = [sum(gamma ** t[i] * xi[i - k] for k in range(min(n, t[i] + 1))) for i in range(40)]
    np.testing.assert_allclose(found, np.array(plain) / np.mean(plain), rtol=1e-9)


def test_peaks_are_separate_local_maxima_in_order_of_time() -> None:
    assert choice.peaks(np.array([5.0, 4.0, 3.0, 1.0, 2.0, 1.0, 7.0]), 2) == [0, 6]
    assert choice.peaks(np.array([5.0, 4.0, 3.0, 1.0, 2.0, 1.0, 7.0]), 9) == [0, 4, 6]
    assert len(choice.peaks(np.ones(100), 4)) == 4


def test_frames_need_a_picture_and_the_dataset(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    refuse(2, "inspect", run / "weights.h5", "--frames")
    assert "look at weights" in refuse(2, "inspect", run / "eval.json", "--frames", "--png", picture)
    said = smodice("inspect", run / "weights.h5", "--png", picture, "--panels", "histgram", "--quiet")
    assert (said.code, "did you mean histogram" in said.stderr) == (2, True)
    (run / "dataset.h5").unlink()
    assert "--frames needs the dataset" in refuse(3, "inspect", run / "weights.h5", "--frames", "--png", picture)


def test_frames_are_a_picture(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    outcome = smodice("inspect", run / "weights.h5", "--frames", "--png", picture, "--panels", "frames", "--quiet")
    if "cannot render" in outcome.stderr:
        pytest.skip("no OpenGL")
    assert outcome.code == 0
    assert picture.stat().st_size > 5000


def test_profile_is_the_mean_by_time_step() -> None:
    rng = np.random.default_rng(0)
    t, w = rng.integers(0, 20, 500), rng.random(500)
    found = profile(w, t, bins=100)
    for at, mean, low, high in zip(*found.values(), strict=True):
        mine = w[t == at]
        assert mean == pytest.approx(mine.mean())
        assert (low, high) == pytest.approx(tuple(np.quantile(mine, (0.25, 0.75))))


def test_what_if_equals_clipping_and_heating() -> None:
    w = some_weights(6)
    found = choice.what_if(w)
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
    found = choice.compare(a, b)
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
    assert choice.compare(np.ones(10), np.arange(10.0))["spearman"] is None


def test_state_map_counts_rows_weights_and_expert_states(run: Path) -> None:
    dataset, w = dataset_of(run), some_weights(9, 3000)
    seen = choose_plane(dataset)
    assert seen.dims == (0, 1)  # what the registry says
    cells = state_map(dataset, w, seen, bins=7)
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
    assert choose_plane(dataset, (2, 3)).dims == (2, 3)
    unknown = Dataset(dataset.arrays, "no-such-env", dataset.dims, False, dataset.sources)
    seen = choose_plane(unknown)
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
    shared = state_map(part, np.ones(3000), choose_plane(part, (0, 1)))
    whole = state_map(dataset, np.ones(3000), choose_plane(dataset, (0, 1)))
    np.testing.assert_allclose(shared["expert"], whole["expert"])
    assert state_map(part, np.ones(3000), choose_plane(part, (0, 2)))["expert"] is None
