"""Do one or several runs on an engine: what they share, their chains, and the summary of what is there in the end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smodice_cli import pipeline, schedule
from smodice_cli.engine import Options
from smodice_cli.engines import Engine
from smodice_cli.errors import SmodiceError
from smodice_cli.orders import Order
from smodice_cli.pipeline import Run
from smodice_cli.summary import summarise


@dataclass(frozen=True)
class Given:
    """What was said about where and how the chains run."""

    on: str
    workers: int  # processes that simulate for what is done in this one
    wait: bool = False
    fail_fast: bool = False


def execute(runs: list[Run], options: Options, engine: Engine, given: Given) -> list[dict[str, Any]] | None:
    """Do what is left of runs and sum up what is there in the end; None where they go on without us.

    A single chain on this machine needs no process of its own.
    """
    engine.fail_fast = given.fail_fast
    errors: list[SmodiceError] = []
    ready: list[Run] = []
    waiting: list[Order] = []
    several = len(runs) > 1
    alone = engine.here and not several and len(runs[0].methods) * len(runs[0].seeds) == 1
    try:
        for one in runs:
            try:
                run, missing = (
                    pipeline.prepare(one, options, given.workers) if engine.here else pipeline.look(one, options)
                )
            except SmodiceError as error:
                if given.fail_fast or not several or not engine.here:  # a cluster is given all or nothing
                    raise
                error.message = f"{one.folder.name}: {error.message}"
                errors.append(error)
                continue
            ready.append(run)
            label = f"{run.folder.name} " if several else ""
            if not alone:
                waiting += pipeline.orders(run, options, given.on, label, data=missing)
        if alone:
            chain = ready[0].chains()[0]
            pipeline.run_chain(chain, options, given.workers)
            pipeline.forget(Order(chain.folder, chain.order_name, chain.name, "", {}))
        elif engine.detached and waiting:
            schedule.submit(engine, waiting)
            if not given.wait:
                return None
            errors += schedule.wait(engine, waiting)
        elif waiting:
            errors += schedule.drive(engine, waiting)
        if errors:
            raise schedule.first_error(errors, len(waiting))
    except BaseException:
        for run in ready:
            with suppress(SmodiceError):
                summarise(pipeline.settled(run))  # the one that is there may hold scores of other settings
        raise
    return [summarise(pipeline.settled(run)) for run in ready]
