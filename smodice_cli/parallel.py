"""Processes for simulation: one a core, results in order, a bounded number in flight."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import TypeVar

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def ordered_map(function: Callable[[Task], Answer], tasks: Iterable[Task], workers: int) -> Iterator[Answer]:
    """`map` over processes: lazy, in order, so an endless stream of tasks is fine; one worker means this process."""
    if workers <= 1:
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("spawn")  # forking a process that has run torch or a renderer is unsafe
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts_to_parent)
    source = iter(tasks)
    flying: deque[Future[Answer]] = deque(pool.submit(function, task) for task in islice(source, 2 * workers))
    try:
        while flying:
            answer = flying.popleft().result()
            flying.extend(pool.submit(function, task) for task in islice(source, 1))
            yield answer
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
