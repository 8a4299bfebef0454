"""The only module that prints. Data goes to stdout, everything else to stderr.

Modes: `human` (tables, progress bars; plain lines when stderr is no terminal), `json` (results as JSON on stdout),
`events` (one JSON object a line on stderr: how `smodice run` hears from its workers) and `library` (nothing but Python
warnings, for programs that import us). `quiet` leaves JSON and errors.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from smodice_cli.errors import OutputError

EVENT_EVERY = 0.5  # seconds between events of progress
PLAIN_EVERY = 10.0  # seconds between progress lines when there is no terminal
BROKEN_PIPE = 141  # what a shell shows of a program whose reader has left
PLAIN_WIDTH = 200  # columns of a table that goes to a file or a pipe
WIDE = 110  # columns of a terminal with room for long labels and bars
WORDS = re.compile(r"(?!(none|flat|infinite|undefined|nan|inf|True|False)\b)[A-Za-z/.*_▁-█]")  # how no figure begins


class SmodiceWarning(UserWarning):
    """Something to look at, told to a program that imports us."""


class Progress:
    """How far something is; this one shows it to nobody."""

    waits = True  # before it says something for the first time

    def __init__(self, label: str = "", total: int = 0, start: int = 0, unit: str = "it") -> None:
        self.label, self.total, self.start, self.unit = label, total, start, unit
        self.began = time.monotonic()
        self.last = self.began if self.waits else 0.0  # when something was said

    def update(self, done: int, **figures: float) -> None:
        pass

    def rate(self, done: int) -> float:
        """What was done in a second, since the start."""
        return (done - self.start) / max(time.monotonic() - self.began, 1e-9)

    def is_due(self, done: int, seconds: float) -> bool:
        """Whether to say something again: after some seconds, and in the end."""
        now = time.monotonic()
        due = now - self.last > seconds or done == self.total
        self.last = now if due else self.last
        return due


class Console:
    """One output sink for the whole process."""

    def __init__(self) -> None:
        self.mode = "human"
        self.quiet = self.debug = False
        self.event_every = EVENT_EVERY

    # results and messages

    def result(self, data: Mapping[str, Any], lines: Sequence[str] = ()) -> None:
        """What the command was asked for: JSON in json mode, otherwise the human lines."""
        if self.mode == "json":
            sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")
        elif self.mode == "human" and not self.quiet:
            for line in lines:
                self._rich(stderr=False).print(visible(line), highlight=False, soft_wrap=True)

    def say(self, lines: Sequence[str]) -> None:
        """Lines with markup on stdout (human mode only), between tables say."""
        if self.mode == "human" and not self.quiet:
            self.result({}, lines)

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        text: Sequence[str] = (),
        whole: Sequence[str] = (),
    ) -> None:
        """A table on stdout (human mode only; json callers use `result`).

        The first column, those in `text` and those with a cell of words are left-aligned; names in `whole` never wrap.
        """
        if self.mode != "human" or self.quiet:
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
        for index, column in enumerate(columns):
            left = index == 0 or column in text or any(WORDS.match(row[index]) for row in rows)
            justify: Any = "left" if left else "right"
            table.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)
        for row in rows:
            table.add_row(*(Text(visible(cell)) for cell in row))
        shown = self._rich(stderr=False)
        if title:
            shown.print(Text(visible(title), "italic"), soft_wrap=True)
        shown.print(table)

    def note(self, text: str) -> None:
        """Something worth knowing, on stderr."""
        self.message("note", text)

    def warn(self, text: str) -> None:
        """Something to look at, on stderr."""
        self.message("warning", text, "[yellow]warning:[/] ")

    def error(self, text: str, hint: str = "") -> None:
        """The one sentence a failed command ends with."""
        if self.mode == "events":
            self.event(kind="error", text=text, hint=hint)
            return
        console = self._rich(stderr=True)
        console.print(f"[bold red]error:[/] {escape(one_line(text))}", highlight=False, soft_wrap=True)
        if hint:
            console.print(f"[dim]hint:[/] {escape(one_line(hint))}", highlight=False, soft_wrap=True)

    def traceback(self) -> None:
        """The traceback of the exception being handled (`--debug`)."""
        traceback.print_exc(file=sys.stderr)

    def event(self, **fields: Any) -> None:
        """A machine-readable line for the parent process; one that has gone wants no more work."""
        sys.stderr.write(json.dumps(fields) + "\n")
        sys.stderr.flush()
        if isinstance(sys.stderr, _Messages) and sys.stderr.lost:
            signal.raise_signal(signal.SIGTERM)

    def message(self, kind: str, text: str, label: str = "") -> None:
        """A line on stderr, or an event of this kind."""
        if self.quiet:
            return
        if self.mode == "events":
            self.event(kind=kind, text=text)
        elif self.mode == "library":
            if kind == "warning":
                warnings.warn(text, SmodiceWarning, stacklevel=_depth_of_ours())
        else:
            self._rich(stderr=True).print(label + escape(one_line(text)), highlight=False, soft_wrap=True)

    # progress

    @contextmanager
    def progress(self, label: str, total: int, start: int = 0, unit: str = "it") -> Iterator[Progress]:
        """A bar on a terminal, a line every few seconds elsewhere; a total of 0 means that it is not known."""
        if self.quiet or self.mode == "library":
            yield Progress()
        elif self.mode == "events":
            yield _Events(label, total, start)
        elif not sys.stderr.isatty():
            yield _Lines(label, total, start, unit)
        else:
            with self.bars() as bars:
                yield Bar(bars, label, total, start, unit)

    def bars(self) -> Any:
        """Rich's progress bars, several at once, with rate, time left and live figures, which get what room is left."""
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        shown = self._rich(stderr=True)
        narrow = shown.width < WIDE
        label = Column(no_wrap=True, overflow="ellipsis", min_width=13, max_width=22 if narrow else 34)
        rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        return RichProgress(
            TextColumn("{task.description}", markup=False, table_column=label),
            BarColumn(bar_width=12 if narrow else 24),
            TaskProgressColumn("{task.percentage:>3.0f}%", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[rate]:>12}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[figures]}", style="dim", markup=False, table_column=rest),
            console=shown,
            expand=True,
        )

    def width(self) -> int:
        """The columns of what results are printed on."""
        return self._rich(stderr=False).width

    def _rich(self, stderr: bool) -> Any:
        from rich.console import Console as Rich

        shown = sys.stderr if stderr else sys.stdout
        wide = None if shown.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
        return Rich(stderr=stderr, width=wide, emoji=False)  # a path may hold :a:


class _Events(Progress):
    waits = False

    def update(self, done: int, **figures: float) -> None:
        if self.is_due(done, console.event_every):
            told = {"label": self.label, "start": self.start, "done": done, "total": self.total}
            console.event(kind="progress", **told, figures=figures)


class _Lines(Progress):
    def update(self, done: int, **figures: float) -> None:
        if not self.is_due(done, PLAIN_EVERY):
            return
        rate = self.rate(done)
        left = max(self.total - done, 0) / max(rate, 1e-9)
        whole, rest = (f"/{self.total:,}", f"  {left:4.0f} s left") if self.total else ("", "")
        far = f"{whole}  {_quantity(rate):>6} {self.unit}/s{rest}"
        console.message("progress", f"{self.label:<13} {done:>8,}{far}  {in_words(figures)}".rstrip())


class Bar(Progress):
    """A row of `Console.bars`."""

    def __init__(self, bars: Any, label: str, total: int, start: int = 0, unit: str = "it") -> None:
        super().__init__(label, total, start, unit)
        self.bars, self.task = bars, bars.add_task(label, total=total or None, completed=start, rate="", figures="")

    def update(self, done: int, **figures: float) -> None:
        rate = f"{_quantity(self.rate(done))} {self.unit}/s"
        self.bars.update(self.task, completed=done, rate=rate, figures=in_words(figures))

    def switch(self, label: str, total: int, done: int, figures: Mapping[str, float]) -> None:
        """Show another stage in the same row."""
        if label != self.label:
            self.label, self.start, self.began = label, done, time.monotonic()
            self.bars.reset(self.task, total=total or None, completed=done, description=label)
        self.update(done, **figures)


def _depth_of_ours() -> int:
    """How many frames of ours lie below the program that called us: a warning is about a line of its own."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("smodice", "smodice_cli"):
        frame, depth = frame.f_back, depth + 1
    return depth


def _quantity(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def in_words(figures: Mapping[str, float]) -> str:
    """Live figures in one line."""
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


def visible(text: str) -> str:
    """Text without control characters, which would act on the terminal: they are shown as \\x1b and the like."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Visible text in a single line."""
    return visible(text).replace("\n", " ")


def escape(text: str) -> str:
    """Text that is shown as it is, brackets and all."""
    from rich.markup import escape as rich_escape

    return rich_escape(text)


# --- streams that fail ----------------------------------------------------------------------------------------------


class _Messages:
    """stderr, whose reader may leave: what is written after that goes nowhere, and the work goes on."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.lost = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            self.lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self.lose(error)

    def lose(self, error: OSError) -> None:
        self.lost = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


class _Results(_Messages):
    """stdout, whose reader may leave too: that ends the command, as a shell expects; so does a full disk."""

    def lose(self, error: OSError) -> None:
        super().lose(error)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(BROKEN_PIPE) from error
        console.error(f"cannot write to the standard output: {error.strerror}")
        raise SystemExit(OutputError.exit_code) from error


def guard_streams() -> None:
    """Give the process streams that fail well, and write characters that they do not know as escapes."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.stdout, sys.stderr = _Results(sys.stdout), _Messages(sys.stderr)  # type: ignore[assignment]


console = Console()
