"""Errors a person can act on: what is wrong, what to do, and the exit code that says which kind it is."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class SmodiceError(Exception):
    """An expected failure, shown as one sentence (plus an optional hint) instead of a traceback."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # for a traceback


class UsageError(SmodiceError):
    """The command line itself is wrong."""

    exit_code = 2


class InputError(SmodiceError):
    """An input is missing, corrupt, or does not belong to the others."""

    exit_code = 3


class OutputError(SmodiceError):
    """A file cannot be written where it was asked for: no room, no permission, no such place."""

    exit_code = 3


class ConfigError(SmodiceError):
    """A recipe, preset or --set value is unknown or out of range."""

    exit_code = 4


class ForeignFileError(SmodiceError):
    """The target exists and was not written by this tool."""

    exit_code = 5


class DivergedError(SmodiceError):
    """Training produced a non-finite number; the last good checkpoint is kept."""

    exit_code = 6


class Interrupted(SmodiceError):
    """Stopped by the user after a checkpoint was written."""

    exit_code = 130


class OutOfTimeError(SmodiceError):
    """A worker whose time was up: what it did is kept, and its engine starts it again."""

    exit_code = 75


def from_outside(error: BaseException) -> SmodiceError | None:
    """What the machine refused, as an error of ours: memory, a file, a package; None where it is something else."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's is a RuntimeError
        return InputError("there is not enough memory for this", "fewer units, a smaller batch or less data")
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("smodice"):
        package = error.name.partition(".")[0]
        return ConfigError(f"this needs the package {package}, which is not installed", f"pip install {package}")
    if isinstance(error, OSError) and error.errno:
        where = f"{error.filename}: " if error.filename else ""
        return InputError(f"{where}{error.strerror}")
    return None


def nearest(word: str, known: Sequence[str], before: str = "", after: str = "") -> str:
    """A `did you mean` clause for an unknown word, or the known ones where nothing is near; empty without any.

    `before` and `after` are what stands around the word in what the user typed.
    """
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(f'{before}{name}{after}' for name in close)}?"
    return f"known: {', '.join(sorted(known))}" if known else ""
