"""Kills, and operations that fail: of one process, of several on one folder, of whole runs."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torture.processes import finish, problems, smodice, start, tried
from torture.world import COSTLY, STAGES, World, command

KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ERRORS = (errno.EIO, errno.ENOSPC, errno.ESTALE)
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "fcntl.flock", "shutil.rmtree"}
PRELOADED = "LD_PRELOAD"
Try = Callable[[], None]


# --- at an operation on files ---------------------------------------------------------------------------------------


def at_operation(number: int, act: Callable[[str], None], *, count: bool = False) -> Try:
    """Before `main` starts: do something at the n-th operation on the new files, or count them."""

    def install() -> None:
        here, seen, counting = os.getcwd(), [0], [False]

        def step(event: str) -> None:
            seen[0] += 1
            if count:
                Path("../operations").write_text(str(seen[0]))
            elif seen[0] == number:
                act(event)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event not in OPERATIONS or counting[0]:
                return
            named = arguments and isinstance(arguments[0], str | bytes | os.PathLike)
            place = os.path.abspath(os.fsdecode(arguments[0])) if named else ""
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
    tried(place, command(stage), at_operation(0, lambda _: None, count=True))
    count = int((place.parent / "operations").read_text())
    world.gone(place)
    return count


def kill_at(world: World, stage: str, number: int, sent: signal.Signals) -> None:
    """Kill a stage at its n-th operation, and run it again."""
    place = world.copy()
    outcome = tried(place, command(stage), at_operation(number, lambda _: os.kill(os.getpid(), sent)))
    allowed = {-signal.SIGKILL} if sent == signal.SIGKILL else {0, 130}
    wrong = problems(outcome, allowed) or world.check_again(place, stage)
    what = f"{sent.name} at an operation on files"
    world.note(what, wrong and f"{stage}, at {number}: {wrong}")
    world.gone(place)


def fail_at(world: World, stage: str, number: int, code: int) -> None:
    """Let the n-th operation of a stage fail, and run it again."""

    def fail(event: str) -> None:
        raise OSError(code, os.strerror(code))

    place = world.copy()
    outcome = tried(place, command(stage), at_operation(number, fail))
    wrong = problems(outcome, {0, 3}) or world.check_again(place, stage)
    what = f"{errno.errorcode[code]} from an operation on files"
    world.note(what, wrong and f"{stage}, at {number}: {wrong}")
    world.gone(place)


def every_operation(world: World, act: Callable[..., None], ways: tuple[Any, ...]) -> list[Try]:
    """Each operation of each stage, in each way; of costly stages in one way each."""
    found: list[Try] = []
    for stage in STAGES:
        for number in range(1, operations(world, stage) + 1):
            chosen = ways if stage not in COSTLY else (ways[number % len(ways)],)
            found += [partial(act, world, stage, number, way) for way in chosen]
    return found


# --- at a call that writes, whoever makes it ------------------------------------------------------------------------


def writes(world: World, stage: str) -> int:
    """How many calls write when a stage runs."""
    place = world.copy()

    def arm() -> None:
        library = ctypes.CDLL(None)
        library.torture_arm(0, 0, 0, 0)
        exit = os._exit

        def leave(code: int) -> None:
            count = library.torture_count()
            Path("../writes").write_text(str(count))
            exit(code)

        os._exit = leave  # type: ignore[assignment]

    tried(place, command(stage), arm)
    count = int((place.parent / "writes").read_text())
    world.gone(place)
    return count


def break_write(world: World, stage: str, number: int, how: tuple[str, int, int]) -> None:
    """Kill a stage at its n-th call that writes, or let it fail, once or from there on; and run it again."""
    name, code, stays = how
    sent = signal.SIGKILL if name == "SIGKILL" else 0
    place = world.copy()
    outcome = tried(place, command(stage), lambda: ctypes.CDLL(None).torture_arm(number, code, sent, stays))
    wrong = problems(outcome, {-signal.SIGKILL, 0} if sent else {0, 3}) or world.check_again(place, stage)
    what = f"{name} {'at' if sent else 'from'} a call that writes"
    world.note(what, wrong and f"{stage}, at {number}{', lasting' * stays}: {wrong}")
    world.gone(place)


WRITES = (("SIGKILL", 0, 0), *((errno.errorcode[code], code, code == errno.ENOSPC) for code in ERRORS))


def every_write(world: World) -> list[Try]:
    """Each call of each stage that writes: a kill, and each error."""
    if PRELOADED not in os.environ:
        world.note("writes: not tried, there is no compiler")
        return []
    found: list[Try] = []
    for stage in STAGES:
        for number in range(1, writes(world, stage) + 1):
            chosen = WRITES if stage not in COSTLY else (WRITES[number % len(WRITES)],)
            found += [partial(break_write, world, stage, number, how) for how in chosen]
    return found


def full_disk(world: World, stage: str, size: int) -> None:
    """No file may grow beyond a size: the write that crosses it fails for real."""
    place = world.copy()
    outcome = tried(place, command(stage), lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    wrong = problems(outcome, {0, 3}) or world.check_again(place, stage)
    world.note("a write beyond what a file may hold", wrong and f"{stage}, {size} bytes: {wrong}")
    world.gone(place)


def full_disks(world: World) -> list[Try]:
    return [partial(full_disk, world, stage, size) for stage in STAGES for size in (0, 100, 1000, 3000, 9000)]


# --- at random ------------------------------------------------------------------------------------------------------


def hit(pid: int, sent: signal.Signals, seconds: float) -> None:
    """Send a signal after that time, INT and TERM not before the program is there: until then Python answers."""
    answers = 1 << (signal.SIGTERM - 1)
    while sent != signal.SIGKILL:
        told = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if int(told["SigCgt"], 16) & answers or told["State"].startswith("Z"):
            break
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(pid, sent)


def kill_at_random(world: World, stage: str, sent: signal.Signals, together: int = 1) -> None:
    """Kill one of several processes of a stage after a random time, and run it again."""
    place = world.copy()
    began = time.monotonic()
    running = [start(place, smodice(command(stage))) for _ in range(together)]
    hit(running[0][0], sent, world.rng.uniform(0, 0.5))
    allowed = {0, -signal.SIGKILL} if sent == signal.SIGKILL else {0, 130}
    outcomes = [finish(*one, began) for one in running]
    wrong = problems(outcomes[0], allowed) or next(filter(None, (problems(o, {0}) for o in outcomes[1:])), "")
    wrong = wrong or world.check_again(place, stage)
    among = "" if together == 1 else ", among two or three processes on one folder"
    world.note(f"{sent.name} at random{among}", wrong and f"{stage}: {wrong}")
    world.gone(place)


def random_kills(world: World, count: int) -> Iterator[Try]:
    """Alone as often as among two or three; `export` takes no lock, so it is alone."""
    names = [stage for stage in STAGES if stage not in COSTLY]
    for number in range(count):
        stage = world.rng.choice(names)
        together = world.rng.choice((1, 1, 2, 3)) if stage != "export" else 1
        yield partial(kill_at_random, world, stage, KILLS[number % 3], together)


def kill_run(world: World, sent: signal.Signals) -> None:
    """Kill a run of two seeds, with real processes of its own, and run it again."""
    place = world.copy()
    words = ["run", "recipe.toml", "--seeds", "0,1", "--jobs", "2", "--out", "two", "--checkpoint-every", "0"]
    began = time.monotonic()
    running = start(place, smodice(words))
    hit(running[0], sent, world.rng.uniform(0, 12.0))
    wrong = problems(finish(*running, began, 60), {0, 130, -signal.SIGKILL})
    again = finish(*start(place, smodice(words)), time.monotonic(), 60)
    wrong = wrong or problems(again, {0})
    hidden = [str(path) for path in (place / "two").rglob(".*")]
    scores = json.loads((place / "two" / "summary.json").read_text())["per_seed"] if not wrong else {}
    wrong = wrong or (f"left behind: {hidden}" if hidden else "") or ("" if len(scores) == 2 else "a seed is missing")
    if not wrong:
        found = {str(path.relative_to(place)): digest for path, digest in _digests_below(place / "two")}
        first = world.expected.setdefault("run", found)
        wrong = "" if found == first else f"differs: {found} from {first}"
    world.note(f"{sent.name} of a run of two seeds", wrong)
    world.gone(place)


def _digests_below(folder: Path) -> Iterator[tuple[Path, str]]:
    from smodice_cli import artifacts

    for path in sorted(folder.rglob("*")):
        if path.suffix in (".h5", ".safetensors") or path.name == "eval.json":
            yield path, artifacts.read_any(path).header.digest


def run_kills(world: World, count: int) -> list[Try]:
    return [partial(kill_run, world, KILLS[number % 3]) for number in range(count)]
