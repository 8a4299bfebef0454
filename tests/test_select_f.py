"""`smodice select-f`: the choice against plain rules, the policy loss against a plain computation, `f = auto`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ENV, EXPERT, OFFLINE, refuse, succeed

from smodice_cli import artifacts
from smodice_cli.data import Dataset
from smodice_cli.errors import DivergedError
from smodice_cli.stages import select_f

SMALL_SETTINGS = ("disc.steps=60", "disc.hidden=16", "value.hidden=16", "value.batch=32", "policy.hidden=16")
SETTINGS = [word for setting in (*SMALL_SETTINGS, "policy.batch=32") for word in ("--set", setting)]
BRIEF = ("--steps", "40", "--policy-steps", "30")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(f'[dataset]\nenv = "{ENV}"\noffline = ["{OFFLINE}"]\nexpert = ["{EXPERT}"]\n')
    return path


def entry(losses: list[float], level: str = "green", share: float = 0.2) -> dict[str, Any]:
    direction = "falls" if losses[0] < 1 else "jumps"
    points = [{"steps": i, "relative_loss": x, "effective_share": share} for i, x in enumerate(losses)]
    figures = {"level": level, "effective_share": share, "largest_share": 0.01}
    return {"points": points, "relative_loss": losses[-1], "direction": direction, **figures}


def test_the_lowest_falling_loss_with_usable_weights_wins() -> None:
    good, worse, jump = entry([0.9, 0.4]), entry([0.9, 0.8]), entry([1.4, 0.1])
    assert select_f.recommend({"kl": worse, "chi2": good})[0] == "chi2"
    assert select_f.recommend({"kl": jump, "chi2": good})[0] == "chi2"  # the initial direction counts
    assert select_f.recommend({"kl": entry([0.5, 0.1], "red"), "chi2": good})[0] == "chi2"
    assert select_f.recommend({"kl": {"points": [], "diverged": "x"}, "chi2": worse})[0] == "chi2"
    best, why = select_f.recommend({"kl": entry([0.9, 0.42], share=0.3), "chi2": good})
    assert (best, "more effective samples" in why) == ("kl", True)
    best, why = select_f.recommend({"kl": entry([1.2, 1.3]), "chi2": entry([1.2, 1.1])})
    assert (best, "harms it least" in why) == ("chi2", True)
    best, why = select_f.recommend({"kl": entry([0.9, 0.3], "red"), "chi2": entry([0.9, 0.5], "red")})
    assert (best, "unfit" in why) == ("kl", True)


def test_the_judge_prefers_weights_that_pick_a_deterministic_controller(run: Path) -> None:
    artifact = artifacts.load(run / "dataset.h5", "dataset")
    arrays = dict(artifact.arrays)
    source = np.arange(len(arrays["episode_source"])) % 2
    rows = np.repeat(source, np.diff(arrays["episode_offsets"])) == 1
    rng = np.random.default_rng(0)
    noisy = rng.uniform(-1, 1, arrays["actions"].shape).astype(np.float32)
    arrays["actions"] = np.where(rows[:, None], 0.5 * np.tanh(arrays["observations"][:, :2]), noisy).astype(np.float32)
    dataset = Dataset(arrays, ENV, list(range(4)), False, ["a"])
    config = select_f.Config(policy_steps=150, hidden=32, batch=64)
    judge = select_f.Judge(dataset, config, torch.Generator().manual_seed(0), torch.device("cpu"))
    expert, random = np.where(rows, 1.0, 0.0), np.where(rows, 0.0, 1.0)
    assert judge(expert) < 0.5 < 1.5 < judge(random)
    with pytest.raises(DivergedError, match="none to judge on"):
        judge(np.zeros(dataset.rows))
    assert not (judge.seen & judge.unseen).any()
    assert (judge.seen | judge.unseen).all()
    # its loss is the weighted mean of squared errors over the unseen rows
    policy = judge.start
    with torch.no_grad():
        mean, _ = policy(torch.from_numpy(np.array(dataset["observations"])))
        errors = ((torch.tanh(mean) - torch.from_numpy(dataset["actions"])) ** 2).sum(-1).numpy()
    p = expert * judge.unseen
    assert judge.loss(policy, expert) == pytest.approx(float(errors @ p / p.sum()), rel=0.05)


def test_a_recipe_is_judged_and_auto_uses_the_result(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    found = succeed("select-f", recipe, "--out", folder, *SETTINGS, *BRIEF, "--json").json
    assert set(found["candidates"]) == {"kl", "chi2", "soft-chi2"}
    assert found["recommended"] in found["candidates"]
    for candidate, evidence in found["candidates"].items():
        assert [point["steps"] for point in evidence["points"]] == [10, 20, 40]
        weights = artifacts.load(folder / f"seed0/select-f/{candidate}-40.weights.h5", "weights")
        w = np.asarray(weights.arrays["w"])
        assert evidence["effective_share"] == pytest.approx(w.sum() ** 2 / (w**2).sum() / len(w))
        assert evidence["largest_share"] == pytest.approx(w.max() / w.sum())
        assert weights.header.config["f"] == candidate
    assert (folder / "seed0/select-f.png").stat().st_size > 5000
    assert json.loads((folder / "seed0/select-f.json").read_text())["recommended"] == found["recommended"]
    again = succeed("select-f", recipe, "--out", folder, *SETTINGS, *BRIEF)
    assert f"recommended: {found['recommended']}" in again.stdout
    assert succeed("select-f", recipe, "--out", folder, *SETTINGS, *BRIEF, "--json").json["status"] == "cached"
    # what `auto` decided is what train-value then does, and asking again costs nothing
    disc = folder / "seed0/disc.safetensors"
    small = ("--set", "hidden=16", "--set", "batch=32", "--steps", "20")
    planned = succeed("train-value", "--disc", disc, "--f", "auto", *small, "--dry-run", "--json").json
    assert planned["status"] == "would run"
    assert not (folder / "seed0/value.safetensors").exists()


def test_auto_is_resolved_once_for_a_run(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first seed, and for every seed the same; a single stage decides on its own discriminator."""
    monkeypatch.setattr(select_f, "LENGTHS", (1.0,))
    monkeypatch.setattr(select_f.Config, "__init__", _brief(select_f.Config.__init__))
    few = ("--set", "value.steps=20", "--set", "policy.steps=20", "--set", "eval.episodes=1")
    run = ("run", recipe, "--out", tmp_path / "out", *SETTINGS, *few, "--set", "value.f=auto")
    planned = succeed(*run, "--dry-run", "--json").json["plan"]
    assert {entry["status"] for entry in planned} == {"would run"}
    assert not (tmp_path / "out").exists()
    assert "value.f = auto: " in succeed(*run).stderr
    found = artifacts.read_payload(tmp_path / "out/seed0/select-f.json")["recommended"]
    assert artifacts.read_header(tmp_path / "out/seed0/value.safetensors").config["f"] == found
    succeed(*run, "--seeds", "1,0")
    for seed in (0, 1):
        decided = artifacts.read_payload(tmp_path / "out/seed1/select-f.json")["recommended"]
        assert artifacts.read_header(tmp_path / f"out/seed{seed}/value.safetensors").config["f"] == decided
    small = ("--set", "hidden=16", "--set", "batch=32", "--steps", "20", "--json")
    disc, out = tmp_path / "out/seed0/disc.safetensors", tmp_path / "out/seed0/alone.safetensors"
    assert succeed("train-value", "--disc", disc, "--f", "auto", *small, "--out", out).json["status"] == "done"
    selection = artifacts.read_payload(tmp_path / "out/seed0/select-f.json")  # of these settings now
    assert artifacts.read_header(out).config["f"] == selection["recommended"]


def _brief(init: Any) -> Any:
    def shortened(self: Any, *args: Any, **given: Any) -> None:
        init(self, *args, **{**given, "steps": 20, "policy_steps": 20})

    return shortened


def test_bad_input_is_refused(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert "at least two" in refuse(2, "select-f", recipe, "--out", folder, "--candidates", "kl")
    assert "unknown divergence" in refuse(2, "select-f", recipe, "--out", folder, "--candidates", "kl,chi3")
    refuse(3, "select-f", tmp_path / "absent.toml")
    refuse(4, "select-f", recipe, "--out", folder, "--set", "value.gamma=2")
    assert not folder.exists()
    outcome = succeed("select-f", recipe, "--out", folder, "--dry-run", "--json").json
    assert outcome["status"] == "would run"
    assert not folder.exists()
