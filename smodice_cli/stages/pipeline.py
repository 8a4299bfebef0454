"""run: the whole chain from a recipe, methods and seeds in parallel processes; status: what a run folder holds.

RUNS/<recipe>/dataset.h5, seed0/{disc,value,policy}.safetensors, seed0/{weights.h5,eval.json}, summary.json;
another algorithm, or a variant of smodice, has its files in seed0/<method>/, but shares the discriminator where it can.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from smodice_cli import artifacts
from smodice_cli.config import Settings, build
from smodice_cli.console import console
from smodice_cli.envs import registry
from smodice_cli.errors import InputError, Interrupted, SmodiceError
from smodice_cli.methods import METHODS
from smodice_cli.parallel import cores
from smodice_cli.stages.runner import Options, Result

STAGES = ("disc", "value", "policy", "eval")


@dataclass(frozen=True)
class Chain:
    """What one method (an algorithm, or a variant of smodice) does with one seed: settings, folder, discriminator."""

    folder: Path
    method: str
    seed: int
    settings: Settings
    shares_disc: bool = True  # the discriminator is the one that smodice would train ...
    first: bool = True  # ... and no method before this one has trained it

    @property
    def name(self) -> str:
        return f"seed {self.seed}" if self.method == "smodice" else f"{self.method} seed {self.seed}"

    @property
    def algo(self) -> str:
        return self.settings["policy"]["algo"]

    @property
    def home(self) -> Path:
        return place(self.folder, self.method, self.seed)

    @property
    def disc(self) -> Path:
        return (place(self.folder, "smodice", self.seed) if self.shares_disc else self.home) / "disc.safetensors"


def place(folder: Path, method: str, seed: int) -> Path:
    """Where a method's artifacts of one seed lie."""
    return folder / f"seed{seed}" / (method if method != "smodice" else "")


def chains(folder: Path, settings: dict[str, Settings], seeds: list[int], usual_disc: Any) -> list[Chain]:
    """All of a run, by the settings of each method; `usual_disc` is the discriminator's config that is shared.

    Seeds vary first: by the time another method asks for a seed's discriminator, it is there.
    """
    found: list[Chain] = []
    trained = False
    for method, own in settings.items():
        shares = build("disc", own.get("disc", {})) == usual_disc
        found += [Chain(folder, method, seed, own, shares, not (shares and trained)) for seed in seeds]
        trained |= shares and "disc" in METHODS[own["policy"]["algo"]].stages
    return found


def has_simulator(settings: Settings) -> bool:
    """Whether a policy can be scored."""
    return registry.known(settings["dataset"]["env"])


def build_data(folder: Path, settings: Settings, seed: int, options: Options) -> Result:
    """The dataset that all seeds share."""
    from smodice_cli.stages.build_dataset import build_dataset

    config = build("dataset", settings.get("dataset", {}))
    return build_dataset(folder / "dataset.h5", config, seed, replace(options, threads=cores()))


def run_chain(chain: Chain, options: Options, eval_workers: int, *, missing_input: bool = False) -> list[Result]:
    """What the algorithm needs of disc -> value -> policy -> eval, in this process.

    `missing_input`: a dry run that has no dataset.
    """
    from smodice_cli.stages.evaluate import evaluate
    from smodice_cli.stages.train_disc import train_disc
    from smodice_cli.stages.train_policy import train_policy
    from smodice_cli.stages.train_value import train_value

    configs = {section: build(section, chain.settings.get(section, {})) for section in STAGES}
    data, disc, seed = chain.folder / "dataset.h5", chain.disc, chain.seed
    value, policy, scores = (chain.home / name for name in ("value.safetensors", "policy.safetensors", "eval.json"))
    method = METHODS[chain.algo]
    for_disc = replace(options, force=options.force and chain.first)
    start = {"data": data, "disc": disc, "value": value}[method.needs]
    every: dict[str, tuple[Path, Callable[[], Result]]] = {
        "disc": (disc, lambda: train_disc(data, disc, configs["disc"], seed, for_disc)),
        "value": (value, lambda: train_value(disc, value, configs["value"], seed, options)),
        "policy": (policy, lambda: train_policy({method.needs: start}, policy, configs["policy"], seed, options)),
        "eval": (
            scores,
            lambda: evaluate(policy, scores, configs["eval"], seed, replace(options, threads=eval_workers)),
        ),
    }
    results: list[Result] = []
    scored = ("eval",) if has_simulator(chain.settings) else ()
    for path, stage in (every[name] for name in (*method.stages, "policy", *scored)):
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


def run_chains(chains: list[Chain], options: Options, jobs: int, *, debug: bool = False) -> None:
    """Several methods and seeds, each a process of its own with one thread, at most `jobs` at a time."""
    waiting = list(chains)
    failures: list[tuple[str, int, dict[str, Any]]] = []
    lock = threading.Lock()
    running: list[subprocess.Popen] = []
    show = _Board()

    def worker() -> None:
        while True:
            with lock:
                if not waiting or failures:
                    return
                chain = waiting.pop(0)
                process = subprocess.Popen(
                    [sys.executable, "-m", "smodice_cli", "run-seed", *(["--debug"] if debug else [])],
                    stdin=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C reaches only us; we pass it on once
                )
                running.append(process)
            assert process.stdin is not None
            assert process.stderr is not None
            order = {"chain": asdict(chain), "options": asdict(options)}
            process.stdin.write(json.dumps(order, default=str))
            process.stdin.close()
            last_error: dict[str, Any] = {}
            for line in process.stderr:
                event = _event(line)
                if event["kind"] == "error":
                    last_error = event
                else:
                    show.event(chain.name, event)
            code = process.wait()
            if code:
                failures.append((chain.name, code, last_error))

    try:
        threads = [threading.Thread(target=worker, daemon=True) for _ in range(min(jobs, len(chains)))]
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
                process.terminate()  # a shell may have had us started with Ctrl-C ignored
        for process in running:
            process.wait()  # each writes its checkpoint first
        raise
    finally:
        show.close()
    if failures:
        name, code, event = failures[0]
        message = f"{name}: {event.get('text', f'ended with exit code {code}')}"
        error = Interrupted(message) if code == Interrupted.exit_code else SmodiceError(message, event.get("hint", ""))
        error.exit_code = code if code > 0 else 1
        raise error


def _event(line: str) -> dict[str, Any]:
    """What a worker's line says; one that is no event is a library's warning, or a traceback."""
    other = {"kind": "warning", "text": line.rstrip()}
    try:
        event = json.loads(line)
    except ValueError:
        return other
    return event if isinstance(event, dict) and "kind" in event else other


class _Board:
    """What the workers report: a bar for each of them on a terminal, prefixed lines elsewhere."""

    def __init__(self) -> None:
        visible = console.mode == "human" and not console.quiet and sys.stderr.isatty()
        self.bars = console.bars() if visible else None
        self.rows: dict[str, Any] = {}
        if self.bars:
            self.bars.__enter__()

    def event(self, name: str, event: dict[str, Any]) -> None:
        if event["kind"] == "progress":
            label = f"{name} {event['label']}"
            if self.bars:
                if name not in self.rows:
                    self.rows[name] = self.bars.task(label, event["total"])
                self.rows[name].switch(label, event["total"], event["done"], event["figures"])
        elif event["kind"] == "warning":
            console.warn(f"{name}: {event['text']}")
        elif not self.bars:
            console.note(f"{name}: {event['text']}")

    def close(self) -> None:
        if self.bars:
            self.bars.__exit__()


def summarise(folder: Path, methods: list[str], seeds: list[int]) -> dict[str, Any]:
    """Scores over seeds with their spread, steps and time of each method; also written to summary.json.

    The figures of a single one also stand at the top.
    """
    rows = [_summary_of(folder, method, seeds) for method in methods]
    result = {"folder": str(folder), "seeds": seeds, **(rows[0] if len(rows) == 1 else {}), "methods": rows}
    with artifacts.atomic(folder / "summary.json") as temporary:
        temporary.write_text(json.dumps(result, indent=2) + "\n")
    return result


def _summary_of(folder: Path, method: str, seeds: list[int]) -> dict[str, Any]:
    homes = {seed: place(folder, method, seed) for seed in seeds}
    scores = {seed: artifacts.read_payload(home / "eval.json")["score"] for seed, home in homes.items()}
    policies = [home / "policy.safetensors" for home in homes.values()]
    normalized = np.array([score["normalized"] for score in scores.values()])
    return {
        "method": method,
        "normalized_mean": float(normalized.mean()),
        "normalized_std": float(normalized.std(ddof=1)) if len(seeds) > 1 else 0.0,
        "steps": artifacts.read_header(policies[0]).config["steps"],
        "seconds": float(np.mean([training_seconds(path) for path in policies])),
        "per_seed": {str(seed): score for seed, score in scores.items()},
    }


def training_seconds(path: Path) -> float:
    """How long a policy took with all that it was trained from, the dataset aside, as far as that is there to ask."""
    try:
        header = artifacts.read_header(path)
    except InputError:
        return 0.0
    before = [artifacts.linked(path, link) for name, link in header.inputs.items() if name != "dataset"]
    return header.seconds + sum(map(training_seconds, before))


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
        elif not hidden and path.suffix in (".h5", ".safetensors", ".json") and path.name != "summary.json":
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
    """The work of one process of `run_chains`: read which chain from `stream` and run it."""
    order = json.load(stream)
    told = order["chain"]
    run_chain(Chain(**{**told, "folder": Path(told["folder"])}), Options(**order["options"]), eval_workers=1)
