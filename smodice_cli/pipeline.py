"""run: the whole chain from a recipe, methods and seeds in parallel processes.

RUNS/<recipe>/dataset.h5, seed0/{disc,value,policy}.safetensors, seed0/{weights.h5,eval.json}, summary.json;
another algorithm, or a variant of smodice, has its files in seed0/<method>/, but shares the discriminator where it can.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from smodice_cli import envs
from smodice_cli.algos import dual
from smodice_cli.config import build
from smodice_cli.console import Bar, console
from smodice_cli.engine import Options, Result, Stage, make
from smodice_cli.errors import Interrupted, SmodiceError
from smodice_cli.parallel import cores
from smodice_cli.recipes import config_of
from smodice_cli.stages import DEFAULT, STAGES, chain
from smodice_cli.stages import select_f as selection

HELD_OUT = 0.1  # share of the trajectories of recordings that no simulator replaces
Configs = Mapping[str, Any]  # the config of every stage of one method, by section


@dataclass(frozen=True)
class Chain:
    """What one method (an algorithm, or a variant of smodice) does with one seed."""

    folder: Path
    method: str
    algo: str
    seed: int
    configs: Configs
    common: tuple[str, ...] = ()  # sections whose artifact is the same as smodice's and lies with it ...
    made: tuple[str, ...] = ()  # ... and those that a method before this one makes

    @property
    def name(self) -> str:
        return f"seed {self.seed}" if self.method == DEFAULT else f"{self.method} seed {self.seed}"

    def stages(self) -> list[Stage]:
        """Its own stages, after those that all chains of a run share."""
        return [stage for stage in chain(self.algo) if not stage.per_run]

    def place(self, kind: str) -> Path:
        """Where its artifact of this kind lies."""
        stage = next(stage for stage in chain(self.algo) if stage.kind == kind)
        if stage.per_run:
            return self.folder / stage.file
        return home(self.folder, DEFAULT if stage.section in self.common else self.method, self.seed) / stage.file

    def order(self, options: Options) -> str:
        """The chain as told to a process of its own."""
        return json.dumps({"chain": asdict(self), "options": asdict(options)}, default=str)


def home(folder: Path, method: str, seed: int) -> Path:
    """Where a method's artifacts of one seed lie."""
    return folder / f"seed{seed}" / (method if method != DEFAULT else "")


def chains(folder: Path, methods: Mapping[str, Configs], seeds: list[int], usual: Configs) -> list[Chain]:
    """All of a run, by the configs of each method; `usual` are smodice's, with which others may share artifacts.

    Seeds vary first: by the time another method asks for a seed's discriminator, it is there.
    """
    found: list[Chain] = []
    made: tuple[str, ...] = ()
    for method, configs in methods.items():
        algo = configs["policy"].algo
        shared = [stage.section for stage in chain(algo) if stage.shared]
        common = tuple(section for section in shared if configs[section] == usual[section])
        found += [Chain(folder, method, algo, seed, configs, common, made) for seed in seeds]
        made += common
    return found


def build_data(folder: Path, config: Any, options: Options) -> Result:
    """The dataset that all chains share."""
    stage = STAGES["build-dataset"]
    return make(stage, None, folder / stage.file, config, 0, replace(options, threads=cores()))


def run_chain(one: Chain, options: Options, workers: int, *, missing_input: bool = False) -> list[Result]:
    """Every stage of a chain in this process, with `workers` processes for those that simulate.

    `missing_input`: a dry run that has no dataset.
    """
    results: list[Result] = []
    for stage in one.stages():
        out = one.place(stage.kind)
        if missing_input:
            results.append(Result(out, None, "would run", "its input is made first"))
            continue
        own = replace(options, force=options.force and stage.section not in one.made, env=one.configs["dataset"].env)
        own = replace(own, threads=workers) if stage.simulates else own
        result = make(stage, one.place(stage.starts_from(one.algo)), out, one.configs[stage.section], one.seed, own)
        results.append(result)
        missing_input = result.status == "would run"
        if not options.dry_run:
            took = f" in {result.header.seconds:.1f} s" if result.header and result.status == "done" else ""
            console.note(f"{result.path}: {result.status}{took}")
    return results


def select_f(folder: Path, configs: Configs, seed: int, options: Options, **brief: Any) -> Result:
    """Make the data and smodice's discriminator, as a run would, and compare the divergences on them."""
    unforced = replace(options, force=False)
    data = build_data(folder, configs["dataset"], unforced)
    disc = Chain(folder, DEFAULT, DEFAULT, seed, configs).place("disc")
    made = data
    if data.status != "would run":
        made = make(STAGES["train-disc"], data.path, disc, configs["disc"], seed, unforced)
    if made.status == "would run":
        return Result(selection.place(disc), None, "would run", "its input is made first")
    return selection.compare(disc, configs["value"], configs["policy"], seed, options, **brief)


def settle_f(
    folder: Path, methods: Mapping[str, Configs], usual: Configs, seed: int, options: Options
) -> dict[str, Configs]:
    """What `f = auto` stands for in a run, decided on its first seed for all; left open in a dry run before that."""
    undecided = [name for name, own in methods.items() if "value" in own and own["value"].f == dual.AUTO]
    if not undecided:
        return dict(methods)
    result = select_f(folder, usual, seed, options)
    found = selection.recommended(result)
    if not found:
        return dict(methods)
    console.note(f"value.f = {dual.AUTO}: {found} (see {result.path})")
    decided = {name: {**methods[name], "value": replace(methods[name]["value"], f=found)} for name in undecided}
    return {**methods, **decided}


def hold_out_recordings(methods: Mapping[str, Configs]) -> dict[str, Configs]:
    """Without a simulator some trajectories are kept out of training, to measure the policy on."""
    found = {}
    for name, own in methods.items():
        policy = own["policy"]
        if not envs.can_simulate(own["dataset"].env) and getattr(policy, "holdout", None) == 0:
            own = {**own, "policy": replace(policy, holdout=HELD_OUT)}
            console.note(f"{name}: no simulator, so policy.holdout = {HELD_OUT} of the trajectories measure the policy")
        found[name] = own
    return found


# --- processes -------------------------------------------------------------------------------------------------------


def run_chains(waiting: list[Chain], options: Options, jobs: int) -> None:
    """Several methods and seeds, each a process of its own with one thread, at most `jobs` at a time."""
    failures: list[SmodiceError] = []  # after the first, nothing more is started
    lock = threading.Lock()
    running: list[subprocess.Popen] = []
    show = _Board()

    def work(one: Chain) -> None:
        with lock:
            if failures:
                return
            process = _start()
            running.append(process)
        if failure := _follow(process, one, options, show):
            failures.append(failure)

    with closing(show), ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(work, waiting))
        except KeyboardInterrupt:
            with lock:
                failures.append(Interrupted("interrupted"))
            for process in running:
                if process.poll() is None:
                    process.terminate()  # a shell may have had us started with Ctrl-C ignored
            raise  # once each has written its checkpoint
    if failures:
        raise failures[0]


def _start() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "smodice_cli", "run-seed", *(["--debug"] if console.debug else [])],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches only us; we pass it on once
    )


def _follow(process: subprocess.Popen, one: Chain, options: Options, show: _Board) -> SmodiceError | None:
    """Tell a process what to do and show what it reports; returns how it failed, if it did."""
    assert process.stdin is not None
    assert process.stderr is not None
    with suppress(BrokenPipeError):  # it has ended already; its exit code tells
        process.stdin.write(one.order(options))
        process.stdin.close()
    error: dict[str, Any] = {}
    for line in process.stderr:
        event = _event(line)
        if event["kind"] == "error":
            error = event
        else:
            show.event(one.name, event)
    if not (code := process.wait()):
        return None
    if code < 0:
        return Interrupted(f"{one.name}: its process was killed (signal {-code}), perhaps for lack of memory")
    message = f"{one.name}: {error.get('text', f'ended with exit code {code}')}"
    failure = Interrupted(message) if code == Interrupted.exit_code else SmodiceError(message, error.get("hint", ""))
    failure.exit_code = code
    return failure


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
            self.bars.start()

    def event(self, name: str, event: dict[str, Any]) -> None:
        if event["kind"] == "progress":
            label = f"{name} {event['label']}"
            if self.bars:
                if name not in self.rows:
                    self.rows[name] = Bar(self.bars, label, event["total"])
                self.rows[name].switch(label, event["total"], event["done"], event["figures"])
        elif event["kind"] == "warning":
            console.warn(f"{name}: {event['text']}")
        elif not self.bars:
            console.note(f"{name}: {event['text']}")

    def close(self) -> None:
        if self.bars:
            self.bars.stop()


def run_told(stream: TextIO) -> None:
    """The work of one process of `run_chains`: read which chain from `stream` and run it."""
    order = json.load(stream)
    told = order["chain"]
    configs = {name: build(config_of(name, told["algo"]), name, own) for name, own in told["configs"].items()}
    one = Chain(**told | {"folder": Path(told["folder"]), "configs": configs})
    run_chain(one, Options(**order["options"]), workers=1)
