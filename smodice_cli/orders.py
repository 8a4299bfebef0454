"""Orders: what a run has to do, as JSON files in its folder, and what their workers report beside them.

RUN/orders/seed0.json says what to do; whoever does it appends to seed0.jsonl, a JSON event a line (a line that is none
is a library's warning, or a traceback). Any engine starts the same worker on them, and anyone who sees the folder can
tell how far it is.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smodice_cli import containers, files
from smodice_cli.console import console
from smodice_cli.errors import InputError, Interrupted, OutOfTimeError, OutputError, SmodiceError

FOLDER = "orders"
DRIVER = "driver"  # whose lock is held by the process that drives a run on the engines that need one
EVENTS: dict[str, dict[str, type]] = {  # the members of some kinds
    "progress": {"label": str, "done": int, "total": int, "figures": dict},
    "warning": {"text": str},
    "note": {"text": str},
}
LARGEST = 10**15  # of a whole number in a report
RETRIES = 3  # times that an order is begun again at the same place after its worker was killed


@dataclass(frozen=True)
class Order:
    """One piece of work: a dataset, or the stages of a chain. Nobody else makes its artifacts."""

    run: Path  # the folder
    name: str
    label: str  # for people
    group: str  # alike orders, which an engine may submit together
    work: Mapping[str, Any]  # for the worker
    needs: tuple[str, ...] = ()  # the orders of the same run that must be done before
    on: str = "local"
    host: str = field(default_factory=socket.gethostname)  # where it was given

    @property
    def path(self) -> Path:
        return self.run / FOLDER / f"{self.name}.json"

    @property
    def events(self) -> Path:
        """Where its worker reports."""
        return self.path.with_suffix(".jsonl")

    def text(self) -> str:
        members = ("label", "group", "needs", "on", "host", "work")
        return json.dumps({name: getattr(self, name) for name in members}, indent=1, default=str) + "\n"

    def needed(self) -> set[Path]:
        """The paths of the orders that it needs."""
        return {self.path.with_name(f"{name}.json") for name in self.needs}

    def is_like(self, other: Order) -> bool:
        """Whether two orders do the same work."""
        first, second = (json.dumps(order.work, sort_keys=True, default=str) for order in (self, other))
        return first == second

    def write(self) -> None:
        """Put it into its folder, with nothing reported yet."""
        with files.writing(self.path):
            files.make_folder(self.path.parent)
            self.events.write_text("")
        with files.atomic(self.path) as temporary:
            temporary.write_text(self.text())

    def remove(self) -> None:
        """Take it away, with what was reported of it: it is no longer what is to be done."""
        for path in (self.path, self.events):
            path.unlink(missing_ok=True)

    @staticmethod
    def read(path: Path) -> Order:
        """The order in a file."""
        try:
            told = json.loads(files.read_text(path))
            containers.check_depth(told)
            needs = tuple(told.pop("needs"))
            found = Order(path.parent.parent, path.stem, **told, needs=needs)
            texts = [found.label, found.group, found.on, found.host, *needs]
            if not all(isinstance(text, str) for text in texts) or not isinstance(found.work, dict):
                raise ValueError("a member is of another type")
            if not all(name == Path(name).name for name in needs):
                raise ValueError("it needs something that is no order beside it")
            return found
        except FileNotFoundError as error:
            raise InputError(f"{path} does not exist") from error
        except containers.DAMAGE as error:
            raise InputError(f"{path} is no order ({files.first_line(error)})") from error

    @contextmanager
    def as_expected(self) -> Iterator[None]:
        """Its work may still not be what a worker can do: somebody else's, or another version's."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {files.first_line(error)}"
            raise InputError(f"{self.path} does not say what an order does ({what})") from error


def command(every: float, *, attached: bool = False) -> list[str]:
    """What starts a worker, but for Python before it and the order after it; progress is reported so often."""
    flags = {"--attached": attached, "--debug": console.debug}
    return ["-P", "-m", "smodice_cli", "work", "--every", str(every), *(flag for flag in flags if flags[flag])]


def begin(order: Order) -> None:
    """What a worker says first; where others were killed again and again, none of which came further, it gives up."""
    vain = report(order).vain
    console.event(kind="start", host=socket.gethostname(), pid=os.getpid(), time=time.time())
    if vain > RETRIES:
        words = f"its process was killed {vain} times at the same place, perhaps for lack of memory"
        raise SmodiceError(words, f"see {order.events}")


def of_run(folder: Path) -> list[Order]:
    """Every order in a run's folder, in the order of their numbers; what is none is named and left out."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json"), key=files.natural):
        try:
            found.append(Order.read(path))
        except InputError as error:
            console.warn(f"{error.message}: left out")
    return found


def runs_below(folder: Path) -> list[Path]:
    """The folders with orders: this one and those below it."""
    return sorted(path.parent for path in (folder / FOLDER, *folder.rglob(f"*/{FOLDER}")) if path.is_dir())


# --- what the workers report ----------------------------------------------------------------------------------------


def event_of(line: str) -> dict[str, Any]:
    """What a line says; one that is no event is a library's warning, or a traceback."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if isinstance(event, dict) and isinstance(event.get("kind"), str) and _is_whole(event):
        return event
    return {"kind": "warning", "text": line.rstrip()}


def _is_whole(event: dict[str, Any]) -> bool:
    """Whether an event has the members of its kind."""
    if not all(type(event.get(name)) is kind for name, kind in EVENTS.get(event["kind"], {}).items()):
        return False
    figures = [event["done"], event["total"], *event["figures"].values()] if event["kind"] == "progress" else []
    return all(type(figure) is float or (type(figure) is int and abs(figure) < LARGEST) for figure in figures)


@dataclass
class Report:
    """What was read of an order's events so far."""

    path: Path
    starts: int = 0
    ends: list[int] = field(default_factory=list)
    cancelled: bool = False
    stuck: int = 0  # attempts in a row that ran out of time without having come any further
    error: dict[str, Any] = field(default_factory=dict)  # the last
    progress: dict[str, Any] = field(default_factory=dict)  # the last
    host: str = ""
    _begun: tuple[Any, ...] = ()  # the stage and the step that the last attempt began with
    _forgiven: int = 0  # kills before the first attempt that began there
    _offset: int = 0

    def news(self) -> list[dict[str, Any]]:
        """The events since the last look; a line that is still being written is left for the next."""
        try:
            text = files.read_bytes(self.path, self._offset)
        except (OSError, InputError):
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = [event_of(line) for line in whole.decode(errors="replace").splitlines() if line.strip()]
        for event in found:
            self._take(event)
        return found

    def _take(self, event: dict[str, Any]) -> None:
        match event["kind"]:
            case "start":
                self.starts, self.host = self.starts + 1, str(event.get("host", ""))
                self.error, self.progress = {}, {}
            case "end":
                self.ends.append(code if type(code := event.get("code")) is int else 1)
            case "out of time":
                self.stuck = 0 if event.get("moved") else self.stuck + 1
            case "cancel":
                self.cancelled = True
            case "error":
                self.error = event
            case "progress":
                begun = event.get("label"), event.get("start")
                if not self.progress and begun != self._begun:
                    self._begun, self._forgiven = begun, self.kills - 1
                self.progress = event

    @property
    def done(self) -> bool:
        """Whether any attempt came to its end: what it made is there, whatever became of others."""
        return 0 in self.ends

    @property
    def kills(self) -> int:
        """How often its worker ended without a word."""
        return self.starts - len(self.ends)

    @property
    def vain(self) -> int:
        """How often in a row that happened to attempts that began at the same place."""
        return self.kills - self._forgiven


def report(order: Order) -> Report:
    """All that was reported of an order."""
    found = Report(order.events)
    found.news()
    return found


@dataclass(frozen=True)
class State:
    """Where an order is, and why."""

    word: str  # queued | held | running | done | failed | killed | stopped | cancelled | not started | unknown
    text: str = ""
    hint: str = ""
    code: int = 0


ALIVE = ("queued", "held", "running", "unknown")  # the last: its engine does not answer
BAD = ("failed", "killed", "stopped")


def state(order: Order, seen: str | None, found: Report, broken: Mapping[str, str], absent: State) -> State:
    """Where an order is: by what its engine has of it, `seen`, and what its worker reported.

    `broken` are orders that failed, with their labels; `absent` is said of one that is gone and never began.
    """
    if found.done:
        return State("done")
    if seen in ALIVE:
        return State(str(seen))
    if found.cancelled:
        return State("cancelled")
    if needed := [broken[name] for name in order.needs if name in broken]:
        return State("not started", f"it needs {needed[0]}, which did not end well")
    code = found.ends[-1] if found.ends else 1
    if found.starts and found.kills > 0 and not found.error:
        words = "its process was killed, perhaps for lack of memory"
        return State("killed", words, f"see {order.events}", Interrupted.exit_code)
    if found.ends:
        text = str(found.error.get("text", f"ended with exit code {code}"))
        word = "stopped" if code in (Interrupted.exit_code, OutOfTimeError.exit_code) else "failed"
        return State(word, text, str(found.error.get("hint", "")), code)
    return absent


def mark_cancelled(order: Order) -> None:
    """Note beside an order that somebody cancelled it."""
    _note(order, {"kind": "cancel"})


def mark_failed(order: Order, text: str) -> None:
    """Note beside an order why its worker never began."""
    _note(order, {"kind": "error", "text": text}, {"kind": "end", "code": InputError.exit_code})


def _note(order: Order, *events: dict[str, Any]) -> None:
    with files.writing(order.events), open(order.events, "a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


# --- the driver -------------------------------------------------------------------------------------------------------


@contextmanager
def driving(folder: Path) -> Iterator[None]:
    """Hold a run's folder as the process that starts its orders; refuse where another one does."""

    def refuse(pid: str) -> None:
        hint = f"smodice status {folder} shows how far it is, smodice cancel {folder} ends it"
        raise OutputError(f"{folder} is being run by process {pid}", hint)

    with files.locked(folder / FOLDER / DRIVER, refuse):
        yield


def driver(folder: Path) -> int:
    """The process that drives a run; 0 where there is none."""
    path = files.lock_of(folder / FOLDER / DRIVER)
    with suppress(OSError, ValueError, InputError):
        if not files.is_dead(path) and (pid := int(files.read_text(path))) > 1:  # below: everyone's processes
            return pid
    return 0
