"""`--track`: what trackers are told is what the log says, and none of them can spoil a training."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import SMALL, digest, refuse, succeed

from smodice_cli.tracking import TRACKERS, Tracker


class Broken(Tracker):
    """Fails at the first figure."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        raise ConnectionError("nobody listens")


def train(run: Path, name: str, *flags: str) -> Path:
    out = run / f"{name}.safetensors"
    succeed("train-disc", "--data", run / "dataset.h5", "--out", out, "--steps", "200", *SMALL, *flags)
    return out


def test_tensorboard_gets_every_line_of_the_log(run: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(run, "tracked", "--track", "tensorboard")
    log = [json.loads(line) for line in (run / "tracked.log.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(run / "tensorboard/tracked"))
    events.Reload()
    for name in set(log[-1]) - {"step"}:
        told = [(event.step, event.value) for event in events.Scalars(name)]
        assert told == [(line["step"], pytest.approx(line[name], rel=1e-6)) for line in log if name in line]


def test_a_tracker_that_fails_is_left_behind(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS._found, "broken", Broken)
    plain = train(run, "plain")
    out = run / "followed.safetensors"
    few = ("--steps", "200", *SMALL, "--track", "broken")
    outcome = succeed("train-disc", "--data", run / "dataset.h5", "--out", out, *few)
    assert outcome.stderr.count("--track broken failed and is left out (nobody listens)") == 1
    assert digest(out) == digest(plain)
    assert (run / "followed.log.jsonl").read_text() == (run / "plain.log.jsonl").read_text()


def test_unknown_and_missing_trackers_are_refused_before_any_work(run: Path) -> None:
    command = ("train-disc", "--data", run / "dataset.h5", "--out", run / "new.safetensors", "--track")
    assert "unknown tracker 'tensorbord'" in refuse(2, *command, "tensorbord")
    for name in ("wandb", "trackio"):
        if importlib.util.find_spec(name) is None:
            assert f"needs the {name} package" in refuse(3, *command, name)
    assert not (run / "new.safetensors").exists()
