"""`python tests/torture`: all of it in pieces, as many at a time as there are cores, and one table in the end.

A piece is a kind of try with a seed of its own, in a process of its own. What each came to is kept in a file, by the
version of the code: a command that was interrupted goes on where it was, and the table is of one version alone.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
from torture.processes import ONE_THREAD  # noqa: E402

RECORD = TESTS.parent / "build/torture.jsonl"
MEMORY_DISK = Path("/dev/shm")  # where a sync costs nothing
QUICK = "quick"
TOLD = "told.json"
NOTHING: dict[str, Any] = {"tried": {}, "wrong": [], "seconds": 0}
PIECES = {  # kind: pieces, and tries in each; none: all that there are, divided
    "operations": (3, None),
    "errors": (3, None),
    "writes": (4, None),
    "limits": (1, None),
    "power": (1, None),
    "random": (4, 275),
    "runs": (2, 30),
    "files": (4, 5050),
    "flags": (2, 2550),
    "calls": (1, 1000),
}
FEW = {"operations": 12, "errors": 6, "writes": 12, "limits": 3, "power": 2, "random": 8, "runs": 0}
FEW |= {"files": 200, "flags": 100, "calls": 50}


# --- one piece ------------------------------------------------------------------------------------------------------


def perform(world: Any, kind: str, part: int, parts: int, count: int | None) -> None:
    """The tries of one kind, or this part of them, or so many."""
    from torture import flags, inputs, kills
    from torture.batches import in_batches
    from torture.power import power_cuts
    from torture.world import STAGES

    several = {"files": (inputs.mutations, "mutated files", 100), "flags": (flags.abuses, "abused flags", 50)}
    several["calls"] = (flags.calls, "abused arguments of Python functions", 50)
    if kind in several:
        cases, what, size = several[kind]
        in_batches(world, what, cases(world, count or 0), size)
        return
    tries: Iterable[Any] = {
        "operations": partial(kills.every_operation, world, kills.kill_at, kills.KILLS),
        "errors": partial(kills.every_operation, world, kills.fail_at, kills.ERRORS),
        "writes": partial(kills.every_write, world),
        "limits": partial(kills.full_disks, world),
        "power": lambda: [partial(power_cuts, world, stage) for stage in STAGES],
        "random": partial(kills.random_kills, world, count or 0),
        "runs": partial(kills.run_kills, world, count or 0),
    }[kind]()
    if isinstance(tries, list):
        random.Random(0).shuffle(tries)  # the same in every part
        tries = islice(tries[part::parts], count)
    for one in tries:
        one()


def piece(kind: str, part: int, seed: int, root: Path) -> None:
    """Do one piece; what comes of it is told in a file, while it is being done too."""
    from torture.processes import warm_up
    from torture.world import World

    began = time.monotonic()
    warm_up()
    world = World(root / "world", seed * 1000 + part)

    def tell(*, whole: bool) -> None:
        told = {"whole": whole, "tried": world.tried, "wrong": world.wrong, "seconds": round(time.monotonic() - began)}
        (root / "new").write_text(json.dumps(told))
        os.replace(root / "new", root / TOLD)

    world.noted = partial(tell, whole=False)
    if kind == QUICK:
        for one, few in FEW.items():
            perform(world, one, 0, 1, few)
    else:
        parts, count = PIECES[kind]
        perform(world, kind, part, parts, count)
    tell(whole=True)


# --- all of them ----------------------------------------------------------------------------------------------------


def version() -> str:
    """Of the code that is tried."""
    whole = hashlib.sha256()
    for path in sorted(path for name in ("smodice", "smodice_cli") for path in (TESTS.parent / name).rglob("*.py")):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def known(record: Path, now: str) -> list[dict[str, Any]]:
    """What pieces came to with this version of the code; of one that was begun twice, the longer."""
    lines = record.read_text().splitlines() if record.exists() else []
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for told in map(json.loads, lines):
        which = told["kind"], told["part"], told["seed"]
        if told["version"] == now and sum(told["tried"].values()) >= sum(
            found.get(which, {"tried": {}})["tried"].values()
        ):
            found[which] = told
    return list(found.values())


def add(record: Path, told: dict[str, Any]) -> None:
    """Keep what a piece came to."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with open(record, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(told) + "\n")


def work_off(waiting: list[tuple[str, int]], jobs: int, seed: int, record: Path, library: Path | None) -> None:
    """Do pieces, each in a process of its own, and say at once what went wrong in each."""
    now, running = version(), {}
    settings = ONE_THREAD | ({"LD_PRELOAD": str(library)} if library else {})
    ending = False

    def end(number: int, frame: object) -> None:
        nonlocal ending
        ending = True
        waiting.clear()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    while waiting or running:
        while waiting and len(running) < jobs:
            kind, part = waiting.pop(0)
            place = tempfile.mkdtemp(prefix="torture.", dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)
            words = ["--piece", kind, "--part", str(part), "--seed", str(seed), "--root", place]
            command = [sys.executable, "-P", str(Path(__file__).parent), *words]
            running[kind, part] = (subprocess.Popen(command, env=os.environ | settings), Path(place))
        for which, (process, root) in list(running.items()):
            if ending:
                process.kill()
                process.wait()
            if process.poll() is None:
                continue
            told = root / TOLD
            found = json.loads(told.read_text()) if told.exists() else {"whole": False, **NOTHING}
            if not found["whole"] and not ending:
                found["wrong"].append(f"{which}: the piece itself failed")
            add(record, {"version": now, "kind": which[0], "part": which[1], "seed": seed, **found})
            print(f"{which[0]} {which[1]}: {sum(found['tried'].values()):,} tries, {found['seconds']} s", flush=True)
            for line in found["wrong"]:
                print(f"  {line}", flush=True)
            shutil.rmtree(root, ignore_errors=True)  # a process of a killed piece may still write there
            del running[which]
        time.sleep(0.5)


def show(found: list[dict[str, Any]]) -> int:
    """One table; returns how much was wrong."""
    tried: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for told in found:
        tried.update(told["tried"])
        wrong.update(next((what for what in told["tried"] if line.startswith(what)), "?") for line in told["wrong"])
    print(f"\n{'tried':>8}  {'wrong':>5}")
    for what in sorted({*tried, *wrong}):
        print(f"{tried[what]:>8,}  {wrong[what]:>5}  {what}")
    kills = sum(count for what, count in tried.items() if what.startswith("SIG"))
    print(f"{kills:,} kills, {sum(tried.values()):,} tries in all, code {version()}")
    return sum(wrong.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(PIECES), metavar="KIND", help=f"of {', '.join(PIECES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="pieces at a time")
    parser.add_argument("--record", type=Path, default=RECORD, help="where it is kept what pieces came to")
    parser.add_argument("--quick", action="store_true", help="a few of every kind")
    for name, kind in (("piece", str), ("part", int), ("root", Path)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.piece:
        piece(given.piece, given.part, given.seed, given.root)
        return
    told = [one for one in known(given.record, version()) if one["whole"] and one["seed"] == given.seed]
    done = {(one["kind"], one["part"]) for one in told}
    asked = [(kind, part) for kind in given.kinds for part in range(PIECES[kind][0])]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "failing.so"
        source = Path(__file__).with_name("failing.c")
        if compiler := shutil.which("cc"):
            subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        waiting = [(QUICK, 0)] if given.quick else [which for which in asked if which not in done]
        work_off(waiting, given.jobs, given.seed, given.record, library if compiler else None)
    sys.exit(1 if show(known(given.record, version())) else 0)


if __name__ == "__main__":
    main()
