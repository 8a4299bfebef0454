"""Simulated data: the same bytes from any number of processes, and policies that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import listing, refuse, succeed
from recordings import HOPPER, policy_file, rows_of

from smodice_cli.data import Transitions
from smodice_cli.sources import sim


@pytest.mark.parametrize("who", ["hopper-random", "hopper@policy"])
def test_any_number_of_workers_gives_the_same_bytes(who: str, tmp_path: Path) -> None:
    name = who.replace("policy", str(policy_file(tmp_path / "p.safetensors", HOPPER)))
    one, two = rows_of(f"sim:{name}#700", HOPPER, 1), rows_of(f"sim:{name}#700", HOPPER, 3)
    for column in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts", "offsets"):
        assert getattr(one, column).tobytes() == getattr(two, column).tobytes()
    assert one.rows == 700


def test_single_trajectory_is_the_one_of_that_number() -> None:
    first = rows_of("sim:hopper-random#episodes=12", HOPPER)
    tenth = rows_of("sim:hopper-random#traj=10", HOPPER)
    np.testing.assert_array_equal(tenth.observations, first.take(10, 11).observations)
    assert first.episodes == 12


def test_simulated_data_replay_in_a_fresh_environment() -> None:
    block = rows_of("sim:hopper-random#episodes=2", HOPPER)
    again = rows_of("sim:hopper-random#episodes=2", HOPPER)
    np.testing.assert_array_equal(block.next_observations, again.next_observations)
    assert not np.array_equal(block.observations, rows_of("sim:hopper-random#episodes=2", HOPPER, seed=1).observations)


@pytest.mark.parametrize(
    ("made_for", "header", "message"),
    [("walker2d", "", "takes 17 observations"), ("halfcheetah", "halfcheetah", "trained for halfcheetah, not for")],
)
def test_policy_for_another_body_is_refused_before_any_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_for: str, header: str, message: str
) -> None:
    policy = policy_file(tmp_path / "p.safetensors", made_for, header)
    body = "halfcheetah-short" if header else HOPPER

    def forbidden(*_: object) -> Iterator[Transitions]:
        raise AssertionError("a process was about to start")

    monkeypatch.setattr(sim, "ordered_map", forbidden)
    before = listing(tmp_path)
    sentence = refuse(
        3, "build-dataset", "--env", body, "--offline", f"sim:{body}-random#100",
        "--expert", f"sim:{body}@{policy}#traj=0", "--out", tmp_path / "run" / "d.h5",
    )  # fmt: skip
    assert message in sentence
    assert listing(tmp_path) == before


def test_a_changed_policy_makes_the_dataset_anew(tmp_path: Path) -> None:
    policy, out = tmp_path / "p.safetensors", tmp_path / "d.h5"
    arguments = ("--env", HOPPER, "--offline", f"sim:hopper@{policy}#200", "--expert", f"sim:hopper@{policy}#traj=0")
    policy_file(policy, HOPPER, HOPPER)
    succeed("build-dataset", *arguments, "--out", out)
    assert succeed("build-dataset", *arguments, "--out", out, "--json").json["status"] == "cached"
    policy_file(policy, HOPPER)
    plan = succeed("build-dataset", *arguments, "--out", out, "--dry-run", "--json").json
    assert plan["status"] == "would run"
    assert "changed" in plan["reason"]
