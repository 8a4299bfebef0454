"""Run folders that somebody else made: orders, events and locks are judged before anything is done with them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, succeed, write_recipe

from smodice_cli import jobs, orders, pipeline, recipes
from smodice_cli.engine import Options
from smodice_cli.engines import slurm
from smodice_cli.errors import InputError
from smodice_cli.orders import Order

DONE = '{"kind": "start", "host": "n1"}\n{"kind": "end", "code": 0}\n'


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A run whose orders nobody has begun."""
    recipe = recipes.read_recipe(write_recipe(tmp_path / "tiny.toml", TINY))
    run = jobs.plan(recipe, {}, [0, 1], tmp_path / "run")
    for order in pipeline.orders(run, Options(), "local", "", data=True):
        order.write()
    return tmp_path / "run"


def change(queue: Path, name: str = "seed0", **members: Any) -> Path:
    """An order with other members."""
    path = queue / f"orders/{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | members))
    return path


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    make(path)


STRANGE = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a loop": lambda path: path.symlink_to(path.name),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\n" * 9),
}


@pytest.mark.parametrize("name", ["seed0.json", "seed0.jsonl", ".driver.lock", "0a1b2c3d.list"])
@pytest.mark.parametrize("what", STRANGE)
def test_things_that_are_no_files_of_ours_are_passed_over(queue: Path, name: str, what: str) -> None:
    """Reading a pipe or a device would never end; one strange order hides no other."""
    instead(queue / "orders" / name, STRANGE[what])
    rows = succeed("status", queue, "--json").json["orders"]
    assert [row["order"] for row in rows] == [
        n for n in ("data", "seed 0", "seed 1") if n != "seed 0" or name[-1] != "n"
    ]
    succeed("cancel", queue)


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "progress"},
        {"kind": "progress", "label": [], "done": "x", "total": None, "figures": {"a": "b"}},
        {"kind": "progress", "label": "\x1b[2J", "done": 10**400, "total": 1, "figures": {}},
        {"kind": "progress", "label": "x", "done": 1, "total": 1, "figures": {"a": 10**400}},
        {"kind": "warning"},
        {"kind": "end", "code": True},
        {"kind": "error", "text": [1], "hint": {}},
        {"kind": "out of time", "figures": 3},
    ],
)
def test_events_of_another_shape_are_passed_over(queue: Path, event: dict[str, Any]) -> None:
    path = queue / "orders/seed0.jsonl"
    path.write_text('{"kind": "start", "host": {}}\n' + json.dumps(event) + "\n")
    shown = succeed("status", queue)
    assert "\x1b" not in shown.stdout + shown.stderr


@pytest.mark.parametrize(
    "members",
    [{"needs": ["../../etc"]}, {"needs": [""]}, {"on": "nowhere"}, {"needs": ["seed0"]}, {"host": "\x1b[2J"}],
)
def test_orders_that_make_no_sense_hide_no_others(queue: Path, members: dict[str, Any]) -> None:
    change(queue, **members)
    rows = succeed("status", queue, "--json").json["orders"]
    assert {"data", "seed 1"} <= {row["order"] for row in rows}
    succeed("cancel", queue)


@pytest.mark.parametrize(
    "work",
    [{}, {"chain": 3}, {"chain": {"method": [], "configs": {}, "algo": {}}, "run": 1}, {"options": {"threads": "x"}}],
)
def test_work_that_nobody_can_do_is_one_sentence(queue: Path, work: dict[str, Any]) -> None:
    """For the worker; `status` of a finished run only sums nothing up."""
    told = json.loads((queue / "orders/seed0.json").read_text())["work"]
    path = change(queue, work=told | work if "options" in work else work)
    done = subprocess.run([sys.executable, "-m", "smodice_cli", "work", path], capture_output=True, text=True)
    assert done.returncode in (2, 3), done.stderr
    assert "Traceback" not in done.stderr
    for name in ("data", "seed0", "seed1"):
        change(queue, name, on="slurm")
        (queue / f"orders/{name}.jsonl").write_text(DONE)
    assert {row["state"] for row in succeed("status", queue, "--json").json["orders"]} == {"done"}


def test_looking_at_a_folder_runs_no_module_that_an_order_names(
    queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "not_asked_for.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("data", "seed0", "seed1"):
        work = json.loads((queue / f"orders/{name}.json").read_text())["work"]
        for configs in [work["run"]["usual"], *([work["chain"]["configs"]] if "chain" in work else [])]:
            configs["dataset"]["env"] = "gym:not_asked_for:X-v0"
            configs["value"]["f"] = "auto"
        change(queue, name, on="slurm", work=work)
        (queue / f"orders/{name}.jsonl").write_text(DONE)
    succeed("status", queue)
    assert "not_asked_for" not in sys.modules


@pytest.mark.parametrize("said", ["-1", "0", "1", "x", "9" * 5000])
def test_a_lock_cannot_name_processes_to_kill(queue: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """-1 stands for all of a user's processes."""
    monkeypatch.setattr(os, "kill", lambda pid, number: pytest.fail(f"signal {number} to {pid}"))
    lock = queue / "orders/.driver.lock"
    lock.write_text(said)
    handle = os.open(lock, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert orders.driver(queue) == 0
    succeed("cancel", queue)
    os.close(handle)


def test_cancel_waits_for_no_process_that_has_ended(queue: Path) -> None:
    """Whoever holds the lock now is not the process that it names."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock = queue / "orders/.driver.lock"
    lock.write_text(str(gone.pid))
    handle = os.open(lock, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    succeed("cancel", queue)
    os.close(handle)


def test_a_list_of_other_tasks_than_the_queue_has(queue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (queue / "orders/0a1b2c3d.list").write_text("0 run/orders/seed0.json\nx\n\n7\n")
    told = "smodice-0a1b2c3d|12|0|RUNNING|None\nsmodice-0a1b2c3d|12|5|PENDING|None\nsmodice-0a1b2c3d|13|N/A|PENDING|x"
    monkeypatch.setattr(slurm, "call", lambda *words: told)
    assert list(slurm.jobs([queue])) == [queue / "orders/seed0.json"]


def test_an_order_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smodice_cli.files.MAX_TEXT", 100)
    path = tmp_path / "orders/x.json"
    path.parent.mkdir()
    path.write_text(Order(tmp_path, "x", "label", "group", {"a": "b" * 1000}).text())
    with pytest.raises(InputError, match="is no order"):
        Order.read(path)
