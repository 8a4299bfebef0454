"""Training experts: the command's settings, and a short real training where SBX is installed (`make test-experts`)."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import refuse, succeed
from safetensors.numpy import load_file

from smodice_cli import artifacts, envs
from smodice_cli.experts import sac

SHORT = (
    "--steps",
    "256",
    "--hidden",
    "8",
    "--set",
    "critic_hidden=8",
    "--set",
    "random_steps=64",
    "--set",
    "evaluations=2",
)


def test_settings_are_parsed_and_checked() -> None:
    chosen = sac.parse_settings(32, ["learning_rate=7e-4", "batch_size=64"])
    assert chosen == sac.Settings(hidden=32, learning_rate=7e-4, batch_size=64)
    assert "known key" in refuse(4, "train-expert", "hopper", "--set", "learning_rat=1")
    assert "is not int" in refuse(4, "train-expert", "hopper", "--set", "batch_size=many")


def test_every_shipped_expert_names_a_command_that_this_tool_understands() -> None:
    shipped = sorted(envs.POLICIES.glob("*.safetensors"))
    assert shipped
    for path in shipped:
        config = artifacts.read_header(path).config
        words = shlex.split(config["command"])
        given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        chosen = sac.parse_settings(int(words[words.index("--hidden") + 1]), given)
        assert {name: config[name] for name in vars(chosen)} == vars(chosen), path.name


def test_a_short_training_gives_a_policy_that_simulates_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("sbx", reason="the extra [experts] is not installed")
    first, second, third = (tmp_path / f"{name}.safetensors" for name in ("first", "second", "third"))
    evaluation = succeed("train-expert", "hopper", "--out", first, *SHORT, "--json").json["evaluation"]
    assert evaluation["episodes"] == 20
    header = artifacts.load(first, "policy").header
    assert header.metrics["evaluation"] == evaluation
    assert "--set critic_hidden=8" in header.config["command"]
    source = f"sim:hopper@{first}"
    succeed(
        "build-dataset",
        "--env",
        "hopper",
        "--offline",
        f"{source}#200",
        "--expert",
        f"{source}#traj=0",
        "--out",
        tmp_path / "d.h5",
    )
    assert "exists" in refuse(5, "train-expert", "hopper", "--out", first, *SHORT)
    succeed("train-expert", "hopper", "--out", second, "--from", first, *SHORT)
    sac.state_path(first).unlink()  # then only the policy itself is the start
    succeed("train-expert", "hopper", "--out", third, "--from", first, *SHORT)
    for path in (second, third):
        assert "--from first.safetensors" in artifacts.read_header(path).config["command"]
        assert not np.array_equal(load_file(path)["mean.weight"], load_file(first)["mean.weight"])
    assert "does not fit" in refuse(
        3, "train-expert", "walker2d", "--out", tmp_path / "w.safetensors", "--from", first, *SHORT
    )
