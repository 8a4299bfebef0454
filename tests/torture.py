"""The torture harness: kills, failing writes, power cuts, mutated files and abused flags, seeded. `make torture`.

Every try runs in a process forked from this one, which has everything imported, so thousands of them are cheap. After
each kill or failure the same command runs again and must end with the bytes of a run that nothing happened to, and with
nothing left behind. `tests/test_torture.py` is the quick form.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

ENV = "pointmass-4direction"
SMALL = ("--steps", "6", "--set", "hidden=4", "--set", "batch=4")
SCORE = ("--policy", "policy.safetensors", "--threads", "1", "--set", "curve_episodes=0")
LOGGED = ("--offline", "file:log.hdf5", "--expert", "file:log.hdf5#traj=0")
PATIENCE = 20.0  # seconds until a try counts as hanging
MEMORY = 1 << 30  # bytes above the data that a try may take
GOOD_CODES = {0, 2, 3, 4, 5, 6, 130}
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ERRORS = (errno.EIO, errno.ENOSPC, errno.ESTALE)
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "fcntl.flock", "shutil.rmtree"}
STAGES = {  # the command of each, and what it makes
    "build-dataset": (
        f"--env {ENV} --offline sim:{ENV}#60 --expert sim:{ENV}#success=5 --threads 1 --out new.h5",
        "new.h5",
    ),
    "train-disc": (
        f"--data dataset.h5 --checkpoint-every 0 {' '.join(SMALL)} --out new.safetensors",
        "new.safetensors",
    ),
    "train-value": (
        f"--disc disc.safetensors --checkpoint-every 0 {' '.join(SMALL)} --out new.safetensors",
        "new.safetensors",
    ),
    "train-policy": (
        f"--value value.safetensors --checkpoint-every 0 {' '.join(SMALL)} --out new.safetensors",
        "new.safetensors",
    ),
    "eval": ("--policy policy.safetensors --episodes 1 --set curve_episodes=0 --threads 1 --out new.json", "new.json"),
    "tabular": ("example --size 3 --episodes 50 --out new.h5", "new.h5"),
}


# --- processes ------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """How a try ended."""

    code: int  # negative: by this signal
    said: str
    seconds: float = 0.0
    hung: bool = False


@dataclass
class Tally:
    """What was tried, and what went wrong."""

    tried: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, what: str, *problems: str) -> None:
        self.tried[what] += 1
        self.wrong += [f"{what}: {problem}" for problem in problems if problem]


def warm_up() -> None:
    """Import everything that a try may need, without starting threads."""
    import gymnasium
    import h5py
    import matplotlib.figure
    import mujoco
    import safetensors.torch
    import scipy.sparse.linalg
    import torch
    import typer.testing

    import smodice_cli.commands
    import smodice_cli.pipeline
    import smodice_cli.summary
    import smodice_cli.views.report
    from smodice_cli import rollout
    from smodice_cli.views.render import png
    from smodice_cli.views.render.theme import Panel

    torch.set_num_threads(1)
    rollout.environment(ENV).reset(seed=0)
    for arguments in (["train-disc", "--data", "absent"], ["tabular", "absent"], ["eval", "--policy", "absent"]):
        typer.testing.CliRunner().invoke(smodice_cli.commands.app, arguments)  # what typer imports when it parses
    png.render(Panel("x", "x", "x", lambda figure: figure.add_subplot(), ()), 3, 3, 50, "light")
    assert all((gymnasium, h5py, matplotlib, mujoco, safetensors, scipy, smodice_cli))


def start(folder: Path, work: Callable[[], Any]) -> tuple[int, int]:
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


def finish(pid: int, said: int, began: float, patience: float = PATIENCE) -> Outcome:
    """Wait for it; one that takes too long is killed."""
    watch = os.pidfd_open(pid)
    hung = not select.select([watch], [], [], max(0.0, began + patience - time.monotonic()))[0]
    if hung:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(watch)
    try:
        text = os.read(said, 1 << 20).decode(errors="replace")
    except BlockingIOError:  # a process that it started still runs, and nothing was said
        text = ""
    os.close(said)
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return Outcome(code, text, time.monotonic() - began, hung)


def smodice(arguments: list[str], before: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """The work of a process that is `smodice ARGUMENTS`."""

    def work() -> None:
        from smodice_cli.__main__ import main

        sys.argv = ["smodice", *arguments]
        before()
        main()

    return work


def tried(folder: Path, arguments: list[str], before: Callable[[], None] = lambda: None) -> Outcome:
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


# --- a world to break -----------------------------------------------------------------------------------------------


class World:
    """A finished run on tiny data with recordings of every layout, copied for each try."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.rng, self.tally = root, random.Random(seed), Tally()
        self.whole = root / "whole"
        self.whole.mkdir(parents=True)
        data = f"--env {ENV} --offline sim:{ENV}#150 --expert sim:{ENV}#success=5 --threads 1 --out dataset.h5"
        self.must("build-dataset", *data.split())
        self.must("train-disc", "--data", "dataset.h5", *SMALL)
        self.must("train-value", "--disc", "disc.safetensors", *SMALL)
        self.must("train-policy", "--value", "value.safetensors", *SMALL)
        self.must("eval", *SCORE, "--episodes", "2")
        self.must("tabular", *STAGES["tabular"][0].replace("new.h5", "grid.h5").split())
        finish(*start(self.whole, _write_recordings), time.monotonic())
        self.expected: dict[str, dict[str, str]] = {}

    def must(self, *arguments: str) -> None:
        outcome = tried(self.whole, list(arguments))
        assert outcome.code == 0, outcome.said

    def copy(self) -> Path:
        """A fresh copy to work in."""
        place = Path(tempfile.mkdtemp(prefix="try.", dir=self.root)) / "run"
        shutil.copytree(self.whole, place)
        return place

    def gone(self, place: Path) -> None:
        shutil.rmtree(place.parent)

    def wanted(self, stage: str) -> dict[str, str]:
        """What a stage makes when nothing happens to it: the digest of every new file."""
        if stage not in self.expected:
            place = self.copy()
            outcome = tried(place, [stage, *STAGES[stage][0].split()])
            assert outcome.code == 0, outcome.said
            self.expected[stage] = digests(place, set(os.listdir(self.whole)))
            self.gone(place)
        return self.expected[stage]

    def check_again(self, place: Path, stage: str) -> str:
        """Run a stage again after something happened; '' if all is as if nothing had."""
        outcome = tried(place, [stage, *STAGES[stage][0].split()])
        if wrong := problems(outcome, {0}):
            return f"again, {wrong}"
        found = digests(place, set(os.listdir(self.whole)))
        if hidden := [name for name in found if name.startswith(".")]:
            return f"left behind: {hidden}"
        return "" if found == self.wanted(stage) else f"differs: {found} from {self.wanted(stage)}"


def digests(folder: Path, known: set[str]) -> dict[str, str]:
    """Every new file of a folder, hidden ones too, with what tells its content; pictures and logs by their presence."""
    from smodice_cli import artifacts

    found = {}
    for name in sorted(set(os.listdir(folder)) - known):
        artifact = name.endswith((".h5", ".safetensors", ".json")) and not name.startswith(".")
        content = artifacts.read_any(folder / name).header.digest if artifact else "there"
        found[name] = (folder / name).read_text() if name.endswith(".jsonl") else content
    return found


def _write_recordings() -> None:
    import h5py
    import numpy as np
    from recordings import policy_file, write_file, write_minari

    write_file(Path("log.hdf5"), rows=30)
    write_minari(Path("minari.hdf5"), [8, 5, 9])
    with h5py.File("log.hdf5") as file:
        np.savez_compressed("log.npz", **{name: file[name][:] for name in file})
    with h5py.File("counts.hdf5", "w") as file:
        file["initial"], file["expert"] = [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]
        file["counts"] = np.ones((3, 2, 3))
    policy_file(Path("foreign.safetensors"), ENV)
    Path("map.txt").write_text("S..\n.#.\n..G\n")
    names = ("disc", "value", "policy")
    parts = [f"[{name}]\nsteps = 6\nhidden = 4\nbatch = 4\n" for name in names]
    data = f'[dataset]\nenv = "{ENV}"\noffline = ["sim:{ENV}#60"]\nexpert = ["sim:{ENV}#success=5"]\n'
    Path("recipe.toml").write_text(data + "".join(parts) + "[eval]\nepisodes = 1\ncurve_episodes = 0\n")


# --- kills and failing writes ---------------------------------------------------------------------------------------


def at_operation(number: int, act: Callable[[str], None], count: list[int] | None = None) -> Callable[[], None]:
    """Before `main` starts: do something at the n-th operation on files of the current folder, or count them."""

    def install() -> None:
        here, seen = os.getcwd(), [0]

        def step(event: str) -> None:
            seen[0] += 1
            if count is not None:
                Path("../operations").write_text(str(seen[0]))
            elif seen[0] == number:
                act(event)

        counting = [False]

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event not in OPERATIONS or counting[0]:
                return
            path = (
                os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], str | bytes | os.PathLike) else ""
            )
            place = os.path.abspath(path) if path else ""
            if event == "fcntl.flock" or (place.startswith(here + "/") and "/new." in place.replace("/.new", "/new")):
                counting[0] = True
                try:
                    step(event)
                finally:
                    counting[0] = False

        real = os.fsync

        def fsync(handle: int) -> None:
            step("os.fsync")
            real(handle)

        os.fsync = fsync
        sys.addaudithook(hook)

    return install


def operations(world: World, stage: str) -> int:
    """How many operations on files a stage does."""
    place = world.copy()
    tried(place, [stage, *STAGES[stage][0].split()], at_operation(0, lambda _: None, [0]))
    count = int((place.parent / "operations").read_text())
    world.gone(place)
    return count


def kill_at(world: World, stage: str, number: int, sent: signal.Signals) -> None:
    """Kill a stage at its n-th operation, and run it again."""
    place = world.copy()
    outcome = tried(
        place, [stage, *STAGES[stage][0].split()], at_operation(number, lambda _: os.kill(os.getpid(), sent))
    )
    allowed = {-signal.SIGKILL} if sent == signal.SIGKILL else {0, 130}
    wrong = problems(outcome, allowed) or world.check_again(place, stage)
    world.tally.note("kills at an operation", wrong and f"{stage}, {sent.name} at {number}: {wrong}")
    world.gone(place)


def fail_at(world: World, stage: str, number: int, code: int) -> None:
    """Let the n-th operation of a stage fail, and run it again."""

    def fail(event: str) -> None:
        raise OSError(code, os.strerror(code))

    place = world.copy()
    outcome = tried(place, [stage, *STAGES[stage][0].split()], at_operation(number, fail))
    wrong = problems(outcome, {0, 3}) or world.check_again(place, stage)
    world.tally.note("failing operations", wrong and f"{stage}, {errno.errorcode[code]} at {number}: {wrong}")
    world.gone(place)


def full_disk(world: World, stage: str, size: int) -> None:
    """No file may grow beyond a size: the write that crosses it fails for real."""
    place = world.copy()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    outcome = tried(place, [stage, *STAGES[stage][0].split()], limit)
    wrong = problems(outcome, {0, 3}) or world.check_again(place, stage)
    world.tally.note("failing writes", wrong and f"{stage}, {size} bytes: {wrong}")
    world.gone(place)


def kill_at_random(world: World, stage: str, sent: signal.Signals, together: int = 1) -> None:
    """Kill one of several processes of a stage after a random time, and run it again."""
    place = world.copy()
    began = time.monotonic()
    running = [start(place, smodice([stage, *STAGES[stage][0].split()])) for _ in range(together)]
    time.sleep(world.rng.uniform(0, 0.5))
    os.kill(running[0][0], sent)
    allowed = {0, -signal.SIGKILL} if sent == signal.SIGKILL else {0, 130}
    outcomes = [finish(*one, began) for one in running]
    wrong = problems(outcomes[0], allowed) or next(filter(None, (problems(o, {0}) for o in outcomes[1:])), "")
    wrong = wrong or world.check_again(place, stage)
    what = "kills at random" if together == 1 else "kills among several processes"
    world.tally.note(what, wrong and f"{stage}, {sent.name}: {wrong}")
    world.gone(place)


def kill_run(world: World, sent: signal.Signals) -> None:
    """Kill a run of two seeds, with real processes of its own, and run it again."""
    place = world.copy()
    command = ["run", "recipe.toml", "--seeds", "0,1", "--jobs", "2", "--out", "two", "--checkpoint-every", "0"]
    began = time.monotonic()
    running = start(place, smodice(command))
    time.sleep(world.rng.uniform(0, 12.0))
    os.kill(running[0], sent)
    outcome = finish(*running, began, 60)
    wrong = problems(outcome, {0, 130, -signal.SIGKILL})
    began = time.monotonic()
    again = finish(*start(place, smodice(command)), began, 120)
    wrong = wrong or problems(again, {0})
    hidden = [str(path) for path in (place / "two").rglob(".*")]
    scores = json.loads((place / "two" / "summary.json").read_text())["per_seed"] if not wrong else {}
    wrong = wrong or (f"left behind: {hidden}" if hidden else "") or ("" if len(scores) == 2 else "a seed is missing")
    world.tally.note("kills of runs of two seeds", wrong and f"{sent.name}: {wrong}")
    world.gone(place)


# --- power cuts -----------------------------------------------------------------------------------------------------


def power_cuts(world: World, stage: str) -> None:
    """Record what a stage writes, syncs and renames, and look at the disk as a cut after any of it may leave it."""
    from smodice_cli import artifacts
    from smodice_cli.errors import InputError

    place = world.copy()
    tried(place, [stage, *STAGES[stage][0].split()], _record)
    lines = [json.loads(line) for line in (place.parent / "record").read_text().splitlines()]
    synced: dict[int, bytes] = {}  # what surely is on the disk of each file
    now: dict[str, int] = {}  # names as programs see them ...
    durable: dict[str, int] = {}  # ... and as they surely are on the disk
    for number, (what, *rest) in enumerate(lines):
        if what == "sync":
            inode, copy = rest
            synced[inode] = Path(copy).read_bytes()
        elif what == "rename":
            inode, name = rest
            now[name] = inode
        elif what == "folder":
            durable = dict(now)
        for names in (durable, now):
            for name, inode in names.items():
                if name.startswith("new.") and name.endswith((".h5", ".safetensors", ".json")):
                    cut = place.parent / f"cut{Path(name).suffix}"
                    cut.write_bytes(synced.get(inode, b""))
                    try:
                        artifacts.read_any(cut)
                        wrong = ""
                    except InputError as error:
                        wrong = f"{stage}, after {number} operations {name} is torn: {error.message}"
                    world.tally.note("power cuts", wrong)
    if not durable:
        world.tally.note("power cuts", f"{stage}: nothing was made durable")
    world.gone(place)


def _record() -> None:
    """Write down every fsync, with what it makes durable, and every rename."""
    record = open("../record", "a", buffering=1)  # noqa: SIM115
    number = [0]
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(handle: int) -> None:
        fsync(handle)
        path, inode = os.readlink(f"/proc/self/fd/{handle}"), os.fstat(handle).st_ino
        if os.path.isdir(path):
            record.write(json.dumps(["folder"]) + "\n")
            return
        number[0] += 1
        copy = os.path.abspath(f"../synced{number[0]}")
        shutil.copyfile(path, copy)
        record.write(json.dumps(["sync", inode, copy]) + "\n")

    def recorded_replace(source: Any, target: Any) -> None:
        inode = os.stat(source).st_ino
        replace(source, target)
        record.write(json.dumps(["rename", inode, os.path.basename(target)]) + "\n")

    os.fsync, os.replace = recorded_fsync, recorded_replace


# --- many commands in one process -----------------------------------------------------------------------------------


def in_batches(
    world: World, what: str, tries: Iterator[tuple[list[str], Callable[[Path], None], Any]], size: int
) -> None:
    """Run tries (arguments, how to prepare the folder, how to judge success) in forked processes, `size` in each."""
    batch = []
    for one in tries:
        batch.append(one)
        if len(batch) == size:
            _batch(world, what, batch)
            batch = []
    if batch:
        _batch(world, what, batch)


def _batch(world: World, what: str, batch: list[Any]) -> None:
    place = world.copy()
    log = place.parent / "log"
    began = time.monotonic()
    pid, said = start(place, lambda: _attempts(place, log, batch))
    watch = os.pidfd_open(pid)
    last = (0, began)
    while not select.select([watch], [], [], 0.5)[0]:
        lines = log.read_text().count("\n") if log.exists() else 0
        last = (lines, time.monotonic()) if lines != last[0] else last
        if time.monotonic() - last[1] > PATIENCE:
            os.kill(pid, signal.SIGKILL)
    os.close(watch)
    finish(pid, said, time.monotonic())
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for wrong in done:
        world.tally.note(what, wrong)
    if len(done) < len(batch):
        world.tally.note(what, f"it hangs, or ends the process: {batch[len(done)][0]}")
    world.gone(place)


def _attempts(place: Path, log: Path, batch: list[Any]) -> None:
    import typer.main
    import typer.testing

    from smodice_cli.commands import app

    command = typer.main.get_command(app)
    typer.testing._get_command = lambda _: command  # type: ignore[attr-defined]  # made once, not for every try
    whole = {path.name for path in place.iterdir()}
    with open(log, "a", buffering=1) as out:
        for arguments, prepare, judge in batch:
            prepare(place)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            result = typer.testing.CliRunner().invoke(app, arguments, prog_name="smodice")
            grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            wrong = problems(Outcome(result.exit_code, result.stderr))
            if result.exit_code == 1 and result.exception and not wrong:
                wrong = "code 1"
            if grown > MEMORY:
                wrong = wrong or f"it took {grown >> 20} MB"
            if result.exit_code == 0 and judge is not None:
                wrong = wrong or judge(place)
            out.write(json.dumps(wrong and f"{arguments}: {wrong}") + "\n")
            for path in place.iterdir():
                if path.name not in whole:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


# --- mutated files --------------------------------------------------------------------------------------------------

NEW = ("--out", "new.safetensors")
READERS: list[tuple[str, list[str]]] = [  # a file, and a command that reads it
    ("dataset.h5", ["inspect", "dataset.h5"]),
    ("dataset.h5", ["train-disc", "--data", "dataset.h5", *SMALL, *NEW]),
    ("disc.safetensors", ["train-value", "--disc", "disc.safetensors", *SMALL, *NEW]),
    ("disc.safetensors", ["inspect", "disc.safetensors"]),
    ("value.safetensors", ["train-policy", "--value", "value.safetensors", *SMALL, *NEW]),
    ("weights.h5", ["inspect", "weights.h5"]),
    ("policy.safetensors", ["eval", *SCORE, "--episodes", "1", "--out", "new.json"]),
    ("policy.safetensors", ["inspect", "policy.safetensors"]),
    ("eval.json", ["inspect", "eval.json"]),
    ("eval.json", ["status", "."]),
    ("grid.h5", ["inspect", "grid.h5"]),
    ("policy.log.jsonl", ["inspect", "policy.safetensors"]),
]
_DATA = ["build-dataset", "--env", ENV, "--expert", f"sim:{ENV}#success=3", "--threads", "1", "--out", "new.h5"]
FOREIGN: list[tuple[str, list[str]]] = [  # files of others, which nothing seals
    *((name, [*_DATA, "--offline", f"file:{name}"]) for name in ("log.hdf5", "log.npz", "minari.hdf5")),
    ("log.hdf5", ["build-dataset", "--env", "data", "--out", "new.h5", *LOGGED]),
    ("counts.hdf5", ["tabular", "counts.hdf5", "--out", "new.h5"]),
    ("map.txt", ["tabular", "map.txt", "--episodes", "20", "--horizon", "9", "--out", "new.h5"]),
    ("recipe.toml", ["run", "recipe.toml", "--dry-run", "--out", "new"]),
    ("foreign.safetensors", [*_DATA, "--offline", f"sim:{ENV}@foreign.safetensors#20"]),
]  # fmt: skip
STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    10**400,
    "",
    "x" * 5000,
    "\x1b[31m\u202e",
    "../../..",
    "/dev/zero",
    [],
    {},
    [[]],
]


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to four random changes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1) if data else 0
        size = rng.choice((1, 2, 8, 64, 512))
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + size] = rng.randbytes(size)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + size]
        elif kind == 4:
            data[at:at] = data[at : at + size]
        elif kind == 5:
            data[at : at + 8] = rng.choice((0, 1, 255, 2**31 - 1, 2**32, 2**63 - 1, 2**64 - 1)).to_bytes(8, "little")
        else:
            data[at : at + size] = bytes(size)
    return bytes(data)


def mutate_json(value: Any, rng: random.Random) -> Any:
    """The same with one member replaced, removed or nested deep."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {key: inner for key, inner in value.items() if key != name}
        return value | {name: mutate_json(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return [*value[:at], mutate_json(value[at], rng), *value[at + 1 :]]
    return rng.choice(STRANGE)


def mutate_header(path: Path, rng: random.Random) -> None:
    """A made-up header that its digest fits: what somebody might send who knows the format."""
    from dataclasses import asdict

    from safetensors.numpy import save

    from smodice_cli import artifacts

    found = artifacts.read_any(path)
    raw = mutate_json(asdict(found.header), rng)
    try:
        header = artifacts.Header.from_json(json.dumps(raw))
        raw = asdict(header) | {"digest": artifacts.content_digest(header, found.arrays)}
    except Exception:  # no header at all: write it as it is
        pass
    if path.suffix == ".json":
        path.write_text(json.dumps({artifacts.TAG: raw, **found.payload()}))
    elif path.suffix == ".h5":
        import h5py

        with h5py.File(path, "r+", locking=False) as file:
            file.attrs[artifacts.TAG] = json.dumps(raw)
    else:
        path.write_bytes(save(found.arrays, metadata={artifacts.TAG: json.dumps(raw)}))


def mutations(world: World, count: int) -> Iterator[tuple[list[str], Callable[[Path], None], Any]]:
    """Changed files of every kind, with the command that reads them and what must hold if it succeeds."""
    changed: list[str] = []  # by the try before, in the same process
    for number in range(count):
        sealed = number % 2 == 0
        name, arguments = world.rng.choice(READERS if sealed else FOREIGN)
        seed = world.rng.getrandbits(48)
        made_up = sealed and name.endswith((".h5", ".safetensors", ".json")) and world.rng.random() < 0.4
        deep = not made_up and world.rng.random() < 0.02

        def prepare(
            place: Path, name: str = name, seed: int = seed, made_up: bool = made_up, deep: bool = deep
        ) -> None:
            while changed:
                shutil.copyfile(world.whole / changed[-1], place / changed.pop())
            changed.append(name)
            rng = random.Random(seed)
            if made_up:
                mutate_header(place / name, rng)
            elif deep:
                (place / name).write_text(rng.choice(('{"smodice":' + "[" * 9000, "a = " + "[" * 9000, '{"a":' * 9000)))
            else:
                (place / name).write_bytes(mutate_bytes((world.whole / name).read_bytes(), rng))

        unsealed = sealed and not made_up and not name.endswith(".jsonl") and arguments[0] != "status"
        yield (
            arguments,
            prepare,
            (lambda place, name=name: _same(world.whole / name, place / name)) if unsealed else None,
        )


def _same(original: Path, changed: Path) -> str:
    """A changed file that was accepted must hold what it held."""
    from smodice_cli import artifacts

    first, second = artifacts.read_any(original), artifacts.read_any(changed)
    names = ("kind", "stage", "config", "seed", "key", "metrics", "digest")
    same = all(getattr(first.header, name) == getattr(second.header, name) for name in names)
    same = same and {k: v.tobytes() for k, v in first.arrays.items()} == {
        k: v.tobytes() for k, v in second.arrays.items()
    }
    return "" if same else "silently accepted"


# --- abused flags ---------------------------------------------------------------------------------------------------

BASES = [
    ["train-disc", "--data", "dataset.h5", *SMALL, *NEW],
    ["train-value", "--disc", "disc.safetensors", *SMALL, *NEW],
    ["train-policy", "--value", "value.safetensors", *SMALL, *NEW],
    ["eval", *SCORE, "--episodes", "1", "--out", "new.json"],
    [*_DATA, "--offline", "file:log.hdf5"],
    ["tabular", "map.txt", *["--size", "3", "--episodes", "20", "--horizon", "9", "--out", "new.h5"]],
    ["run", "recipe.toml", "--dry-run", "--out", "new"],
    ["select-f", "recipe.toml", "--dry-run", "--out", "new"],
    ["inspect", "weights.h5"],
    ["inspect", "policy.safetensors"],
    ["status", "."],
    ["report", "folder", "--html", "new.html"],
    ["settings"],
    ["envs"],
]
ABUSE = """
-1 0 1 -0.0 1e-300 1e308 1e999 nan -inf 0x10 ½ ٣ gym:: gym: gym:a:b gym:Pendulum-v1 data:0x0 data:9x data sim: file:
# ##= file:#1 meta mps gpu cuda cpu:99 cuda:-1 0:99999999999999999999 -99999999999:1 0,0 1,2, 0:0 /proc/x /dev/full
/dev/null/x /dev/zero loop fifo . .. folder dangling absent/a/b.h5 new.png new.csv new.html new.gif a=b [[ { lr=1e-300
hidden=0 batch=-1 gamma=1.0 steps=0 disc.lr=0.1 x.y.z=1 = a.b= value.f=auto f=kl alpha=1e-300 seed=1 lr=[1,2] lr={a=1}
lr=2020-01-01 env=1 algo=bc kl,chi2 file:fifo file:loop file:minari.hdf5 file:log.npz#steps=7 dataset.h5 weights.h5
eval.json bc smodice,bc
""".split()  # noqa: SIM905 (a list of a hundred lines)
ABUSE += ["", " ", "9" * 5000, "9" * 25, "x" * 300, "x" * 300 + ".safetensors", "é\u202e\x1b[2J", "lr=" + "9" * 400]
ABUSE += [f"sim:{ENV}{what}" for what in ("#5", "-random#states=3", "#traj=999999999999")] + [
    f"file:log.hdf5#{'9' * 5000}"
]
LARGE = {"9" * 25, "1e308", "1e999", "9" * 5000}  # left out where a number asks for that much work
WORK = ("steps", "episodes", "horizon", "size", "threads", "jobs", "top", "checkpoint_every")


def abuses(world: World, count: int) -> Iterator[tuple[list[str], Callable[[Path], None], Any]]:
    """Commands with one to three flags, each of its own or of another, that are given nonsense."""
    import typer.main

    from smodice_cli.commands import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for _ in range(count):
        arguments = list(world.rng.choice(BASES))
        options = [p for p in commands[arguments[0]].params if p.opts[0].startswith("-")]
        options = [option for option in options if option.name not in ("help", "debug")]
        for option in world.rng.sample(options, min(len(options), world.rng.choice((1, 1, 2, 3)))):
            value = world.rng.choice(ABUSE)
            if option.name in WORK and (value in LARGE or value.isdecimal()):
                value = "-1"
            flag = world.rng.choice([*option.opts, *option.secondary_opts])
            arguments += [flag] if option.is_flag else [flag, value]
        if world.rng.random() < 0.1:
            arguments.append(world.rng.choice(ABUSE))
        yield arguments, _traps, None


def _traps(place: Path) -> None:
    """Things that a path may lead to."""
    os.mkfifo(place / "fifo")
    os.symlink("loop", place / "loop")
    os.symlink("nowhere", place / "dangling")
    (place / "folder").mkdir()


# --- all of it ------------------------------------------------------------------------------------------------------


def torture(root: Path, seed: int, kills: int, changed: int, flags: int, runs: int, minutes: float) -> Tally:
    """As many tries of each kind, spread over all stages, or as many as the time allows; returns what came of them."""
    end = time.monotonic() + 60 * minutes
    warm_up()
    world = World(root, seed)
    for attempt in _plan(world, kills, runs):
        if time.monotonic() > end:
            break
        attempt()
    for stage in STAGES if kills else ():
        power_cuts(world, stage)
    in_batches(world, "mutated files", _until(end, mutations(world, changed)), 100)
    in_batches(world, "abused flags", _until(end, abuses(world, flags)), 50)
    return world.tally


def _plan(world: World, kills: int, runs: int) -> Iterator[Callable[[], None]]:
    """Half of the kills at an operation on files, the others failing, at random, among several and of whole runs."""
    counted = {stage: operations(world, stage) for stage in STAGES} if kills else {}
    plan = [(stage, number) for stage, count in counted.items() for number in range(1, count + 1)]
    world.rng.shuffle(plan)
    names, rng = list(STAGES), world.rng
    for number in range(kills):
        stage, operation = plan[number % len(plan)]
        sent = KILLS[(number + number // len(plan)) % 3]
        if number % 8 in (0, 2, 4, 6):
            yield partial(kill_at, world, stage, operation, sent)
        elif number % 8 in (1, 3):
            yield partial(fail_at, world, stage, operation, rng.choice(ERRORS))
        elif number % 8 == 5:
            yield partial(full_disk, world, rng.choice(names), rng.choice((0, 100, 1000, 3000, 9000)))
        else:
            yield partial(kill_at_random, world, rng.choice(names), sent, rng.choice((1, 2, 3)))
    for number in range(runs):
        yield partial(kill_run, world, KILLS[number % 3])


def _until(end: float, tries: Iterator[Any]) -> Iterator[Any]:
    return takewhile(lambda _: time.monotonic() < end, tries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("seed", 0), ("kills", 2200), ("changed", 20000), ("flags", 5000), ("runs", 12)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--minutes", type=float, default=600.0, help="end after this time, whatever is done")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture.") as folder:
        tally = torture(Path(folder) / "world", **vars(given))
    for what, count in tally.tried.items():
        wrong = sum(line.startswith(what) for line in tally.wrong)
        print(f"{count:7,}  {what}: {wrong} wrong")
    for line in tally.wrong:
        print(line, file=sys.stderr)
    print(f"{time.monotonic() - began:.0f} s, seed {given.seed}")
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
