"""SMODICE-Zero, and the ratio of weights by source over training: the paper's ablation of its reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, refuse, succeed

from smodice_cli import artifacts

EXPERT, RANDOM = "sim:hopper-expert", "sim:hopper-random"


@pytest.fixture(scope="module")
def disc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("zero")
    data = ("--offline", f"{EXPERT}#episodes=3", "--offline", f"{RANDOM}#1500", "--expert", f"{EXPERT}#traj=0")
    succeed("build-dataset", "--env", "hopper", *data, "--out", run / "dataset.h5")
    succeed("train-disc", "--data", run / "dataset.h5", "--steps", "200", "--set", "hidden=32")
    return run / "disc.safetensors"


def value(disc: Path, out: Path, *flags: str) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """The weights and the log of a brief training of V."""
    succeed("train-value", "--disc", disc, "--out", out, "--steps", "500", "--set", "n_step=20", *SMALL, *flags)
    lines = out.with_suffix(".log.jsonl").read_text().splitlines()
    return artifacts.load(out.with_name("weights.h5"), "weights").arrays, [json.loads(line) for line in lines]


def test_without_a_reward_nothing_tells_the_expert_from_the_rest(disc: Path, tmp_path: Path) -> None:
    ratios = {}
    for name, flags in (("rewarded", ()), ("zero", ("--set", "reward=zero"))):
        (tmp_path / name).mkdir()
        arrays, log = value(disc, tmp_path / name / "value.safetensors", *flags)
        assert bool(arrays["reward"].any()) == (name == "rewarded")
        told = log[-1]
        ratios[name] = told[f"xi {EXPERT}"] / told[f"xi {RANDOM}"]
        assert np.isfinite(ratios[name])
    assert ratios["rewarded"] > 3 * ratios["zero"]


def test_an_unknown_reward_is_refused(disc: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "v.safetensors", "--set", "reward=none")
    assert "reward" in refuse(4, "train-value", "--disc", disc, *out)
