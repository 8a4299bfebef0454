"""local: processes of this machine, one a chain, as many at a time as there are cores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from smodice_cli import orders
from smodice_cli.engines import Driven
from smodice_cli.errors import UsageError
from smodice_cli.orders import Order
from smodice_cli.parallel import cores


class Local(Driven):
    """A pool of worker processes."""

    here = True
    owned = False  # another command may work in the same folder: on one machine locks are sure

    def __init__(self, address: str, settings: Mapping[str, str]) -> None:
        super().__init__(address, settings)
        self.jobs = cores()
        self.processes: dict[Path, tuple[Order, subprocess.Popen[bytes]]] = {}

    def bound(self, jobs: int) -> None:
        self.jobs = jobs

    def check(self) -> None:
        if self.address or self.settings:
            raise UsageError("--on local has no address and no settings", "--jobs N bounds its processes")

    def running(self) -> set[Path]:
        return set(self.processes)

    def advance(self) -> None:
        for path, (order, process) in list(self.processes.items()):
            if process.poll() is not None:
                del self.processes[path]
                self.ended(order)
        for order in self.ready()[: max(0, self.jobs - len(self.processes))]:
            del self.waiting[order.path]
            with open(order.events, "ab") as events:
                self.processes[order.path] = (order, start(order, events.fileno()))

    def stop(self, paths: Iterable[Path]) -> None:
        processes = [self.processes[path][1] for path in paths]
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def start(order: Order, events: int) -> subprocess.Popen[bytes]:
    """A worker that ends when this process does, by the pipe that is its standard input."""
    return subprocess.Popen(
        [sys.executable, *orders.command(Local.progress_every, attached=True), str(order.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=events,
        start_new_session=True,  # Ctrl-C reaches only us; we pass it on once
    )
