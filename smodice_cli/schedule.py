"""Give orders to an engine, follow what their workers report, and say how each of them ended."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from smodice_cli import engines, orders
from smodice_cli.console import Bar, console, in_words
from smodice_cli.engines import Engine
from smodice_cli.errors import InputError, Interrupted, OutputError, SmodiceError
from smodice_cli.orders import Order, Report, State


def failure(order: Order, state: State) -> SmodiceError:
    """How an order failed, with its own sentence and exit code."""
    kind = Interrupted if state.code == Interrupted.exit_code else SmodiceError
    found = kind(f"{order.label}: {state.text}", state.hint)
    found.exit_code = state.code or 1
    return found


def submit(engine: Engine, waiting: Sequence[Order]) -> None:
    """Write the orders and hand them over; those that the engine has already, from an earlier command, stay there."""
    with ExitStack() as stack:
        if engine.detached:
            hold(stack, waiting)
        there = _queued(engine, waiting) if engine.detached else set()
        new = [order for order in waiting if order.path not in there]
        try:
            for order in new:
                order.write()
            engine.submit(new)
        except BaseException:
            for order in new:
                order.remove()  # nobody will do it
            raise


def hold(stack: ExitStack, waiting: Iterable[Order]) -> None:
    """Make sure that nobody else gives orders in the same folders meanwhile."""
    for run in sorted({order.run for order in waiting}):
        stack.enter_context(orders.driving(run))


def _queued(engine: Engine, waiting: Sequence[Order]) -> set[Path]:
    known = [Order.read(order.path) for order in waiting if order.path.exists()]
    seen = engine.poll([order for order in known if not orders.report(order).done])
    told = {order.path: order for order in known}
    for order in waiting:
        if order.path in seen and not order.is_like(told[order.path]):
            hint = f"smodice cancel {order.run} first, or choose another --out"
            raise InputError(f"{order.label} is {seen[order.path]} with other settings", hint)
    return set(seen)


def wait(engine: Engine, waiting: Sequence[Order]) -> list[SmodiceError]:
    """Wait for orders that go on without this process; returns how those that failed did."""
    try:
        return follow(engine, waiting)
    except KeyboardInterrupt as error:
        runs = shlex.join(sorted({str(order.run) for order in waiting}))
        left = SmodiceError("no longer waiting: the jobs go on", f"smodice status {runs}, or smodice cancel {runs}")
        left.exit_code = Interrupted.exit_code
        raise left from error


def drive(engine: Engine, waiting: Sequence[Order]) -> list[SmodiceError]:
    """Do orders with this process as their driver; returns how those that failed did, in their order."""
    with ExitStack() as stack:
        hold(stack, waiting)
        submit(engine, waiting)
        try:
            return follow(engine, waiting)
        except KeyboardInterrupt:
            engine.cancel(waiting)  # each writes its checkpoint
            raise


def follow(engine: Engine, waiting: Sequence[Order]) -> list[SmodiceError]:
    """Show what the workers report until all orders have ended; returns those that failed."""
    left = {order.path: (order, Report(order.events)) for order in waiting}
    broken: dict[Path, str] = {}
    given: Counter[Path] = Counter()  # how often an order was given once more
    failures: list[SmodiceError] = []
    with closing(Board()) as show:
        while left:
            seen = _look(engine, [order for order, _ in left.values()])
            lost: list[Order] = []
            for path, (order, found) in list(left.items()):
                if seen.get(path) != "queued":
                    for event in found.news():
                        show.event(order.label, event)
                if (now := _state(engine, order, seen.get(path), found, broken)).word in orders.ALIVE:
                    continue
                if engine.detached and _is_lost(engine, order, now, given):
                    lost.append(order)
                    continue
                del left[path]
                if now.word != "done":
                    broken[path] = order.label
                if now.word in orders.BAD:
                    failures.append(failure(order, now))
            if failures and engine.fail_fast:
                end(engine, [order for path, (order, _) in left.items() if seen.get(path) == "queued"])
            if lost:
                give_again(engine, lost)
                given.update(order.path for order in lost)
            if left:
                time.sleep(engine.every)
    return failures


def _is_lost(engine: Engine, order: Order, now: State, given: Counter[Path]) -> bool:
    """Whether an order left its cluster's queue by no fault of its own: its job was killed, or one that it needs."""
    gone = now.word == "killed" or (now is engine.absent and any(given[path] for path in order.needed()))
    return gone and given[order.path] < orders.RETRIES


def give_again(engine: Engine, lost: Sequence[Order]) -> None:
    """Hand lost orders over once more, with what was reported of them."""
    try:
        with ExitStack() as stack:
            hold(stack, lost)
            there = engine.poll(lost)
            engine.submit([order for order in lost if order.path not in there])
    except (InputError, OutputError) as error:
        console.warn(error.message)


def _look(engine: Engine, known: Sequence[Order]) -> dict[Path, str]:
    """What an engine has of these orders; one that does not answer may be away for a while."""
    try:
        return engine.poll(known)
    except InputError as error:
        console.warn(f"{error.message}: only what the workers reported is known")
        return dict.fromkeys([order.path for order in known], "unknown")


def _state(engine: Engine, order: Order, seen: str | None, found: Report, broken: dict[Path, str]) -> State:
    needs = {name: broken.get(order.path.with_name(f"{name}.json"), "") for name in order.needs}
    return orders.state(order, seen, found, {name: label for name, label in needs.items() if label}, engine.absent)


def states(folder: Path) -> list[tuple[Order, State, Report]]:
    """Where every order of a run is, asked from outside; what an order needs comes before it."""
    found = []
    for engine, known in engines.of_orders(orders.of_run(folder)):
        seen = _look(engine, [order for order in known if not orders.report(order).done])
        broken: dict[Path, str] = {}
        for order in sorted(known, key=lambda order: len(order.needs)):
            said = orders.report(order)  # after the look: an end is never missed
            now = _state(engine, order, seen.get(order.path), said, broken)
            if now.word not in ("done", *orders.ALIVE):
                broken[order.path] = order.label
            found.append((order, now, said))
    return found


def cancel(folder: Path) -> int:
    """End every order of a run that has not ended; returns how many."""
    ended = 0
    for engine, known in engines.of_orders(orders.of_run(folder)):
        seen = engine.poll(known)
        there = [order for order in known if order.path in seen]  # even if done: it may wait to be started once more
        end(engine, there)
        ended += len(there)
    return ended


def end(engine: Engine, alive: Sequence[Order]) -> None:
    """End orders and note beside each that it was not its own fault."""
    for order in alive:
        orders.mark_cancelled(order)
    if alive:
        engine.cancel(alive)


def first_error(failures: Sequence[SmodiceError], total: int) -> SmodiceError:
    """The sentence a run ends with whose chains failed; the others have theirs before it, as warnings."""
    first, *others = failures
    for other in others:
        console.warn(other.message)
    first.message += f" (and {len(others)} more of {total})" if others else ""
    return first


class Board:
    """What the workers report: a bar for each of them on a terminal, prefixed lines elsewhere."""

    def __init__(self) -> None:
        visible = console.mode == "human" and not console.quiet and sys.stderr.isatty()
        self.bars = console.bars() if visible else None
        self.rows: dict[str, Any] = {}
        if self.bars:
            self.bars.start()

    def event(self, name: str, event: dict[str, Any]) -> None:
        """Show one event of the order with this name."""
        match event["kind"]:
            case "progress" if self.bars:
                label = f"{name} {event['label']}"
                if name not in self.rows:
                    self.rows[name] = Bar(self.bars, label, event["total"])
                self.rows[name].switch(label, event["total"], event["done"], event["figures"])
            case "warning":
                console.warn(f"{name}: {event['text']}")
            case "end" if self.bars and name in self.rows:
                self.bars.remove_task(self.rows.pop(name).task)
            case "note" if not self.bars:
                console.note(f"{name}: {event['text']}")

    def close(self) -> None:
        if self.bars:
            self.bars.stop()


# --- seen from outside ------------------------------------------------------------------------------------------------


def is_over(found: Iterable[tuple[Order, State, Report]]) -> bool:
    """Whether a cluster has done, or given up, all orders of a run that no process waits for."""
    return all(now.word not in orders.ALIVE and engines.find(order.on).detached for order, now, _ in found)


def describe(order: Order, now: State, found: Report) -> dict[str, Any]:
    """An order as a row of a table."""
    at = found.progress if now.word not in ("queued", "done") else {}
    done = f"{at['done']:,} of {at['total']:,}" if at else ""
    figures = in_words(at.get("figures", {}))
    return {
        "order": order.label,
        "state": now.word,
        "on": order.on,
        "where": found.host,
        "attempts": found.starts,
        "stage": at.get("label", ""),
        "done": done,
        "figures": figures,
        "why": now.text,
    }


def counts(words: Sequence[str]) -> str:
    """How many orders are where, in words."""
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
