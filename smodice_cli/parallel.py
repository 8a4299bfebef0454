"""Processes for simulation: one a core, results in order, a bounded number in flight; or one beside other work."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

from smodice_cli import interrupts

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def ordered_map(
    function: Callable[[Task], Answer], tasks: Iterable[Task], workers: int
) -> Generator[Answer, None, None]:
    """`map` over processes: lazy, in order, so an endless stream of tasks is fine; one worker means this process."""
    if workers <= 1:
        yield from map(function, tasks)
        return
    pool = _pool(workers)
    source = iter(tasks)
    flying: deque[Future[Answer]] = deque()

    def submit(count: int) -> None:
        with _interrupts_held():
            flying.extend(pool.submit(function, task) for task in islice(source, count))

    try:
        submit(2 * workers)
        while flying:
            answer = flying.popleft().result()
            submit(1)
            yield answer
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Beside:
    """One process that does tasks while this one does something else; it starts with the first of them.

    For work that would be done later anyway: whatever goes wrong here is met again, and told, there.
    """

    def __init__(self) -> None:
        self.pool: ProcessPoolExecutor | None = None
        self.futures: dict[Any, Future[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def add(self, tasks: Mapping[Any, partial[Any]]) -> None:
        """Do these too, each known by its key."""
        from concurrent.futures import BrokenExecutor

        with _interrupts_held(), suppress(BrokenExecutor):
            self.pool = self.pool or _pool(1)
            self.futures |= {key: self.pool.submit(task) for key, task in tasks.items()}

    def finish(self) -> dict[Any, Any]:
        """Stop after the task under way; returns what was done, by key."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
        ended = {key: future for key, future in self.futures.items() if future.done() and not future.cancelled()}
        self.pool, self.futures = None, {}
        return {key: future.result() for key, future in ended.items() if future.exception() is None}


def _pool(workers: int) -> ProcessPoolExecutor:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")  # forking a process that has run torch or a renderer is unsafe
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_die_with_parent)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold interrupts back for a moment: one inside the pool's own locks would leave them taken for ever.

    Processes started meanwhile inherit the mask and never see Ctrl-C. The mask alone does not protect this process: the
    pool's threads may receive the signal, and Python then runs the handler here.
    """
    with interrupts.held():
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _die_with_parent() -> None:
    """End a worker whose parent was killed, which its queue would never tell it."""
    import multiprocessing

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
