"""Power cuts: what is surely on the disk after every fsync and rename."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from torture.processes import tried
from torture.world import World, command


def power_cuts(world: World, stage: str) -> None:
    """Record what a stage writes, syncs and renames, and look at the disk as a cut after any of it may leave it.

    A name that was renamed is taken both for gone and for there as long as its folder was not synced, and a file to
    hold what it held at its last sync.
    """
    from smodice_cli import artifacts
    from smodice_cli.errors import InputError

    place = world.copy()
    tried(place, command(stage), _record)
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
                    world.note("power cuts", wrong)
    if not durable:
        world.note("power cuts", f"{stage}: nothing was made durable")
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
