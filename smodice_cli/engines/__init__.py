"""Where the orders of a run are done: processes of this machine, a Slurm cluster, a Ray cluster.

To add one: a module with a subclass of `Engine`, and a line in the table. An engine starts the worker of each order
once its needs are done, says what it still has, and can end it; all else is read from the orders' folder.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from smodice_cli import orders
from smodice_cli.console import console
from smodice_cli.errors import ConfigError, InputError, UsageError
from smodice_cli.orders import Order, State
from smodice_cli.registry import Registry

SITE = "SMODICE_SITE"  # names the file of a site's own settings
SITE_FILE = Path("smodice/site.toml")  # below the user's folder of settings, where none is named


class Engine:
    """One place where orders are done; `address` and `settings` are what the user said after --on and --on-set."""

    detached: ClassVar[bool] = False  # it goes on when this process has ended
    here: ClassVar[bool] = False  # it is this machine, and what chains share is made by this process
    every: ClassVar[float] = 0.1  # seconds between two looks
    progress_every: ClassVar[float] = 0.5  # seconds between a worker's reports of progress
    owned: ClassVar[bool] = True  # workers on several machines: no locks, each artifact has one owner
    absent: ClassVar[State] = State("not started")  # an order that it has no longer and that never began

    def __init__(self, address: str, settings: Mapping[str, str]) -> None:
        self.address, self.settings = address, dict(settings)
        self.fail_fast = False  # start nothing more once an order has failed

    def check(self) -> None:
        """Refuse, before anything is submitted, what cannot work."""

    def bound(self, jobs: int) -> None:
        """Do at most so many orders at a time."""
        raise UsageError("--jobs is for --on local: a cluster has limits of its own")

    def submit(self, waiting: Sequence[Order]) -> None:
        """Take orders; what an order needs is among them or done."""
        raise NotImplementedError

    def poll(self, known: Iterable[Order]) -> dict[Path, str]:
        """Which of these orders it still has, by the path of each: queued or running."""
        raise NotImplementedError

    def cancel(self, known: Iterable[Order]) -> None:
        """End these orders, wherever they are; each writes a checkpoint first."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what it holds."""


class Driven(Engine):
    """An engine that needs this process: it starts an order as soon as its needs are done."""

    def __init__(self, address: str, settings: Mapping[str, str]) -> None:
        super().__init__(address, settings)
        self.waiting: dict[Path, Order] = {}
        self.gone: set[Path] = set()  # those that ended in another way

    def submit(self, waiting: Sequence[Order]) -> None:
        self.waiting |= {order.path: order for order in waiting}

    def ready(self) -> list[Order]:
        """The waiting orders whose needs are done; those that need one that failed are dropped."""
        found = []
        for order in list(self.waiting.values()):
            needs = order.needed()
            if needs & self.gone:
                self.gone.add(self.waiting.pop(order.path).path)
            elif not needs & (self.waiting.keys() | self.running()):
                found.append(order)
        return found

    def running(self) -> set[Path]:
        """The orders that were started and have not ended."""
        raise NotImplementedError

    def ended(self, order: Order) -> None:
        """Note how an order ended, for those that need it."""
        if not orders.report(order).done:
            self.gone.add(order.path)
            if self.fail_fast:
                self.waiting.clear()

    def poll(self, known: Iterable[Order]) -> dict[Path, str]:
        self.advance()
        return dict.fromkeys(self.waiting, "queued") | dict.fromkeys(self.running(), "running")

    def advance(self) -> None:
        """Take note of what has ended, and start what is ready."""
        raise NotImplementedError

    def cancel(self, known: Iterable[Order]) -> None:
        chosen = {order.path for order in known}
        for path in chosen & self.waiting.keys():
            self.gone.add(self.waiting.pop(path).path)
        self.stop(chosen & self.running())

    def stop(self, paths: Iterable[Path]) -> None:
        """End running orders and wait until each has written its checkpoint."""
        raise NotImplementedError


class Elsewhere(Engine):
    """A driven engine as another process sees it: by the lock of its driver, and by what the workers report."""

    def poll(self, known: Iterable[Order]) -> dict[Path, str]:
        found = {}
        driven = {run: orders.driver(run) for run in {order.run for order in known}}
        for order in known:
            said = orders.report(order)
            if driven[order.run] and (said.kills or not said.starts):  # not one that ended in an earlier command
                found[order.path] = "running" if said.starts else "queued"
        return found

    def cancel(self, known: Iterable[Order]) -> None:
        for order in known:
            if order.host != socket.gethostname():
                raise InputError(f"{order.run} is run from {order.host}: cancel it there")
            if pid := orders.driver(order.run):
                with suppress(ProcessLookupError):  # it has ended
                    _end(pid, order.run)


def _end(pid: int, run: Path) -> None:
    """End the process that drives a run, and wait until it has."""
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        raise InputError(f"{run} is run by process {pid}, which is another user's") from error
    while orders.driver(run) == pid:
        os.kill(pid, 0)
        time.sleep(0.1)


ENGINES: Registry[Callable[[str, Mapping[str, str]], Engine]] = Registry(
    "engine",
    {
        "local": "smodice_cli.engines.local:Local",
        "slurm": "smodice_cli.engines.slurm:Slurm",
        "ray": "smodice_cli.engines.ray:Ray",
    },
)


def find(text: str, assignments: Sequence[str] = ()) -> Engine:
    """The engine that `slurm:PARTITION` names, with a site's settings and those after --on-set."""
    name, _, address = text.partition(":")
    ENGINES.check(name, "--on", UsageError)
    chosen = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--on-set {assignment}: expected KEY=VALUE, e.g. time=1:00:00")
        chosen[key.strip()] = value.strip()
    return ENGINES[name](address, site(name) | chosen)


def of_orders(given: Iterable[Order]) -> list[tuple[Engine, list[Order]]]:
    """The engines that were given these orders, as another process sees them, and the orders of each."""
    by_name: dict[str, list[Order]] = {}
    for order in given:
        if order.on.partition(":")[0] in ENGINES:
            by_name.setdefault(order.on, []).append(order)
        else:
            console.warn(f"{order.path}: there is no engine '{order.on}': left out")
    found = [(find(name), own) for name, own in by_name.items()]
    return [(Elsewhere("", {}) if isinstance(engine, Driven) else engine, own) for engine, own in found]


def site(name: str) -> dict[str, str]:
    """The site's own settings of an engine: its section of the site file, if there is one."""
    named = os.environ.get(SITE, "")
    usual = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / SITE_FILE
    path = Path(named) if named else usual
    if not path.is_file():
        if named:
            raise InputError(f"{SITE} names {path}, which does not exist")
        return {}
    try:
        found: Any = tomllib.loads(path.read_text()).get(name, {})
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str | int) for value in found.values()):
        raise ConfigError(f"{path}: [{name}] must be a section of texts and numbers")
    return {key: str(value) for key, value in found.items()}
