"""Processes for simulation: one a core, results in order, a bounded number in flight."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from smodice_cli import interrupts

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
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")  # forking a process that has run torch or a renderer is unsafe
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_die_with_parent)
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
