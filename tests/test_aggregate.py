"""Scores over tasks and seeds: against rliable's published definitions, computed here by other means."""

from __future__ import annotations

import csv
import json
import shutil
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from conftest import succeed
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from smodice_cli import artifacts, statistics
from smodice_cli.views import aggregate, report

SCORES = st.lists(st.floats(-50, 150), min_size=1, max_size=12)
TWO_TASKS = st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=4)


@given(SCORES)
def test_the_interquartile_mean_cuts_a_quarter_at_either_end(scores: list[float]) -> None:
    found = statistics.interquartile_mean(np.array(scores))
    assert found == pytest.approx(stats.trim_mean(scores, 0.25))  # rliable's aggregate_iqm


@given(TWO_TASKS)
def test_the_chance_of_improvement_is_the_mean_of_mann_whitneys_u(tasks: list[tuple[list[float], list[float]]]) -> None:
    first, second = ([np.array(task[i]) for task in tasks] for i in (0, 1))
    each = [
        stats.mannwhitneyu(x, y, alternative="greater").statistic / (len(x) * len(y))
        for x, y in zip(first, second, strict=True)
    ]
    found = statistics.improvement(first, second)
    assert found == pytest.approx(np.mean(each))  # rliable's probability_of_improvement
    assert statistics.improvement(second, first) == pytest.approx(1 - found)


@given(SCORES)
def test_a_performance_profile_is_the_share_above_a_threshold(scores: list[float]) -> None:
    thresholds = np.array([-60.0, 0.0, scores[0], 151.0])
    found = statistics.profile_of(np.array(scores), thresholds)
    assert found.tolist() == [sum(score > t for score in scores) / len(scores) for t in thresholds]
    assert all(a >= b for a, b in pairwise(statistics.profile_of(np.array(scores), np.sort(thresholds))))


def test_the_bootstrap_draws_seeds_within_their_task() -> None:
    tasks = [np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0])]
    first, second = statistics.resampled(tasks, 4000, np.random.default_rng(0))
    assert (first.shape, second.shape) == ((4000, 3), (4000, 2))
    assert set(first.flat) == {1.0, 2.0, 3.0}
    assert set(second.flat) == {10.0, 20.0}
    # Every outcome of the bootstrap counted: the interval of the mean is that of the 3^3 x 2^2 equally likely ones.
    means = [np.mean([*a, *b]) for a in product(tasks[0], repeat=3) for b in product(tasks[1], repeat=2)]
    exact = np.quantile(means, (0.025, 0.975), method="inverted_cdf")
    drawn = statistics.middle_95(np.concatenate([first, second], axis=1).mean(axis=1))
    assert drawn == pytest.approx(exact, abs=0.25)


def test_students_interval_of_the_mean() -> None:
    table = np.random.default_rng(0).normal(size=(5, 3))
    low, high = stats.t.interval(0.95, 4, table.mean(axis=0), stats.sem(table, axis=0))
    assert statistics.half_width_95(table) == pytest.approx((high - low) / 2)
    assert statistics.half_width_95(table[:1]).tolist() == [0.0, 0.0, 0.0]


# --- in a report ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks, three and two seeds of one method, and on the first task two of another; the scores are made up."""
    folder = tmp_path_factory.mktemp("runs")
    made = {"a": {"one": [90.0, 80.0, 100.0], "two": [10.0, 80.0]}, "b": {"one": [50.0, 70.0]}}
    for task, methods in made.items():
        data, first = folder / task / "dataset.h5", folder / "first" / task
        config = artifacts.read_header(finished_run / "dataset.h5").config
        size = {"a": 600, "b": 700}[task]
        sources = ("--offline", f"sim:{config['env']}#{size}", "--expert", config["expert"][0])
        succeed("build-dataset", "--env", config["env"], *sources, "--out", data)
        few = ("--steps", "5", "--set", "hidden=4", "--set", "batch=4", "--out", first / "policy.safetensors")
        succeed("train-policy", "--algo", "bc", "--data", data, *few)
        episodes = ("--episodes", "1", "--threads", "1", "--set", "curve_episodes=0")
        succeed("eval", "--policy", first / "policy.safetensors", *episodes)
        for method, scores in methods.items():
            for seed, score in enumerate(scores):
                place = Path(shutil.copytree(first, folder / task / f"seed{seed}" / method)) / "eval.json"
                header, payload = artifacts.read_header(place), artifacts.read_payload(place)
                payload["score"]["normalized"] = score
                artifacts.write_json(place, header, payload)
    shutil.rmtree(folder / "first")
    return folder


def test_a_report_has_every_method_over_all_tasks(runs: Path, tmp_path: Path) -> None:
    outcome = succeed("report", runs, "--html", tmp_path / "r.html", "--csv", tmp_path / "r.csv", "--json")
    found = outcome.json["over_tasks"]
    best, other = found["methods"]
    assert (best["tasks"], best["scores"], other["tasks"], other["scores"]) == (2, 5, 1, 2)
    scores = [90.0, 80.0, 100.0, 50.0, 70.0]
    assert best["iqm"] == pytest.approx(stats.trim_mean(scores, 0.25))
    assert best["mean"] == pytest.approx(np.mean(scores))
    assert best["iqm_95"][0] < best["iqm"] < best["iqm_95"][1]
    chance = {(pair["method"], pair["over"]): pair["chance"] for pair in found["improvement"]}
    # On the task that both have: 90 and 100 beat 10 and 80, 80 beats 10 and equals 80.
    assert chance[best["method"], other["method"]] == pytest.approx(5.5 / 6)
    assert "Over all tasks and seeds" in (tmp_path / "r.html").read_text()
    tables = {ending: _read(tmp_path / f"r.{ending}csv") for ending in ("", "methods.", "improvement.", "profiles.")}
    assert [len(table) for table in tables.values()] == [3, 2, 2, 2 * aggregate.THRESHOLDS]
    assert float(tables["methods."][0]["iqm"]) == pytest.approx(best["iqm"])
    assert float(tables["improvement."][0]["chance"]) == pytest.approx(5.5 / 6)


def _read(path: Path) -> list[dict[str, str]]:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# made with smodice")
    return list(csv.DictReader(lines[1:]))


def test_one_score_is_no_statistic(runs: Path, tmp_path: Path) -> None:
    found = succeed("report", runs / "a/seed0/two", "--html", tmp_path / "r.html", "--json").json
    assert found["over_tasks"] is None
    assert json.dumps(found)
    assert len(report.collect([runs / "a/seed0/two"])) == 1
