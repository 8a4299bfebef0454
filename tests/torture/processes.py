"""Processes that something happens to, and how they ended."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ENV = "pointmass-4direction"
HANG = 20.0  # seconds of the processor, or of the clock on a machine that does nothing else, until a try hangs
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # more would wait for each other on a busy machine
MEMORY = 1 << 30  # bytes above the data that a try may take
GOOD_CODES = {0, 2, 3, 4, 5, 6, 130}


@dataclass
class Outcome:
    """How a try ended."""

    code: int  # negative: by this signal
    said: str
    hung: bool = False


def patience(seconds: float = HANG) -> float:
    """The same on this machine as it is now: a try may wait for other processes, which wait for a processor."""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def clock(pid: int) -> float:
    """The time without that which a process spent waiting for a processor itself."""
    with open(f"/proc/{pid}/schedstat") as file:
        return time.monotonic() - int(file.read().split()[1]) / 1e9


def warm_up() -> None:
    """Import everything that a try may need, without starting threads."""
    import gymnasium
    import h5py
    import matplotlib.figure
    import mujoco
    import pyarrow.parquet
    import safetensors.torch
    import scipy.sparse.linalg
    import torch
    import typer.main
    import typer.testing
    import zarr

    import smodice
    import smodice_cli.commands
    import smodice_cli.pipeline
    import smodice_cli.summary
    import smodice_cli.views.report
    from smodice_cli import rollout
    from smodice_cli.views.render import png
    from smodice_cli.views.render.theme import Panel

    torch.set_num_threads(1)
    rollout.environment(ENV).reset(seed=0)
    command = typer.main.get_command(smodice_cli.commands.app)  # made once, not for every try
    typer.main.get_command = typer.testing._get_command = lambda _: command  # type: ignore[attr-defined,assignment]
    for arguments in (["train-disc", "--data", "absent"], ["tabular", "absent"], ["eval", "--policy", "absent"]):
        typer.testing.CliRunner().invoke(smodice_cli.commands.app, arguments)  # what typer imports when it parses
    png.render(Panel("x", "x", "x", lambda figure: figure.add_subplot(), ()), 3, 3, 50, "light")
    assert all((gymnasium, h5py, matplotlib, mujoco, pyarrow, safetensors, scipy, smodice, zarr))
    gc.collect()
    gc.freeze()  # what forks share stays shared


def start(folder: os.PathLike[str], work: Callable[[], Any]) -> tuple[int, int]:
    """Fork a process that works in a folder; returns it with the pipe that its output comes through."""
    said, handle = os.pipe()
    pid = os.fork()
    if pid:
        os.close(handle)
        os.set_blocking(said, False)
        return pid, said
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def finish(pid: int, said: int, began: float, seconds: float = HANG) -> Outcome:
    """Wait for it; one that takes too long is killed."""
    watch = os.pidfd_open(pid)
    while not (ended := bool(select.select([watch], [], [], 1.0)[0])):
        if clock(pid) > began + patience(seconds):
            os.kill(pid, signal.SIGKILL)
            break
    _, status, used = os.wait4(pid, 0)
    os.close(watch)
    try:
        text = os.read(said, 1 << 20).decode(errors="replace")
    except BlockingIOError:  # a process that it started still runs, and nothing was said
        text = ""
    os.close(said)
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return Outcome(code, text, not ended or used.ru_utime + used.ru_stime > seconds)


def smodice(arguments: list[str], before: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """The work of a process that is `smodice ARGUMENTS`."""

    def work() -> None:
        from smodice_cli.__main__ import main

        sys.argv = ["smodice", *arguments]
        before()
        main()

    return work


def tried(folder: os.PathLike[str], arguments: list[str], before: Callable[[], None] = lambda: None) -> Outcome:
    """One command, from beginning to end."""
    began = time.monotonic()
    return finish(*start(folder, smodice(arguments, before)), began)


def problems(outcome: Outcome, allowed: set[int] = GOOD_CODES) -> str:
    """What is wrong with how a command ended, or ''."""
    if outcome.hung:
        return "it hangs"
    if "Traceback" in outcome.said or "internal error" in outcome.said or outcome.code not in allowed:
        return f"code {outcome.code}: {outcome.said[-600:]}"
    return ""
