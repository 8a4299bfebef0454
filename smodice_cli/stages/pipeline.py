"""run: the whole chain from a recipe, seeds in parallel processes; status: what a run folder holds.

RUNS/<recipe>/dataset.h5, seed0/{disc,value,policy}.safetensors, seed0/{weights.h5,eval.json}, summary.json
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from smodice_cli import artifacts
from smodice_cli.config import Settings, build
from smodice_cli.console import console
from smodice_cli.errors import InputError, Interrupted, SmodiceError
from smodice_cli.stages.runner import Options, Result

STAGES = ("disc", "value", "policy", "eval")


def build_data(folder: Path, settings: Settings, seed: int, options: Options) -> Result:
    """The dataset that all seeds share."""
    from smodice_cli.stages.build_dataset import build_dataset

    return build_dataset(folder / "dataset.h5", build("dataset", settings.get("dataset", {})), seed, options)


def run_seed(
    folder: Path,
    settings: Settings,
    seed: int,
    options: Options,
    eval_workers: int,
    *,
    missing_input: bool = False,
) -> list[Result]:
    """disc -> value -> policy -> eval of one seed, in this process; `missing_input`: a dry run that has no dataset."""
    from smodice_cli.stages.evaluate import evaluate
    from smodice_cli.stages.train_disc import train_disc
    from smodice_cli.stages.train_policy import train_policy
    from smodice_cli.stages.train_value import train_value

    configs = {section: build(section, settings.get(section, {})) for section in STAGES}
    place = folder / f"seed{seed}"
    disc, value, policy = (place / f"{name}.safetensors" for name in ("disc", "value", "policy"))
    scores = place / "eval.json"
    chain: dict[Path, Callable[[], Result]] = {
        disc: lambda: train_disc(folder / "dataset.h5", disc, configs["disc"], seed, options),
        value: lambda: train_value(disc, value, configs["value"], seed, options),
        policy: lambda: train_policy(value, policy, configs["policy"], seed, options),
        scores: lambda: evaluate(policy, scores, configs["eval"], seed, replace(options, threads=eval_workers)),
    }
    results: list[Result] = []
    for path, stage in chain.items():
        if missing_input:
            results.append(Result(path, None, "would run", "its input is made first"))
            continue
        result = stage()
        results.append(result)
        missing_input = result.status == "would run"
        if not options.dry_run:
            took = f" in {result.header.seconds:.1f} s" if result.header and result.status == "done" else ""
            console.note(f"{result.path}: {result.status}{took}")
    return results


def run_seeds(folder: Path, settings: Settings, seeds: list[int], options: Options, jobs: int) -> None:
    """Several seeds, each a process of its own with one thread, at most `jobs` at a time."""
    waiting = list(seeds)
    failures: list[tuple[int, int, dict[str, Any]]] = []
    lock = threading.Lock()
    running: list[subprocess.Popen] = []
    show = _Board()

    def worker() -> None:
        while True:
            with lock:
                if not waiting or failures:
                    return
                seed = waiting.pop(0)
                process = subprocess.Popen(
                    [sys.executable, "-m", "smodice_cli", "run-seed"],
                    stdin=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C reaches only us; we pass it on once
                )
                running.append(process)
            assert process.stdin is not None
            assert process.stderr is not None
            order = {"folder": str(folder), "settings": settings, "seed": seed, "options": options.__dict__}
            process.stdin.write(json.dumps(order))
            process.stdin.close()
            last_error: dict[str, Any] = {}
            for line in process.stderr:
                event = _event(line)
                if event["kind"] == "error":
                    last_error = event
                else:
                    show.event(seed, event)
            code = process.wait()
            if code:
                failures.append((seed, code, last_error))

    try:
        threads = [threading.Thread(target=worker, daemon=True) for _ in range(min(jobs, len(seeds)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    except KeyboardInterrupt:
        with lock:
            waiting.clear()
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()  # each writes its checkpoint first
        raise
    finally:
        show.close()
    if failures:
        seed, code, event = failures[0]
        message = f"seed {seed}: {event.get('text', f'ended with exit code {code}')}"
        error = Interrupted(message) if code == Interrupted.exit_code else SmodiceError(message, event.get("hint", ""))
        error.exit_code = code if code > 0 else 1
        raise error


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
        return event if isinstance(event, dict) and "kind" in event else {"kind": "note", "text": line.rstrip()}
    except ValueError:
        return {"kind": "note", "text": line.rstrip()}


class _Board:
    """What the workers report: a bar for each seed on a terminal, prefixed lines elsewhere."""

    def __init__(self) -> None:
        visible = console.mode == "human" and not console.quiet and sys.stderr.isatty()
        self.bars = console.bars() if visible else None
        self.rows: dict[int, Any] = {}
        if self.bars:
            self.bars.__enter__()

    def event(self, seed: int, event: dict[str, Any]) -> None:
        if event["kind"] == "progress":
            label = f"seed {seed} {event['label']}"
            if self.bars:
                if seed not in self.rows:
                    self.rows[seed] = self.bars.task(label, event["total"])
                self.rows[seed].switch(label, event["total"], event["done"], event["figures"])
        elif event["kind"] == "warning":
            console.warn(f"seed {seed}: {event['text']}")
        elif not self.bars:
            console.note(f"seed {seed}: {event['text']}")

    def close(self) -> None:
        if self.bars:
            self.bars.__exit__()


def summarise(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Scores over seeds with their spread; also written to summary.json."""
    scores = {seed: artifacts.read_payload(folder / f"seed{seed}" / "eval.json")["score"] for seed in seeds}
    normalized = np.array([score["normalized"] for score in scores.values()])
    result = {
        "folder": str(folder),
        "seeds": seeds,
        "normalized_mean": float(normalized.mean()),
        "normalized_std": float(normalized.std(ddof=1)) if len(seeds) > 1 else 0.0,
        "per_seed": {str(seed): score for seed, score in scores.items()},
    }
    with artifacts.atomic(folder / "summary.json") as temporary:
        temporary.write_text(json.dumps(result, indent=2) + "\n")
    return result


def status(folder: Path) -> list[dict[str, Any]]:
    """Every artifact below a folder: kind, whether it and its inputs are intact, key figures."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.rglob("*")):
        row: dict[str, Any] = {"path": str(path.relative_to(folder)), "kind": "?", "seed": "", "seconds": ""}
        hidden = path.name.startswith(".")
        if hidden and path.name.endswith(".ckpt"):
            rows.append(row | {"kind": "checkpoint", "state": _checkpoint(path)})
        elif not hidden and (path.suffix in (".h5", ".safetensors") or path.name == "eval.json"):
            rows.append(row | _artifact(path))
    if not rows:
        raise InputError(f"{folder} holds no artifacts", "smodice run RECIPE --out DIR makes some")
    return rows


def _checkpoint(path: Path) -> str:
    try:
        return f"unfinished, at step {artifacts.load(path, 'checkpoint').header.metrics['step']:,}"
    except SmodiceError as error:
        return error.message


def _artifact(path: Path) -> dict[str, Any]:
    try:
        header = artifacts.read_any(path).header
    except SmodiceError as error:
        return {"state": error.message}
    state = artifacts.staleness(path, header) or "ok"
    return {"kind": header.kind, "seed": header.seed, "seconds": round(header.seconds, 1), "state": state}


def follow_order(stream: TextIO) -> None:
    """The work of one process of `run_seeds`: read which seed from `stream` and run its chain."""
    order = json.load(stream)
    run_seed(Path(order["folder"]), order["settings"], order["seed"], Options(**order["options"]), eval_workers=1)
