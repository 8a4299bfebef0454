"""The only module that prints. Data goes to stdout, everything else to stderr.

Modes: `human` (tables, progress bars; plain lines when stderr is no terminal), `json` (results as JSON on stdout) and
`events` (one JSON object a line on stderr: how `smodice run` hears from its workers). `quiet` leaves JSON and errors.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

PLAIN_EVERY = 10.0  # seconds between progress lines when there is no terminal
PLAIN_WIDTH = 200  # columns of a table that goes to a file or a pipe


class Progress(Protocol):
    """Something that shows how far a stage is."""

    def update(self, done: int, **figures: float) -> None: ...


class Console:
    """One output sink for the whole process."""

    def __init__(self) -> None:
        self.mode = "human"
        self.quiet = False

    # results and messages

    def result(self, data: Mapping[str, Any], lines: Sequence[str] = ()) -> None:
        """What the command was asked for: JSON in json mode, otherwise the human lines."""
        if self.mode == "json":
            sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")
        elif self.mode == "human" and not self.quiet:
            for line in lines:
                self._rich(stderr=False).print(line, highlight=False, soft_wrap=True)

    def say(self, lines: Sequence[str]) -> None:
        """Lines with markup on stdout (human mode only), between tables say."""
        if self.mode == "human" and not self.quiet:
            self.result({}, lines)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table on stdout (human mode only; json callers use `result`)."""
        if self.mode != "human" or self.quiet:
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        shown = self._rich(stderr=False)
        if title:
            shown.print(Text(title, "italic"), soft_wrap=True)
        shown.print(table)

    def note(self, text: str) -> None:
        """Something worth knowing, on stderr."""
        self._message("note", text, "")

    def warn(self, text: str) -> None:
        """Something to look at, on stderr."""
        self._message("warning", text, "yellow")

    def error(self, text: str, hint: str = "") -> None:
        """The one sentence a failed command ends with."""
        if self.mode == "events":
            self.event(kind="error", text=text, hint=hint)
            return
        console = self._rich(stderr=True)
        console.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
        if hint:
            console.print(f"[dim]hint:[/] {escape(hint)}", highlight=False, soft_wrap=True)

    def traceback(self) -> None:
        """The traceback of the exception being handled (`--debug`)."""
        traceback.print_exc(file=sys.stderr)

    def event(self, **fields: Any) -> None:
        """A machine-readable line for the parent process."""
        sys.stderr.write(json.dumps(fields) + "\n")
        sys.stderr.flush()

    def _message(self, kind: str, text: str, style: str) -> None:
        if self.quiet:
            return
        if self.mode == "events":
            self.event(kind=kind, text=text)
            return
        label = f"[{style}]{kind}:[/] " if style else ""
        self._rich(stderr=True).print(label + escape(text), highlight=False, soft_wrap=True)

    # progress

    @contextmanager
    def progress(self, label: str, total: int, start: int = 0, unit: str = "it") -> Iterator[Progress]:
        """A bar on a terminal, a line every few seconds elsewhere; a total of 0 means that it is not known."""
        if self.quiet:
            yield _Silent()
        elif self.mode == "events":
            yield _Events(self, label, total)
        elif not sys.stderr.isatty():
            yield _Lines(self, label, total, start, unit)
        else:
            with _Bars(self._rich(stderr=True)) as bars:
                yield bars.task(label, total, start, unit)

    def bars(self) -> _Bars:
        """Several bars at once, for `smodice run`."""
        return _Bars(self._rich(stderr=True))

    def _rich(self, stderr: bool) -> Any:
        from rich.console import Console as Rich

        class Shown(Rich):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError  # rich would end the process as if it had failed

        shown = sys.stderr if stderr else sys.stdout
        wide = None if shown.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
        return Shown(stderr=stderr, width=wide)


class _Silent:
    def update(self, done: int, **figures: float) -> None:
        pass


class _Events:
    def __init__(self, console: Console, label: str, total: int) -> None:
        self.console, self.label, self.total, self.last = console, label, total, 0.0

    def update(self, done: int, **figures: float) -> None:
        now = time.monotonic()
        if now - self.last > 0.5 or done == self.total:
            self.last = now
            self.console.event(kind="progress", label=self.label, done=done, total=self.total, figures=figures)


class _Lines:
    def __init__(self, console: Console, label: str, total: int, start: int, unit: str = "it") -> None:
        self.console, self.label, self.total, self.start, self.unit = console, label, total, start, unit
        self.began = self.last = time.monotonic()

    def update(self, done: int, **figures: float) -> None:
        now = time.monotonic()
        if now - self.last < PLAIN_EVERY and done != self.total:
            return
        self.last = now
        rate = (done - self.start) / max(now - self.began, 1e-9)
        left = max(self.total - done, 0) / max(rate, 1e-9)
        line = progress_line(self.label, done, self.total, rate, left, figures, self.unit)
        self.console._message("progress", line, "")


def progress_line(
    label: str, done: int, total: int, rate: float, left: float, figures: Mapping[str, float], unit: str = "it"
) -> str:
    """One line of progress for logs."""
    shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    far = f"/{total:,}  {rate:6.0f} {unit}/s  {left:4.0f} s left" if total else f"  {rate:6.0f} {unit}/s"
    return f"{label:<13} {done:>8,}{far}  {shown}".rstrip()


class _Bars:
    """Rich progress bars with rate, time left and live figures."""

    def __init__(self, rich_console: Any) -> None:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.progress = RichProgress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[figures]}"),
            console=rich_console,
        )

    def __enter__(self) -> _Bars:
        self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()

    def task(self, label: str, total: int, start: int = 0, unit: str = "it") -> _Bar:
        return _Bar(self.progress, label, total, start, unit)


class _Bar:
    def __init__(self, progress: Any, label: str, total: int, start: int, unit: str = "it") -> None:
        self.progress, self.label, self.total, self.start, self.unit = progress, label, total, start, unit
        self.began = time.monotonic()
        self.task = progress.add_task(label, total=total or None, completed=start, rate="", figures="")

    def update(self, done: int, **figures: float) -> None:
        rate = (done - self.start) / max(time.monotonic() - self.began, 1e-9)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        self.progress.update(self.task, completed=done, rate=f"{rate:,.0f} {self.unit}/s", figures=shown)

    def switch(self, label: str, total: int, done: int, figures: Mapping[str, float]) -> None:
        """Show another stage in the same row."""
        if label != self.label:
            self.label, self.start, self.began = label, done, time.monotonic()
            self.progress.reset(self.task, total=total or None, completed=done)
            self.progress.update(self.task, description=label)
        self.update(done, **figures)


def escape(text: str) -> str:
    """Text that is shown as it is, brackets and all."""
    from rich.markup import escape as rich_escape

    return rich_escape(text)


console = Console()
