"""A run that was killed or interrupted, and started again, ends with the same bytes as one that never stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from conftest import SMALL, Outcome, Running, Start, digest, succeed, wait_for

from smodice_cli import artifacts

INPUTS = {
    "disc": ("--data", "dataset.h5"),
    "value": ("--disc", "disc.safetensors"),
    "policy": ("--value", "value.safetensors"),
}
TRIES = 20  # on a machine so busy that a training ends before anyone has looked
STEPS = {"disc": 400, "value": 600, "policy": 800}


class Stage:
    """A training stage of a second or two, with checkpoints many times a second."""

    def __init__(self, name: str, run: Path) -> None:
        flag, source = INPUTS[name]
        self.name = name
        self.out = run / f"new-{name}.safetensors"
        self.command = [f"train-{name}", flag, run / source, "--out", self.out, "--steps", str(STEPS[name]), *SMALL]
        self.quick = [*self.command, "--checkpoint-every", "0.05"]
        self.checkpoint = run / f".{self.out.name}.ckpt"
        self.log = run / f"new-{name}.log.jsonl"

    def step(self) -> int:
        """The step of the checkpoint, 0 without one."""
        if not self.checkpoint.exists():
            return 0
        return int(artifacts.load(self.checkpoint, "checkpoint").header.metrics["step"])

    def reached(self, step: int, running: Running) -> None:
        wait_for(lambda: self.step() >= step or running.process.exitcode is not None)

    @property
    def beside(self) -> list[Path]:
        return [self.out.with_suffix(ending) for ending in (".weights.h5", ".snapshots.safetensors")]

    def result(self) -> tuple[str, ...]:
        """The digests of the artifact and of what lies beside it, and the whole log."""
        return digest(self.out), *[digest(path) for path in self.beside if path.exists()], self.log.read_text()

    def forget(self) -> None:
        """Begin again: on a busy machine it ended before anyone looked."""
        for path in (self.out, *self.beside, self.checkpoint, self.log):
            path.unlink(missing_ok=True)

    def killed(self, start: Start, step: int, *command: str | Path) -> None:
        """Run it and kill it once it has come so far."""
        for _ in range(TRIES):
            running = start(*command)
            self.reached(step, running)
            running.kill()
            if not self.out.exists():
                return
            assert artifacts.read_any(self.out)
            self.forget()
        pytest.fail("it always ended before it was killed")

    def interrupted(self, start: Start, number: int, *command: str | Path) -> Outcome:
        """Run it and interrupt it at its first checkpoint; returns how it ended."""
        for _ in range(TRIES):
            running = start(*command)
            self.reached(1, running)
            running.signal(number)
            outcome = running.ends()
            if outcome.code:
                return outcome
            self.forget()
        pytest.fail("it always ended before it was interrupted")


@pytest.fixture(params=list(INPUTS))
def stage(request: pytest.FixtureRequest, run: Path) -> Stage:
    return Stage(request.param, run)


@pytest.fixture(scope="module")
def whole(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, ...]]:
    """What a stage gives when nothing happens to it, by its name and further flags."""

    @cache
    def result(name: str, *flags: str) -> tuple[str, str]:
        stage = Stage(name, Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("whole") / "run")))
        succeed(*stage.command, *flags)
        return stage.result()

    return result


Whole = Callable[..., tuple[str, ...]]


def test_a_run_killed_three_times_equals_an_uninterrupted_run(stage: Stage, whole: Whole, start: Start) -> None:
    rng = random.Random(stage.command[0])
    for _ in range(3):
        stage.killed(start, stage.step() + rng.randrange(1, STEPS[stage.name] // 4), *stage.quick)
    outcome = start(*stage.quick).ends()
    assert outcome.code == 0, outcome.stderr
    assert "resuming from step" in outcome.stderr
    assert stage.result() == whole(stage.name)
    assert not list(stage.out.parent.glob(".*")), "a finished run leaves nothing hidden behind"


def test_an_interrupted_run_writes_a_checkpoint_and_says_how_to_go_on(stage: Stage, whole: Whole, start: Start) -> None:
    outcome = stage.interrupted(start, signal.SIGINT, *stage.quick, "--no-resume")
    assert outcome.code == 130, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "a checkpoint was written" in outcome.stderr
    assert f"go on with: smodice {stage.command[0]}" in outcome.stderr
    assert "--no-resume" not in outcome.stderr
    assert not stage.out.exists()
    assert f"stopped at step {stage.step():,} of {STEPS[stage.name]:,}" in outcome.stderr
    succeed(*stage.command)
    assert stage.result() == whole(stage.name)


PATIENT = ("--steps", "6000", "--set", "holdout=0.3", "--set", "patience=2", "--set", "lr=0.1")
STOPPED = {"value": PATIENT, "policy": (*PATIENT, "--set", "average=0.0")}  # two looks at held-out data without a gain


@pytest.mark.parametrize("name", list(STOPPED))
def test_a_run_that_stops_early_stops_at_the_same_step_after_kills(
    name: str, run: Path, whole: Whole, start: Start
) -> None:
    """Killed twice on the way (once between the two looks), once it could not write its end, and once at its end."""
    expected = whole(name, *STOPPED[name])
    looks = [line for line in map(json.loads, expected[-1].splitlines()) if "held_out" in line]
    stop = looks[-1]["step"]
    assert stop < 6000
    assert looks[-2]["step"] == stop - 500
    assert min(look["held_out"] for look in looks[:-2]) <= min(look["held_out"] for look in looks[-2:])

    stage = Stage(name, run)
    command = [*stage.command, *STOPPED[name]]
    every_step = [*command, "--checkpoint-every", "0"]
    for seconds, step in (("0.05", stop - 900), ("0.01", stop - 300)):
        stage.killed(start, step, *command, "--checkpoint-every", seconds)
    before = stage.step()
    assert stop - 500 < before < stop
    running = start(*every_step)
    stage.reached(before + 1, running)
    stage.out.mkdir()  # in the place of the result
    outcome = running.ends()
    assert outcome.code == 3, outcome.stderr
    assert f"resuming from step {before:,}" in outcome.stderr
    assert stop - 1 <= stage.step() <= stop
    stage.out.rmdir()
    running = start(*every_step)
    wait_for(lambda: f'"step": {stop},' in stage.log.read_text() or running.process.exitcode is not None)
    running.kill()
    succeed(*command)
    assert stage.result() == expected
    assert succeed(*command, "--json").json["status"] == "cached"
    assert not list(run.glob(".*"))


@pytest.fixture
def disc(run: Path) -> Stage:
    return Stage("disc", run)


def interrupt(stage: Stage, start: Start, *flags: str) -> None:
    assert stage.interrupted(start, signal.SIGTERM, *stage.quick, *flags).code == 130  # it is treated like Ctrl-C


def test_no_resume_starts_over_with_the_same_result(disc: Stage, start: Start, whole: Whole) -> None:
    interrupt(disc, start)
    outcome = succeed(*disc.command, "--no-resume")
    assert "resuming" not in outcome.stderr
    assert disc.result() == whole("disc")


def test_a_checkpoint_of_other_settings_is_refused_not_adapted(disc: Stage, start: Start, whole: Whole) -> None:
    interrupt(disc, start)
    outcome = succeed(*disc.command, "--set", "lr=0.01")
    assert "checkpoint belongs to other settings" in outcome.stderr
    assert disc.result() == whole("disc", "--set", "lr=0.01")


def test_a_checkpoint_of_another_layout_is_not_used(disc: Stage, start: Start, whole: Whole) -> None:
    interrupt(disc, start)
    old = artifacts.load(disc.checkpoint, "checkpoint")
    tensors = {name.replace("/mean", "/exp_avg"): tensor for name, tensor in old.tensors().items()}
    artifacts.write_safetensors(disc.checkpoint, old.header, tensors)
    outcome = succeed(*disc.command)
    assert "checkpoint is of another version" in outcome.stderr
    assert disc.result() == whole("disc")


def test_the_time_of_a_resumed_run_counts_what_came_before(disc: Stage, start: Start) -> None:
    interrupt(disc, start)
    stopped = artifacts.load(disc.checkpoint, "checkpoint")
    assert 0 < stopped.header.seconds < 1000
    artifacts.write_safetensors(disc.checkpoint, replace(stopped.header, seconds=1000.0), stopped.tensors())
    assert "resuming from step" in succeed(*disc.command).stderr
    assert 1000 < artifacts.read_header(disc.out).seconds < 2000


def test_a_checkpoint_left_by_a_kill_after_the_artifact_was_written_goes(disc: Stage, start: Start) -> None:
    interrupt(disc, start)
    left = disc.checkpoint.read_bytes()
    succeed(*disc.command)
    disc.checkpoint.write_bytes(left)
    os.utime(disc.checkpoint, (0, 0))  # it was written before the artifact
    assert succeed(*disc.command, "--json").json["status"] == "cached"
    assert not disc.checkpoint.exists()


def test_a_forced_run_that_was_stopped_goes_on_without_force(disc: Stage, start: Start, whole: Whole) -> None:
    """As the command that it ends with says."""
    succeed(*disc.command)
    there = disc.out.read_bytes()
    for _ in range(TRIES):
        running = start(*disc.quick, "--force")
        disc.reached(50, running)
        running.kill()
        if disc.checkpoint.exists() and disc.out.read_bytes() == there:
            break
    assert "resuming from step" in succeed(*disc.command).stderr
    assert disc.result() == whole("disc")
    assert succeed(*disc.command, "--json").json["status"] == "cached"


def test_a_damaged_checkpoint_is_not_used(disc: Stage, start: Start, whole: Whole) -> None:
    interrupt(disc, start)
    disc.checkpoint.write_bytes(disc.checkpoint.read_bytes()[:-9])
    assert "starting from the beginning" in succeed(*disc.command).stderr
    assert disc.result() == whole("disc")


def test_the_log_holds_every_hundredth_step_once(disc: Stage) -> None:
    succeed(*disc.command)
    lines = [json.loads(line) for line in disc.log.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(100, STEPS["disc"] + 1, 100))
    assert all({"loss", "reward_expert", "reward_offline"} <= line.keys() for line in lines)


def test_status_shows_an_unfinished_run(disc: Stage, start: Start) -> None:
    interrupt(disc, start)
    rows = succeed("status", disc.out.parent, "--json").json["artifacts"]
    (row,) = [row for row in rows if row["kind"] == "checkpoint"]
    assert row["state"] == f"unfinished, at step {disc.step():,}"
