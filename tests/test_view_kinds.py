"""The views of the other artifacts: dataset, discriminator, value, policy, scores and training curves."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import smodice, succeed
from weights_files import dataset_of

from smodice_cli import artifacts
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.artifacts import Header
from smodice_cli.views import VIEWS, View, choice, open_artifact, view_of
from smodice_cli.views.disc import SATURATED
from smodice_cli.views.opened import Opened, Request, curves
from smodice_cli.views.render.terminal import Block
from smodice_cli.views.scores import over_seeds, steady, worst_deviation


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

    from smodice_cli.algos.nets import Discriminator

    dataset, artifact = dataset_of(run), artifacts.load(run / "disc.safetensors", "disc")
    disc = Discriminator.of(artifact.arrays)
    with torch.no_grad():
        offline = disc(disc.select(torch.from_numpy(np.array(dataset["observations"])))).numpy()
        expert = disc(torch.from_numpy(np.array(dataset["expert/observations"]))).numpy()
    found = succeed("inspect", run / "disc.safetensors", "--json").json["reward"]
    pairs = (expert[:, None] > offline).mean() + 0.5 * (expert[:, None] == offline).mean()
    assert found["auc"] == pytest.approx(pairs, abs=1e-4)
    assert found["groups"]["expert states"]["mean"] == pytest.approx(expert.mean(), abs=1e-5)
    (label,) = [name for name in found["groups"] if name != "expert states"]
    assert found["groups"][label]["max"] == pytest.approx(offline.max(), abs=1e-5)
    assert found["groups"][label]["saturated"] == pytest.approx(np.mean(np.abs(offline) > SATURATED))
    assert sum(found["histogram"]["shares"][label]) == pytest.approx(1)
    assert "R(s) on" in succeed("inspect", run / "disc.safetensors").stdout


def test_value_view_equals_the_stored_values(run: Path) -> None:
    arrays, dataset = artifacts.load(run / "weights.h5", "weights").arrays, dataset_of(run)
    chosen = choice.chosen_rows(dataset)
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
    policy = NumpyPolicy(open_artifact(run / "policy.safetensors").artifact.arrays)
    acted = policy.act(dataset["observations"][:5])
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
    found = over_seeds([{1: 1.0, 2: 4.0, 3: 9.0}, {2: 2.0, 3: 1.0}])
    assert found is not None
    assert (found["steps"], found["mean"]) == ([2, 3], [3.0, 5.0])
    assert [found["high"][i] - found["mean"][i] for i in (0, 1)] == pytest.approx([12.7062, 4 * 12.7062], abs=1e-3)
    assert [found["mean"][i] - found["low"][i] for i in (0, 1)] == pytest.approx([12.7062, 4 * 12.7062], abs=1e-3)


class ToyView(View):
    """How artifacts of a kind from elsewhere are shown."""

    def figures(self, opened: Opened, request: Request) -> dict[str, Any]:
        return {"answer": 6 * 7}

    def blocks(self, facts: dict[str, Any]) -> list[Block]:
        return [[f"the answer is {facts['answer']}"]]


def test_a_kind_from_elsewhere_is_shown_by_any_view_or_by_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toy.json"
    artifacts.write_json(path, Header("toy", "make-toy", {"size": 3}, 0, metrics={"weight": 1.5}), {"x": 1})
    said = succeed("inspect", path).stdout
    for words in ("toy artifact of smodice make-toy", "size 3", "figures", "weight  1.5"):
        assert words in said
    assert "nothing to draw of a toy" in smodice("inspect", path, "--png", tmp_path / "x.png").stderr
    monkeypatch.setitem(VIEWS._found, "toy", ToyView)
    assert succeed("inspect", path, "--json").json["answer"] == 42
    assert "the answer is 42" in succeed("inspect", path).stdout


def test_curves_are_the_log(run: Path) -> None:
    view = succeed("inspect", run / "weights.h5", "--json").json
    lines = [json.loads(line) for line in (run / "value.log.jsonl").read_text().splitlines()]
    assert view["curves"]["loss"]["values"] == [line["loss"] for line in lines]
    assert view_of("weights").log_path(Path("a/x.weights.h5")) == Path("a/x.log.jsonl")
    with open(run / "value.log.jsonl", "a") as file:
        file.write('{"step": 41, "los')  # a line cut short
    again = curves(open_artifact(run / "weights.h5").log)
    assert {f"{n}_of_held_out_segments" if "share" in n or "ratio" in n else n: c for n, c in again.items()} == view[
        "curves"
    ]
