"""ray: one remote task an order, on a Ray cluster or a local one (the extra [ray]); this process drives it."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from smodice_cli import files, interrupts, orders
from smodice_cli.engines import Driven
from smodice_cli.errors import InputError, UsageError
from smodice_cli.orders import Order
from smodice_cli.registry import PLUGINS

PATIENCE = 10  # seconds for the cluster to answer
KEPT = (PLUGINS, "D4RL_DATASET_DIR", "MINARI_DATASETS_PATH", "PYTHONPATH")  # of the driver's environment
NUMBERS = ("num_cpus", "num_gpus", "memory", "max_retries")  # what --on-set may say of a task


class Ray(Driven):
    """A Ray cluster: `address` is that of its head (or auto); without one it is started here and ends with the run."""

    every = 1.0
    progress_every = 5.0

    def __init__(self, address: str, settings: Mapping[str, str]) -> None:
        super().__init__(address, settings)
        self.tasks: dict[Path, tuple[Order, Any]] = {}
        self.options: dict[str, Any] = {"num_cpus": 1, "max_retries": -1}  # the worker itself gives up

    def check(self) -> None:
        if not importlib.util.find_spec("ray"):
            raise UsageError("--on ray: Ray is not installed", "pip install 'smodice[ray]'")
        for name, value in self.settings.items():
            if name not in NUMBERS or not value.replace(".", "", 1).isdecimal():
                raise UsageError(f"--on-set {name}={value}: Ray takes {', '.join(NUMBERS)}, as numbers")
            self.options[name] = float(value) if "." in value else int(value)
        self._connect()

    def _connect(self) -> None:
        import ray

        host, _, port = self.address.rpartition(":")
        if host and port.isdecimal():
            try:
                socket.create_connection((host.removeprefix("ray://"), int(port)), PATIENCE).close()
            except OSError as error:
                raise InputError(f"--on ray:{self.address}: nothing answers there ({error})") from error
        try:
            with interrupts.kept():
                ray.init(self.address or "local", log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"--on ray:{self.address}: {files.first_line(error)}") from error

    def submit(self, waiting: Iterable[Order]) -> None:
        waiting = list(waiting)
        self._check_shared(waiting)
        super().submit(waiting)

    def _check_shared(self, waiting: list[Order]) -> None:
        """Refuse, before anything runs, a run folder that some node does not see."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        look = ray.remote(num_cpus=0)(_sees)
        paths = [str(order.path.resolve()) for order in {order.run: order for order in waiting}.values()]
        asked = []
        for node in ray.nodes():
            if node["Alive"]:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                answer = look.options(scheduling_strategy=there).remote(paths, os.getcwd())
                asked.append((node["NodeManagerHostname"], answer))
        for host, answer in asked:
            with suppress(ray.exceptions.RayError):  # the node has gone: it will do no order
                if not ray.get(answer):
                    raise InputError(
                        f"{waiting[0].run} is not there on {host}: it must be on a disk that every node shares",
                        "put --out there, and start smodice in a folder that every node shares",
                    )

    def running(self) -> set[Path]:
        return set(self.tasks)

    def advance(self) -> None:
        import ray

        references = [reference for _, reference in self.tasks.values()]
        ready = ray.wait(references, num_returns=len(references), timeout=0)[0] if references else []
        for path, (order, reference) in list(self.tasks.items()):
            if reference in ready:
                try:
                    ray.get(reference)
                except ray.exceptions.TaskCancelledError:
                    pass
                except ray.exceptions.RayError as error:
                    if not orders.report(order).starts:  # otherwise what its worker reported, or did not, tells
                        why = files.first_line(getattr(error, "cause", None) or error)
                        orders.mark_failed(order, f"Ray could not start its worker ({why})")
                del self.tasks[path]
                self.ended(order)
        if self.fail_fast and self.gone:
            self.stop([path for path, (order, _) in self.tasks.items() if not orders.report(order).starts])
        begin = ray.remote(_work).options(**self.options, retry_exceptions=[Killed])
        for order in self.ready():
            del self.waiting[order.path]
            self.tasks[order.path] = (order, begin.remote(str(order.path), self._how()))

    def _how(self) -> dict[str, Any]:
        return {
            "command": [sys.executable, *orders.command(self.progress_every, attached=True)],
            "workers": max(1, int(self.options["num_cpus"])),
            "folder": os.getcwd(),
            "environment": {name: os.environ[name] for name in KEPT if name in os.environ},
        }

    def stop(self, paths: Iterable[Path]) -> None:
        import ray

        references = [self.tasks[path][1] for path in paths]
        for reference in references:
            ray.cancel(reference)
        if references:
            ray.wait(references, num_returns=len(references), timeout=60)

    def close(self) -> None:
        if "ray" in sys.modules:
            import ray

            ray.shutdown()


class Killed(Exception):
    """A worker ended by a signal that nobody here sent."""


def _sees(paths: list[str], folder: str) -> bool:
    return os.path.isdir(folder) and all(map(os.path.exists, paths))


def _work(path: str, how: dict[str, Any]) -> None:
    """The task on a node: the worker of an order, which ends with this process; killed by others, it is tried again."""
    with open(Path(how["folder"], path).with_suffix(".jsonl"), "ab") as events:
        process = subprocess.Popen(
            [*how["command"], "--workers", str(how["workers"]), path],
            cwd=how["folder"],
            env=os.environ | how["environment"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=events,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            time.sleep(0.5)  # where Ray's way to cancel a task is heard, which does not end a wait
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode < 0:
        raise Killed(f"signal {-process.returncode}")
