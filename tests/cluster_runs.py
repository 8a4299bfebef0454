"""What the tests on clusters share: commands as processes and at a terminal, what a run left, and random kills."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from smodice_cli import artifacts, orders
from smodice_cli.views import runs

SMODICE = [sys.executable, "-m", "smodice_cli"]
KILLS = int(os.environ.get("SMODICE_KILLS", "4"))
PATIENCE = 1800  # seconds for a run on a busy machine


def until(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Wait until something has come true, without making a busy machine busier."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.5)


def smodice(*words: str | Path, env: dict[str, str] | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own, which must end with this code and without a traceback."""
    done = subprocess.run(
        [*SMODICE, *map(str, words)],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


class Terminal:
    """A command on a terminal of its own, at which Ctrl-C can be pressed."""

    def __init__(self, *words: str | Path, env: dict[str, str] | None = None) -> None:
        pid, self.keys = pty.fork()
        if not pid:
            os.execvpe(sys.executable, [*SMODICE, *map(str, words)], env or os.environ)
        self.pid, self.shown = pid, b""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # Linux's way to say that all have left the terminal
            while text := os.read(self.keys, 4096):
                self.shown += text

    def is_running(self) -> bool:
        return self.reader.is_alive()

    def press_ctrl_c(self) -> None:
        os.write(self.keys, b"\x03")

    def ends(self) -> tuple[int, str]:
        """Its exit code, and all that it showed."""
        self.reader.join(PATIENCE)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.keys)
        return code, self.shown.decode(errors="replace")


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that a command failed with."""
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return error


def digests(folder: Path) -> dict[str, str]:
    """The content digest of every artifact below a folder, each of them whole and current."""
    rows = [(run, row) for run in sorted(folder.iterdir()) for row in runs.status(run)]
    assert {row["state"] for _, row in rows} == {"ok"}, rows
    return {f"{run.name}/{row['path']}": artifacts.read_header(run / row["path"]).digest for run, row in rows}


def check_ended_well(folder: Path) -> int:
    """Every file of a run that was ended is valid and every worker said a last word; returns how many checkpoints."""
    found = [row["state"] for run in sorted(folder.iterdir()) for row in runs.status(run)]
    assert all(state == "ok" or state.startswith("unfinished, at step") for state in found), found
    given = [order for run in sorted(folder.iterdir()) for order in orders.of_run(run)]
    until(lambda: not [order for order in given if orders.report(order).kills], 120)
    return len(found) - found.count("ok")


def is_training(folder: Path) -> bool:
    """Whether some chain of these runs trains its policy."""
    return bool(list(folder.glob("*/seed*/**/.policy.safetensors.ckpt")))


def states(folder: Path, env: dict[str, str]) -> dict[str, str]:
    """Every order of some runs and its state, as `smodice status` tells."""
    told = json.loads(smodice("status", *sorted(folder.iterdir()), "--json", env=env).stdout)
    return {f"{Path(row['run']).name} {row['order']}": row["state"] for run in told["runs"] for row in run["orders"]}


# --- kills ---


def workers(name: str) -> list[int]:
    """The processes that do orders below the folder of this name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if b"smodice_cli\0work\0" in words and f"/{name}/".encode() in words:
                found.append(int(process.name))
    return found


def parent_of(pid: int) -> int:
    """The process that started one; 0 where it has gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def kill_one(pids: list[int], rng: random.Random) -> bool:
    """Kill one of these processes; whether there was one."""
    with suppress(ProcessLookupError):
        if pids := [pid for pid in pids if pid > 1]:
            os.kill(rng.choice(pids), signal.SIGKILL)
            return True
    return False


def kill_during(
    command: list[str],
    pause: float,
    rng: random.Random,
    kinds: dict[str, Callable[[], bool]],
    env: dict[str, str] | None = None,
    meanwhile: Callable[[], object] = int,
) -> None:
    """Kill something every now and then while a command runs, which must still end well, without any help."""
    killed: list[str] = []
    again = 0
    while len(killed) < KILLS:
        words = [*command, *["--force"] * bool(again)]  # begins anew where it ended before the last kill
        running = subprocess.Popen([*SMODICE, *words], env=env, stdout=subprocess.DEVNULL)
        due = time.monotonic() + rng.uniform(0, pause)
        while running.poll() is None:
            time.sleep(1)
            meanwhile()
            kind = rng.choice([*kinds])
            if len(killed) < KILLS and time.monotonic() > due and kinds[kind]():
                killed.append(kind)
                due = time.monotonic() + rng.uniform(0, pause)
        assert running.returncode == 0
        again += 1
    print(f"killed: {killed} in {again} runs")
