"""The only module that prints. Data goes to stdout, everything else to stderr.

Modes: `human` (tables, progress bars; plain lines when stderr is no terminal), `json` (results as JSON on stdout),
`quiet` (errors only) and `events` (one JSON object a line on stderr: how `smodice run` hears from its workers).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

PLAIN_EVERY = 10.0  # seconds between progress lines when there is no terminal


class Progress(Protocol):
    """Something that shows how far a stage is."""

    def update(self, done: int, **figures: float) -> None: ...


class Console:
    """One output sink for the whole process."""

    def __init__(self) -> None:
        self.mode = "human"

    # results and messages

    def result(self, data: Mapping[str, Any], lines: Sequence[str] = ()) -> None:
        """What the command was asked for: JSON in json mode, otherwise the human lines."""
        if self.mode == "json":
            sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")
        elif self.mode == "human":
            for line in lines:
                self._rich(stderr=False).print(line, highlight=False, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table on stdout (human mode only; json callers use `result`)."""
        if self.mode != "human":
            return
        from rich.table import Table

        table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._rich(stderr=False).print(table)

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
        console.print(f"[bold red]error:[/] {_escape(text)}", highlight=False, soft_wrap=True)
        if hint:
            console.print(f"[dim]hint:[/] {_escape(hint)}", highlight=False, soft_wrap=True)

    def event(self, **fields: Any) -> None:
        """A machine-readable line for the parent process."""
        sys.stderr.write(json.dumps(fields) + "\n")
        sys.stderr.flush()

    def _message(self, kind: str, text: str, style: str) -> None:
        if self.mode == "quiet":
            return
        if self.mode == "events":
            self.event(kind=kind, text=text)
            return
        label = f"[{style}]{kind}:[/] " if style else ""
        self._rich(stderr=True).print(label + _escape(text), highlight=False, soft_wrap=True)

    # progress

    @contextmanager
    def progress(self, label: str, total: int, start: int = 0) -> Iterator[Progress]:
        """A bar on a terminal, a line every few seconds elsewhere."""
        if self.mode == "quiet":
            yield _Silent()
        elif self.mode == "events":
            yield _Events(self, label, total)
        elif not sys.stderr.isatty():
            yield _Lines(self, label, total, start)
        else:
            with _Bars(self._rich(stderr=True)) as bars:
                yield bars.task(label, total, start)

    def bars(self) -> _Bars:
        """Several bars at once, for `smodice run`."""
        return _Bars(self._rich(stderr=True))

    def _rich(self, stderr: bool) -> Any:
        from rich.console import Console as Rich

        return Rich(stderr=stderr)


class _Silent:
    def update(self, done: int, **figures: float) -> None:
        pass


class _Events:
    def __init__(self, console: Console, label: str, total: int) -> None:
        self.console, self.label, self.total, self.last = console, label, total, 0.0

    def update(self, done: int, **figures: float) -> None:
        now = time.monotonic()
        if now - self.last > 0.5 or done >= self.total:
            self.last = now
            self.console.event(kind="progress", label=self.label, done=done, total=self.total, figures=figures)


class _Lines:
    def __init__(self, console: Console, label: str, total: int, start: int) -> None:
        self.console, self.label, self.total, self.start = console, label, total, start
        self.began = self.last = time.monotonic()

    def update(self, done: int, **figures: float) -> None:
        now = time.monotonic()
        if now - self.last < PLAIN_EVERY and done < self.total:
            return
        self.last = now
        rate = (done - self.start) / max(now - self.began, 1e-9)
        left = (self.total - done) / max(rate, 1e-9)
        self.console._message("progress", progress_line(self.label, done, self.total, rate, left, figures), "")


def progress_line(label: str, done: int, total: int, rate: float, left: float, figures: Mapping[str, float]) -> str:
    """One line of progress for logs."""
    shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return f"{label:<13} {done:>8,}/{total:,}  {rate:6.0f} it/s  {left:4.0f} s left  {shown}"


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

    def task(self, label: str, total: int, start: int = 0) -> _Bar:
        return _Bar(self.progress, label, total, start)


class _Bar:
    def __init__(self, progress: Any, label: str, total: int, start: int) -> None:
        self.progress, self.label, self.total, self.start = progress, label, total, start
        self.began = time.monotonic()
        self.task = progress.add_task(label, total=total, completed=start, rate="", figures="")

    def update(self, done: int, **figures: float) -> None:
        rate = (done - self.start) / max(time.monotonic() - self.began, 1e-9)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        self.progress.update(self.task, completed=done, rate=f"{rate:,.0f} it/s", figures=shown)

    def switch(self, label: str, total: int, done: int, figures: Mapping[str, float]) -> None:
        """Show another stage in the same row."""
        if label != self.label:
            self.label, self.start, self.began = label, done, time.monotonic()
            self.progress.reset(self.task, total=total, completed=done)
            self.progress.update(self.task, description=label)
        self.update(done, **figures)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


console = Console()
