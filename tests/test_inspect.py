"""`smodice inspect`: the files it writes, what it says where something is missing, and bad input."""

from __future__ import annotations

import csv
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ENV, refuse, smodice, succeed
from weights_files import write_weights

from smodice_cli import artifacts
from smodice_cli.artifacts import Header, Link
from smodice_cli.data import Dataset
from smodice_cli.envs import ENVIRONMENTS, POLICIES
from smodice_cli.views.choice import usable
from smodice_cli.views.render.terminal import bar, percent, spark


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
    monkeypatch.setitem(ENVIRONMENTS._found, ENV, replace(ENVIRONMENTS[ENV], success=None))
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
def test_a_file_of_the_papers_size_is_inspected_in_the_time_of_sorting_it_a_few_times(tmp_path: Path) -> None:
    path = large_run(tmp_path, 1_200_000)
    smodice("inspect", path, "--json")  # compiles and warms the caches
    w = artifacts.load(path, "weights").arrays["w"]

    def processor_seconds(work: Callable[[], Any]) -> float:
        """The least of three: a busy machine makes some of them longer."""
        found = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_SELF)
            work()
            after = resource.getrusage(resource.RUSAGE_SELF)
            found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(found)

    outcomes: list[Any] = []
    sorting = processor_seconds(lambda: [np.argsort(w) for _ in range(10)])
    spent = processor_seconds(lambda: outcomes.append(succeed("inspect", path, "--json")))
    assert outcomes[0].json["health"]["rows"] == 1_200_000
    assert spent < 6 * sorting


def test_a_shipped_expert_tells_its_return_and_its_command() -> None:
    path = POLICIES / "hopper.safetensors"
    evaluation = artifacts.read_header(path).metrics["evaluation"]
    shown = succeed("inspect", path).stdout
    assert f"{evaluation['mean']:.4g}" in shown
    assert "smodice train-expert hopper" in shown
