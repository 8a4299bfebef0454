"""Ctrl-C and SIGTERM: one clean end with code 130, whenever they come; SIGUSR1 is the same for lack of time."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CODE = 130
AGAIN = 0.05  # seconds until the next try where an interrupt would do damage, or was lost
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
requested = False  # whether an interrupt came while there was work
out_of_time = False  # whether it was SIGUSR1: a time limit is near, and the work is to go on in another process


def leave_at_once() -> None:
    """Before any work has begun there is nothing to end: an interrupt leaves with a word."""
    _install(_leave)


def ignore() -> None:
    """After all work is done there is nothing to interrupt."""
    _install(signal.SIG_IGN)


def end_with_input() -> None:
    """End when whoever holds the other end of our standard input has gone."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def raised() -> Iterator[None]:
    """While there is work, an interrupt is a KeyboardInterrupt, raised where it does no harm, until it is obeyed."""
    global requested
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with kept():
        hook, requested = sys.unraisablehook, False
        sys.unraisablehook = lambda what: None if what.exc_type is KeyboardInterrupt else hook(what)  # it comes again
        _install(_raise, signal.SIGALRM, signal.SIGUSR1)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = hook


@contextmanager
def kept() -> Iterator[None]:
    """Put back in the end what is done about signals now: a library may put its own ways in the place of ours."""
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Hold interrupts back for a moment, where one would leave a lock taken for ever; they come right after."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    numbers = [number for number in (*SIGNALS, signal.SIGALRM) if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, lambda number, frame: caught.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])


def _install(handler: signal._HANDLER, *more: signal.Signals) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, *more):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts what runs in its background
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(CODE)


def note(number: int) -> None:
    """Remember that it was for lack of time."""
    global out_of_time
    out_of_time = out_of_time or number == signal.SIGUSR1


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise, but not inside an import (torch's aborts the process) or a finaliser: then later.

    And again, as long as nobody deals with it: Python drops what is raised in a callback of a weak reference, a library
    what its `except:` catches.
    """
    global requested
    note(number)
    requested = True
    signal.setitimer(signal.ITIMER_REAL, AGAIN)
    if not _is_handled() and not _does_harm(frame):
        raise KeyboardInterrupt


def _is_handled() -> bool:
    """Whether what we raised is on its way: something cleans up after it, a generator's end too, or tells it."""
    error = sys.exception()
    while error is not None and not isinstance(error, KeyboardInterrupt | GeneratorExit):
        error = error.__context__
    return error is not None


def _does_harm(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
