"""slurm: array jobs, by sbatch, squeue and scancel; no Python dependency, no accounting.

A batch is orders of one kind, submitted as one array. RUN/orders/BATCH.list has a line for each of its tasks, and the
job is called smodice-BATCH, so whoever sees the folder finds the jobs again, whatever was killed in between.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from smodice_cli import files, orders
from smodice_cli.engines import Engine
from smodice_cli.errors import InputError, UsageError
from smodice_cli.orders import Order, State

PREFIX = "smodice-"
LARGEST = 1000  # tasks of one array: Slurm's MaxArraySize is 1001 where nobody set another
PATIENCE = 60  # seconds for an answer of Slurm's, and for cancelled jobs to leave
WARNING = 60  # seconds before the time limit at which a worker is told to write its checkpoint
QUEUED = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING")
HELD = "launch failed requeued held"  # a reason: Slurm could not start it, and waits for somebody to let it go
OURS = (
    "array",
    "chdir",
    "dependency",
    "job-name",
    "kill-on-invalid-dep",
    "output",
    "error",
    "parsable",
    "wait",
    "wrap",
)
# SIGUSR1 is the time limit's: SIGTERM comes with scancel, after which nothing must go back into the queue.
SCRIPT = """#!/bin/bash
cd {folder} && [ -r {list} ] || exit 66
exec >>{log} 2>&1 </dev/null
while read -r index order; do [ "$index" = "$SLURM_ARRAY_TASK_ID" ] && break; done <{list}
{setup}
trap : TERM
trap 'kill -USR1 $pid' USR1
{python} {command} --workers "${{SLURM_CPUS_PER_TASK:-1}}" "$order" >/dev/null 2>>"${{order%.json}}.jsonl" &
pid=$!
wait $pid; code=$?
while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
# Out of time, or killed by something else than scancel: the worker itself gives up when that goes on and on.
if [ $code = 75 ] || [ $code -gt 130 ] && [ $code != 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
"""


@dataclass(frozen=True)
class Job:
    """One task of an array in the queue."""

    array: str
    index: int
    batch: str = ""
    state: str = "PENDING"
    reason: str = ""

    @property
    def word(self) -> str:
        return "held" if self.reason == HELD else "queued" if self.state in QUEUED else "running"


Jobs = dict[Path, Job]  # by the path of the order


class Slurm(Engine):
    """A Slurm cluster: `address` is the partition, `settings` are options of sbatch, or a site's setup and python."""

    detached = True
    every = 5.0
    progress_every = 5.0
    absent = State(
        "failed",
        "its job ended before its worker began: unless scancel did that, "
        "the run folder must be on a disk that every node shares",
        "put --out there; orders/slurm.log may say more",
        InputError.exit_code,
    )

    def __init__(self, address: str, settings: Mapping[str, str]) -> None:
        super().__init__(address, settings)
        self.gives = False  # whether this process gives the orders, or only looks
        self.releases: Counter[Path] = Counter()

    def check(self) -> None:
        self.gives = True
        for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo"):
            if not shutil.which(name):
                raise UsageError(f"--on slurm: there is no {name} on this machine", "go to a login node of the cluster")
        if ours := [name for name in self.settings if name in OURS]:
            raise UsageError(f"--on-set {ours[0]}: smodice sets that itself")
        known = call("sinfo", "--noheader", "--format=%R").split()  # and whether the controller answers
        if self.address and self.address not in known:
            raise UsageError(f"--on slurm:{self.address}: no such partition", f"known: {', '.join(sorted(known))}")

    def submit(self, waiting: Sequence[Order]) -> None:
        runs = {order.run for order in waiting}
        self.cancel(waiting)  # what was queued once more although a worker that Slurm had lost has done it meanwhile
        there = jobs(runs)
        for listed in lists_of(runs):
            if listed.stem not in {job.batch for job in there.values()}:
                listed.unlink(missing_ok=True)  # its jobs have ended
        sent: Jobs = {}
        alike: dict[tuple[Path, str], list[Order]] = defaultdict(list)
        for order in waiting:
            alike[order.run, order.group].append(order)
        try:
            for orders_of_group in alike.values():
                for depends, batch in batches(orders_of_group, there | sent):
                    array = self.send(depends, batch)
                    sent |= {order.path: Job(array, index) for index, order in batch.items()}
        except BaseException:
            if sent:
                call("scancel", *sorted({job.array for job in sent.values()}))
            raise

    def send(self, depends: str, batch: Mapping[int, Order]) -> str:
        """Submit orders as one array, by their indices in it; returns its number."""
        code = os.urandom(4).hex()
        listed = next(iter(batch.values())).path.with_name(f"{code}.list")
        with files.atomic(listed) as temporary:
            temporary.write_text("".join(f"{index} {order.path}\n" for index, order in batch.items()))
        script = SCRIPT.format(
            folder=shlex.quote(os.getcwd()),
            list=shlex.quote(str(listed)),
            log=shlex.quote(str(listed.with_name("slurm.log"))),
            setup=self.settings.get("setup", ""),
            python=self.settings.get("python") or shlex.quote(sys.executable),
            command=shlex.join(orders.command(self.progress_every)),
        )
        options = {
            "job-name": PREFIX + code,
            "array": ",".join(map(str, batch)),
            "output": os.devnull,
            "parsable": "",
            "requeue": "",
            "signal": f"B:USR1@{WARNING}",
            "partition": self.address,
            "dependency": depends,
            **{name: value for name, value in self.settings.items() if name not in ("setup", "python")},
        }
        optional = [name for name in ("partition", "dependency") if not options[name]]
        flags = [f"--{name}{'=' * bool(value)}{value}" for name, value in options.items() if name not in optional]
        try:
            return call("sbatch", *flags, *["--kill-on-invalid-dep=yes"] * bool(depends), text=script).split(";")[0]
        except BaseException:
            listed.unlink(missing_ok=True)
            raise

    def poll(self, known: Iterable[Order]) -> dict[Path, str]:
        asked = {order.path: order.run for order in known}
        seen = jobs(set(asked.values()))
        if self.gives:
            self.release({path: job for path, job in seen.items() if job.word == "held"})  # others may wait for it
        return {path: job.word for path, job in seen.items() if path in asked}

    def release(self, held: Jobs) -> None:
        """Let go of what could not be started, a few times; then it must be the nodes."""
        for path, job in held.items():
            self.releases[path] += 1
            words = ("scontrol", "release") if self.releases[path] <= orders.RETRIES else ("scancel",)
            with suppress(InputError):  # it has just gone
                call(*words, f"{job.array}_{job.index}")

    def cancel(self, known: Iterable[Order]) -> None:
        chosen = {order.path for order in known}
        runs = {path.parent.parent for path in chosen}
        arrays: dict[str, list[int]] = defaultdict(list)
        for path, job in jobs(runs).items():
            if path in chosen:
                arrays[job.array].append(job.index)
        for array, indices in arrays.items():
            call("scancel", f"{array}_[{','.join(map(str, sorted(indices)))}]")
        end = time.monotonic() + PATIENCE
        while chosen & jobs(runs).keys() and time.monotonic() < end:
            time.sleep(1)


def lists_of(runs: Iterable[Path]) -> list[Path]:
    """The lists of all batches of these runs."""
    return [path for run in runs for path in (run / orders.FOLDER).glob("*.list")]


def jobs(runs: Iterable[Path]) -> Jobs:
    """The tasks in the queue that do orders of these runs."""
    lists = {path.stem: path for path in lists_of(runs)}
    found: Jobs = {}
    if not lists:
        return found
    told = call("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%j|%F|%K|%T|%r")
    rows = [line.strip().rsplit("|", 4) for line in told.splitlines()]
    places: dict[str, dict[str, Path]] = {}
    for name, array, index, state, reason in rows:
        code = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and code in lists:
            if code not in places:
                lines = [line.partition(" ") for line in files.read_text(lists[code]).splitlines()]
                places[code] = {number: lists[code].parent / Path(path).name for number, _, path in lines}
            if index.isdecimal() and index in places[code]:
                found[places[code][index]] = Job(array, int(index), code, state, reason)
    return found


def batches(alike: Sequence[Order], there: Jobs) -> Iterator[tuple[str, dict[int, Order]]]:
    """Orders of one kind as arrays, each with what it depends on: a job that all need, or one for each of its tasks."""
    needs = [{there[path] for path in order.needed() if path in there} for order in alike]
    common = set.intersection(*needs)
    found: dict[tuple[str, int], dict[int, Order]] = defaultdict(dict)
    for position, (order, own) in enumerate(zip(alike, needs, strict=True)):
        if own - common:
            (job,) = own - common
            found[job.array, 0][job.index] = order  # aftercorr: a task waits for the other array's of the same index
        else:
            found["", position // LARGEST][position % LARGEST] = order
    for (array, _), batch in found.items():
        depends = [f"afterok:{job.array}_{job.index}" for job in common] + [f"aftercorr:{array}"] * bool(array)
        yield ",".join(sorted(depends)), batch


def call(program: str, *words: str, text: str = "") -> str:
    """What one of Slurm's programs answers; its first complaint where it fails."""
    try:
        done = subprocess.run([program, *words], input=text, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{program} does not answer: {files.first_line(error)}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise InputError(f"{program}: {said[0].removeprefix(f'{program}: ').removeprefix('error: ')}")
    return done.stdout.strip()
