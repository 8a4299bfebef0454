"""What the tests share: the real command line (in this process or in one of its own) and a small finished run."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from as_command import be_smodice
from typer.testing import CliRunner

from smodice_cli import artifacts
from smodice_cli.commands import app

hypothesis.settings.register_profile("busy", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("busy")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(os.environ.get("SMODICE_SHARED_DATA", Path(__file__).parents[2] / "shared/data"))
PATIENCE = 300  # seconds until something counts as hanging: a machine may be busy with much else
ENV = "pointmass-4direction"
OFFLINE, EXPERT = f"sim:{ENV}#3000", f"sim:{ENV}#success=50"
SMALL = ("--set", "hidden=16", "--set", "batch=16")
TINY = {
    "dataset": {"env": ENV, "offline": [f"sim:{ENV}#600"], "expert": [f"sim:{ENV}#success=20"]},
    "disc": {"steps": 20, "hidden": 8, "batch": 8},
    "value": {"steps": 20, "hidden": 8, "batch": 8},
    "policy": {"steps": 20, "hidden": 8, "batch": 8},
    "eval": {"episodes": 2},
}


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def smodice(*arguments: str | Path) -> Outcome:
    """Run a command in this process, which is quick."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="smodice")
    return Outcome(result.exit_code, result.stdout, result.stderr)


def succeed(*arguments: str | Path) -> Outcome:
    """Run a command that must not fail."""
    outcome = smodice(*arguments)
    assert outcome.code == 0, outcome.stderr
    return outcome


def refuse(code: int, *arguments: str | Path) -> str:
    """Run a command that must fail with this code and one sentence, no traceback; returns the sentence."""
    outcome = smodice(*arguments)
    assert outcome.code == code, (outcome.code, outcome.stdout, outcome.stderr)
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    errors = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, outcome.stderr
    return errors[0]


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below a folder, hidden ones too, with size and time of change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() or not any(path.iterdir())
    }


def digest(path: Path) -> str:
    """The content digest of a whole artifact."""
    return artifacts.read_any(path).header.digest


# --- files that tests write -----------------------------------------------------------------------------------------


def write_recipe(path: Path, settings: dict[str, dict[str, object]]) -> Path:
    """Settings as TOML (JSON's numbers, texts and lists are TOML's too)."""
    lines = [
        f"[{name}]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in part.items()) for name, part in settings.items()
    ]
    path.write_text("\n\n".join(lines) + "\n")
    return path


# --- real processes ---------------------------------------------------------------------------------------------------


class Running:
    """A command in a process of its own, which can be interrupted and killed."""

    def __init__(self, process: Any, output: Path) -> None:
        self.process, self.output = process, output

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        self.process.join()

    def ends(self, timeout: float = PATIENCE) -> Outcome:
        self.process.join(timeout)
        assert self.process.exitcode is not None, "still running"
        stdout, stderr = (Path(f"{self.output}.{name}") for name in ("stdout", "stderr"))
        texts = [path.read_text() if path.exists() else "" for path in (stdout, stderr)]
        return Outcome(self.process.exitcode, *texts)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a command as a process: `start("train-disc", ...)`; `limit` bounds the size of the files it may write."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["smodice_cli.commands", "smodice_cli.algos.nets"])  # once: a process starts at once
    running: list[Running] = []
    folder = tmp_path_factory.mktemp("output")

    def begin(*arguments: str | Path, limit: int | None = None) -> Running:
        output = folder / str(len(running))
        process = context.Process(target=be_smodice, args=([str(a) for a in arguments], str(output), limit))
        process.start()
        running.append(Running(process, output))
        return running[-1]

    yield begin
    for command in running:
        if command.process.is_alive():
            command.kill()


def wait_for(condition: Callable[[], object], timeout: float = PATIENCE, every: float = 0.02) -> None:
    """Wait until something has come true."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(every)


@cache
def can_render() -> bool:
    """Whether MuJoCo, asked without this tool, draws off screen here; then the tool has to."""
    code = "import mujoco as m; m.Renderer(m.MjModel.from_xml_string('<mujoco/>'), 8, 8).close()"
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"} | {"MUJOCO_GL": "egl"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode == 0


@pytest.fixture(scope="session", autouse=True)
def _no_terminal_width() -> Iterator[None]:
    """Parallel test workers inherit a terminal's width; output to a pipe is what the tests read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_simulation_process() -> Iterator[None]:
    """Few data are made sooner without further processes; that their number does not matter has a test of its own."""
    from smodice_cli import commands, parallel

    with pytest.MonkeyPatch.context() as patch:
        for module in (parallel, commands.stages, commands.run):
            patch.setattr(module, "cores", lambda: 1)
        yield


# --- a small finished run ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every artifact of the chain, from few data and few steps; copy it before changing it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    succeed("build-dataset", "--env", ENV, "--offline", OFFLINE, "--expert", EXPERT, "--out", run / "dataset.h5")
    succeed("train-disc", "--data", run / "dataset.h5", "--steps", "40", *SMALL)
    succeed("train-value", "--disc", run / "disc.safetensors", "--steps", "40", *SMALL)
    succeed("train-policy", "--value", run / "value.safetensors", "--steps", "40", *SMALL)
    succeed("eval", "--policy", run / "policy.safetensors", "--episodes", "2", "--threads", "1")
    return run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))
