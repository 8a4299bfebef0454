"""Runs as orders: ranges and patterns, failures that stop no other, what is seen and ended from outside, bad input.

On real clusters: on_clusters.py, by `make test-cluster`.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from conftest import TINY, Start, digest, listing, refuse, smodice, succeed, wait_for, write_recipe

from smodice_cli import orders
from smodice_cli.commands.run import parse_seeds
from smodice_cli.engines import slurm
from smodice_cli.errors import InputError, UsageError
from smodice_cli.orders import Order, Report


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "tiny.toml", TINY)


def test_seeds_are_numbers_and_ranges() -> None:
    assert parse_seeds("0-3,7, 9-9") == [0, 1, 2, 3, 7, 9]
    for text in ("3-1", "0-", "-1", "a-b", "0-3,2", "0-99999999", ""):
        with pytest.raises(UsageError, match="--seeds"):
            parse_seeds(text)


def test_several_recipes_and_patterns_in_one_command(recipe: Path, tmp_path: Path) -> None:
    write_recipe(tmp_path / "tony.toml", TINY | {"policy": {"steps": 5, "hidden": 8, "batch": 8}})
    told = succeed("run", tmp_path / "t*.toml", recipe, "--out", tmp_path / "runs", "--json").json
    assert [(Path(run["folder"]).name, run["steps"]) for run in told["runs"]] == [("tiny", 20), ("tony", 5)]
    assert digest(tmp_path / "runs/tiny/seed0/value.safetensors") == digest(
        tmp_path / "runs/tony/seed0/value.safetensors"
    )
    states = succeed("status", tmp_path / "runs/tiny", tmp_path / "runs/tony", "--json").json["runs"]
    assert [row["order"] for run in states for row in run["orders"]] == ["tiny seed 0", "tony seed 0"]
    (tmp_path / "other").mkdir()
    same = write_recipe(tmp_path / "other/tiny.toml", TINY)
    assert "the same name" in refuse(2, "run", recipe, same)


def test_a_chain_that_fails_stops_no_other(recipe: Path, tmp_path: Path) -> None:
    """Unless that is wanted; the run ends with its sentence, and the others are summed up."""
    out = tmp_path / "run"
    out.mkdir()
    (out / "seed0").write_text("a file where a folder should be")
    command = ("run", recipe, "--seeds", "0-2", "--jobs", "1", "--out", out)
    assert "seed 0: cannot write" in refuse(3, *command, "--fail-fast")
    assert not (out / "summary.json").exists()
    assert {row["state"] for row in succeed("status", out, "--json").json["orders"]} == {"failed", "not started"}
    outcome = smodice(*command)
    assert outcome.code == 3
    assert outcome.stderr.count("cannot write") == 1, "told once"
    assert json.loads((out / "summary.json").read_text())["missing"] == [0]
    rows = succeed("status", out, "--json").json["orders"]
    assert [(row["order"], row["state"]) for row in rows] == [
        ("seed 0", "failed"),
        ("seed 1", "done"),
        ("seed 2", "done"),
    ]
    assert "cannot write" in rows[0]["why"]


def test_what_chains_share_has_one_owner(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ("run", recipe, "--algo", "smodice,oril,sail", "--jobs", "2", "--out", out)
    succeed(*command)
    given = {order.name: order for order in orders.of_run(out)}
    assert {name: (order.work["sections"], order.needs) for name, order in given.items()} == {
        "shared-seed0": (["disc"], ()),
        "seed0": (["value", "policy", "eval"], ("shared-seed0",)),
        "oril-seed0": (["policy", "eval"], ("shared-seed0",)),
        "sail-seed0": (["disc", "policy", "eval"], ()),
    }
    before = digest(out / "seed0/disc.safetensors")
    said = succeed(*command, "--force").stderr
    assert said.count("train-disc: --force was given") == 2, "that which two share, and sail's own"
    assert digest(out / "seed0/disc.safetensors") == before


def test_a_run_is_seen_and_cancelled_from_outside(recipe: Path, tmp_path: Path, start: Start) -> None:
    out = tmp_path / "run"
    command = ("run", recipe, "--seeds", "0-1", "--jobs", "1", "--out", out, "--set", "policy.steps=3000")
    running = start(*command, "--checkpoint-every", "0")
    wait_for(lambda: (out / "seed0/.policy.safetensors.ckpt").exists() or running.process.exitcode is not None)
    rows = succeed("status", out, "--json").json["orders"]
    assert [row["state"] for row in rows] == ["running", "queued"]
    assert rows[0]["stage"] == "train-policy" or rows[0]["stage"] == "train-value"
    assert f"{out} is being run by process" in refuse(3, *command)
    assert succeed("cancel", out, "--json").json["cancelled"] == {str(out): 2}
    assert running.ends().code == 130
    rows = succeed("status", out, "--json").json["orders"]
    assert [row["state"] for row in rows] == ["cancelled", "cancelled"]
    assert succeed("cancel", out, "--json").json["cancelled"] == {str(out): 0}


def test_workers_end_with_the_process_that_drives_them(recipe: Path, tmp_path: Path, start: Start) -> None:
    out = tmp_path / "run"
    running = start(
        "run", recipe, "--seeds", "0-1", "--out", out, "--set", "policy.steps=3000", "--checkpoint-every", "0"
    )
    wait_for(lambda: (out / "seed0/.policy.safetensors.ckpt").exists() or running.process.exitcode is not None)
    running.kill()
    reports = [orders.report(order) for order in orders.of_run(out)]
    wait_for(lambda: all(report.news() is not None and report.kills == 0 for report in reports))
    assert {code for report in reports for code in report.ends} == {130}


def test_a_worker_out_of_time_says_so_and_goes_on(recipe: Path, tmp_path: Path, start: Start) -> None:
    """By the signal that a cluster sends before its time limit."""
    out = tmp_path / "run"
    small = ("--set", "policy.steps=1000", "--set", "eval.curve_episodes=0")
    succeed("run", recipe, "--seeds", "0-1", *small, "--out", out)
    before = digest(out / "seed1/policy.safetensors")
    for name in ("policy.safetensors", "eval.json"):
        (out / "seed1" / name).unlink()
    order = Order.read(out / "orders/seed1.json")
    work = {**order.work, "options": order.work["options"] | {"checkpoint_every": 0}}
    Order(out, "seed1", order.label, order.group, work).write()
    running = start("work", order.path)
    wait_for(lambda: (out / "seed1/.policy.safetensors.ckpt").exists() or running.process.exitcode is not None)
    running.signal(signal.SIGUSR1)
    outcome = running.ends()
    assert outcome.code == 75, outcome.stderr
    assert '"its time is up' in outcome.stderr
    succeed("work", order.path)
    assert digest(out / "seed1/policy.safetensors") == before


def test_events_are_read_as_far_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    report = Report(path)
    assert report.news() == []
    path.write_text('{"kind": "start", "host": "n1"}\nnonsense\n[1]\n{"kind": "pro')
    assert [event["kind"] for event in report.news()] == ["start", "warning", "warning"]
    assert (report.starts, report.host, report.kills) == (1, "n1", 1)
    with open(path, "a") as file:
        file.write('gress", "label": "eval", "done": 1, "total": 2, "figures": {}}\n{"kind": "end", "code": 0}\n')
    assert [event["kind"] for event in report.news()] == ["progress", "end"]
    assert report.done


def test_an_order_is_given_up_only_when_kills_keep_it_at_the_same_place(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"

    def killed(*progress: tuple[str, int, int]) -> int:
        fixed = {"kind": "progress", "total": 100, "figures": {}}
        events = [fixed | {"label": label, "start": first, "done": done} for label, first, done in progress]
        with open(path, "a") as file:
            file.writelines(json.dumps(event) + "\n" for event in [{"kind": "start"}, *events])
        report = Report(path)
        report.news()
        return report.vain

    assert killed() == 1
    assert killed(("train-value", 0, 5), ("train-value", 0, 9)) == 1
    assert killed(("train-value", 0, 7), ("train-policy", 0, 2)) == 2, "how far it comes is luck: its start counts"
    assert killed() == 3
    assert killed(("train-policy", 0, 3)) == 1
    assert killed(("train-policy", 40, 41)) == 1
    assert killed(("train-policy", 40, 60)) == 2


def test_what_was_forced_is_made_once_however_often_it_is_begun(recipe: Path, tmp_path: Path) -> None:
    """Otherwise a chain longer than a cluster's time limit would never end."""
    out = tmp_path / "run"
    succeed("run", recipe, "--seeds", "0-1", "--out", out, "--force")
    before = listing(out / "seed1")
    succeed("work", out / "orders/seed1.json")
    assert listing(out / "seed1") == before


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"needs": 3}', "[" * 100_000, '{"label": 1, "group": "", "needs": [], "on": "", "work": {}}'],
)
def test_a_file_that_is_no_order_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "orders/x.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InputError, match="is no order"):
        Order.read(path)


def test_bad_engines_are_one_sentence(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command = ("run", recipe, "--seeds", "0-1", "--out", tmp_path / "run")
    assert "there is no sbatch on this machine" in refuse(2, *command, "--on", "slurm")
    assert "unknown engine 'slrum'" in refuse(2, *command, "--on", "slrum")
    assert "has no address" in refuse(2, *command, "--on", "local:here")
    assert "expected KEY=VALUE" in refuse(2, *command, "--on", "slurm", "--on-set", "time")
    assert "--jobs is for --on local" in refuse(2, *command, "--on", "slurm", "--jobs", "2")
    assert "needs somebody who watches" in refuse(2, *command, "--on", "slurm", "--fail-fast")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "Ray is not installed" in refuse(2, *command, "--on", "ray")
    monkeypatch.setenv("SMODICE_SITE", str(tmp_path / "absent.toml"))
    assert "which does not exist" in refuse(3, *command, "--on", "slurm")
    (tmp_path / "site.toml").write_text("[slurm]\ntime = [1]\n")
    monkeypatch.setenv("SMODICE_SITE", str(tmp_path / "site.toml"))
    assert "must be a section of texts" in refuse(4, *command, "--on", "slurm")
    assert "is not a folder" in refuse(3, "cancel", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_slurm_arrays_wait_for_what_their_tasks_need(tmp_path: Path) -> None:
    """All for the data; a chain for what the chains of its own seed share; at most a thousand tasks in an array."""
    chains = [Order(tmp_path, f"seed{n}", "", "", {}, ("data", f"shared-seed{n}")) for n in (3, 5)]
    there = {tmp_path / "orders/data.json": slurm.Job("7", 0)}
    there |= {tmp_path / f"orders/shared-seed{n}.json": slurm.Job("8", n) for n in (3, 4, 5)}
    ((depends, batch),) = slurm.batches(chains, there)
    assert depends == "aftercorr:8,afterok:7_0"
    assert {index: order.name for index, order in batch.items()} == {3: "seed3", 5: "seed5"}
    many = [Order(tmp_path, f"seed{n}", "", "", {}) for n in range(1500)]
    assert [(depends, len(batch), max(batch)) for depends, batch in slurm.batches(many, {})] == [
        ("", 1000, 999),
        ("", 500, 499),
    ]
