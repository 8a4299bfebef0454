"""Many commands in one process: a process for each would take most of the time."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torture.processes import HANG, MEMORY, Outcome, clock, finish, patience, problems, start
from torture.world import World

DIVERGED = 6  # what was trained before stays


def invoke(words: list[str]) -> Outcome:
    """One command, in this process."""
    import typer.testing

    from smodice_cli.commands import app

    result = typer.testing.CliRunner().invoke(app, words, prog_name="smodice")
    failed = result.exception is not None and not isinstance(result.exception, SystemExit)
    return Outcome(result.exit_code, f"Traceback: {result.exception!r}" if failed else result.stderr)


@dataclass(frozen=True)
class Case:
    """One try: how to prepare the folder, what to do there, and what must hold if that succeeds."""

    words: list[str]
    prepare: Callable[[Path], None]
    judge: Callable[[Path], str] | None = None
    do: Callable[[list[str]], Outcome] = invoke


def in_batches(world: World, what: str, cases: Iterable[Case], size: int) -> None:
    """Run cases in forked processes, so many in each; one that ends its process is noted, and the others go on."""
    left: Iterator[Case] = iter(cases)
    while batch := list(islice(left, size)):
        while batch:
            done = _batch(world, batch)
            for wrong in done:
                world.note(what, wrong)
            if len(done) < len(batch):
                world.note(what, f"it hangs, or ends the process: {batch[len(done)].words}")
            batch = batch[len(done) + 1 :]


def _batch(world: World, batch: list[Case]) -> list[str]:
    place = world.copy(all_of_it=True)
    log = place.parent / "log"
    log.touch()
    pid, said = start(place, lambda: _attempts(place, log, batch))
    watch = os.pidfd_open(pid)
    last = (0, time.monotonic())
    while not select.select([watch], [], [], 0.5)[0]:
        lines = log.read_text().count("\n")
        last = (lines, clock(pid)) if lines != last[0] else last
        if clock(pid) - last[1] > patience():
            os.kill(pid, signal.SIGKILL)
    os.close(watch)
    finish(pid, said, time.monotonic())  # which has ended
    done = [json.loads(line) for line in log.read_text().splitlines()]
    world.gone(place)
    return done


def _attempts(place: Path, log: Path, batch: list[Case]) -> None:
    whole = {path.name for path in place.iterdir()}
    with open(log, "a", buffering=1) as out:
        for case in batch:
            case.prepare(place)
            traps = {path.name for path in place.iterdir()}
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            began = time.process_time()
            outcome = case.do(case.words)
            outcome.hung = time.process_time() - began > HANG
            grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            wrong = problems(outcome)
            if grown > MEMORY:
                wrong = wrong or f"it took {grown >> 20} MB"
            if outcome.code == 0 and case.judge is not None:
                wrong = wrong or case.judge(place)
            new = [path.name for path in place.iterdir() if path.name not in traps]
            if outcome.code not in (0, DIVERGED) and new:
                wrong = wrong or f"it failed ({outcome.said[-300:]}) and left {new}"
            out.write(json.dumps(wrong and f"{case.words}: {wrong}") + "\n")
            for path in place.iterdir():
                if path.name not in whole:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
