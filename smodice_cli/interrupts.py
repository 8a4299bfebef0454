"""Ctrl-C and SIGTERM: one clean end with code 130, whenever they come."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CODE = 130
AGAIN = 0.05  # seconds until the next try where an interrupt would do damage


def leave_at_once() -> None:
    """Before any work has begun there is nothing to end: an interrupt leaves with a word."""
    _install(_leave)


def ignore() -> None:
    """After all work is done there is nothing to interrupt."""
    _install(signal.SIG_IGN)


@contextmanager
def raised() -> Iterator[None]:
    """While there is work, an interrupt is a KeyboardInterrupt, raised where it neither harms nor is swallowed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    _install(_raise, signal.SIGALRM)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _install(handler: signal._HANDLER, *more: signal.Signals) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, *more):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts what runs in its background
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(CODE)


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise, but not inside an import (torch's aborts the process) or a finaliser (which swallows it): then later."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name == "__del__":
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
