"""What lies in folders: every artifact and its state, and finished runs, with the seeds of each recipe and method."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from smodice_cli import artifacts, files, orders
from smodice_cli.artifacts import Header
from smodice_cli.console import console
from smodice_cli.engine import Stage, checkpoint_of
from smodice_cli.errors import InputError, SmodiceError
from smodice_cli.exports import choices
from smodice_cli.stages import DEFAULT, STAGES, maker
from smodice_cli.views import paper
from smodice_cli.views.diagnostics import LEVELS, findings, verdict
from smodice_cli.views.opened import Facts, Records

ENDINGS = (".h5", ".safetensors", ".json")
SEED_FOLDER = re.compile(r"seed\d+")


def status(folder: Path) -> Records:
    """Every artifact below a folder: kind, whether it and its inputs are intact, key figures."""
    check_folder(folder)
    rows: Records = []
    known: dict[Path, str] = {}
    for path in sorted(folder.rglob("*")):
        hidden = path.name.startswith(".")
        unfinished = hidden and path.name.endswith(".ckpt")
        if not unfinished and (hidden or path.suffix not in ENDINGS or path.name == "summary.json"):
            continue
        if path.parent.name == orders.FOLDER:
            continue
        kind = "checkpoint" if unfinished else "?"
        row: Facts = {"path": str(path.relative_to(folder)), "kind": kind, "seed": "", "seconds": ""}
        try:
            if unfinished:
                found = artifacts.load(path, kind)
                with artifacts.as_expected(found):
                    row["state"] = f"unfinished, at step {found.header.metrics['step']:,}"
            else:
                if exported := choices.made_from(path):
                    rows.append(row | {"kind": "export", "state": exported})
                    continue
                header = artifacts.read_any(path).header
                row |= {"kind": header.kind, "seed": header.seed, "seconds": round(header.seconds, 1)}
                row["state"] = artifacts.staleness(path, header, known) or "ok"
        except SmodiceError as error:
            row["state"] = error.message
        rows.append(row)
    if not rows and not orders.runs_below(folder):
        raise InputError(f"{folder} holds no artifacts", "smodice run RECIPE --out DIR makes some")
    return rows


def left_behind(folder: Path) -> list[str]:
    """What killed processes left in a folder, and `clean` would remove."""
    return [str(path.relative_to(folder)) for path in files.remains(folder)]


def clean(folder: Path) -> list[str]:
    """Remove what killed processes left in a folder; returns what that was."""
    check_folder(folder)
    return [str(path.relative_to(folder)) for path in files.remains(folder) if files.remove_dead(path)]


def check_folder(folder: Path) -> None:
    """Refuse what is no folder."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")


def own_stages() -> list[Stage]:
    """The stages that every seed of a run has for itself, in order."""
    return [stage for stage in STAGES.values() if stage.in_run and not stage.per_run]


def shared_kinds() -> set[str]:
    """The kinds of artifacts that may lie in another method's folder."""
    return {stage.kind for stage in own_stages() if stage.shared}


@dataclass(frozen=True)
class Seed:
    """One seed's chain: the headers by kind, with their places."""

    folder: Path
    places: dict[str, Path]
    headers: dict[str, Header]
    checkpoint: Header | None = None  # of the training that was interrupted, or still runs

    @property
    def number(self) -> int:
        return next(iter([*self.headers.values(), *([self.checkpoint] if self.checkpoint else [])])).seed

    @property
    def unfinished(self) -> str:
        """How far it came, where there is no score; else nothing."""
        if self.checkpoint:
            return f"interrupted in {self.checkpoint.stage} at step {self.checkpoint.metrics['step']:,}"
        if "eval" in self.headers:
            return ""
        return f"no score; ends after {[header.stage for header in self.headers.values()][-1]}"

    @cached_property
    def scores(self) -> dict[str, Any]:
        """The score file's content; empty where there is none."""
        return artifacts.read_payload(self.places["eval"]) if "eval" in self.places else {}

    @property
    def score(self) -> dict[str, Any] | None:
        return self.scores.get("score")

    @property
    def verdict(self) -> str:
        """green, yellow or red: how healthy its weights are; '' where it has none."""
        header = self.headers.get("weights")
        return verdict(findings(header.metrics, header.config)) if header else ""

    @property
    def effective_share(self) -> float | None:
        return self.headers["weights"].metrics.get("effective_share") if "weights" in self.headers else None


@dataclass(frozen=True)
class Run:
    """One recipe's run with one method, an algorithm or a variant of smodice: a dataset and the seeds trained on it."""

    folder: Path
    name: str  # the folder's, with its place where two are called the same
    own: str  # the name of the method's own folder, '' where it has none
    dataset: Header | None
    dataset_path: Path | None
    seeds: list[Seed]

    @property
    def verdicts(self) -> str:
        """What is said of the weights of its seeds, e.g. "green", or "2 green, 1 red"."""
        counts = Counter(seed.verdict for seed in self.seeds if seed.verdict)
        told = [f"{counts[level]} {level}" for level in LEVELS if counts[level]]
        return next(iter(counts)) if len(counts) == 1 else ", ".join(told)

    def header(self, kind: str) -> Header | None:
        """Of the first seed that has an artifact of this kind."""
        return next((seed.headers[kind] for seed in self.seeds if kind in seed.headers), None)

    @property
    def env(self) -> str:
        policy = self.header("policy")
        return self.dataset.config["env"] if self.dataset else policy.metrics["env"] if policy else ""

    @property
    def problem(self) -> str:
        return paper.setting(self.env, self.dataset.config["expert"]) if self.dataset else ""

    @property
    def task(self) -> str:
        """Runs of one task have the same data."""
        return self.dataset.digest if self.dataset else str(self.folder)

    @property
    def algo(self) -> str:
        policy = self.header("policy")
        return policy.config["algo"] if policy else DEFAULT

    @property
    def method(self) -> str:
        name, value = self.own or self.algo, self.header("value")
        if value is None:
            return name
        if value.config.get("estimator") == "returns":
            return f"{name}: trajectory returns"
        f, n, alpha = (value.config.get(setting) for setting in ("f", "n_step", "alpha"))
        return f"{name}: {f}, n = {n}, alpha = {alpha}"


def collect(folders: Sequence[Path]) -> list[Run]:
    """The runs in the folders named: run folders, folders of run folders, or one seed's folder."""
    runs: list[Run] = []
    for folder in folders:
        check_folder(folder)
        found = _runs_below(folder)
        if not found:
            raise InputError(f"{folder} holds no results", "smodice run RECIPE --out DIR makes some")
        runs += found
    names = Counter({run.folder: run.name for run in runs}.values())
    return [replace(run, name=str(run.folder)) if names[run.name] > 1 else run for run in runs]


def _runs_below(folder: Path) -> list[Run]:
    files = [name for stage in own_stages() for name in (stage.file, checkpoint_of(Path(stage.file)).name)]
    places = sorted({path.parent for name in files for path in folder.rglob(name)})
    grouped: dict[tuple[Path, str], list[Seed]] = {}
    for seed in filter(None, map(_seed, places)):
        shared = set(seed.headers) <= shared_kinds() and not seed.checkpoint
        if shared and any(path.is_dir() for path in seed.folder.iterdir()):
            continue  # not a run of smodice's: other methods share this one
        method = "" if SEED_FOLDER.fullmatch(seed.folder.name) else seed.folder.name
        own = seed.folder.parent if method else seed.folder
        inside = SEED_FOLDER.fullmatch(own.name) is not None
        grouped.setdefault((own.parent, method) if inside else (seed.folder, ""), []).append(seed)
    return [_run(*which, sorted(seeds, key=lambda s: s.number)) for which, seeds in sorted(grouped.items())]


def _seed(folder: Path) -> Seed | None:
    places: dict[str, Path] = {}
    headers: dict[str, Header] = {}
    strange: set[str] = set()
    for kind, path in _places(folder):
        if not path.is_file():
            continue
        try:
            header = artifacts.read_any(path).header
        except SmodiceError as error:
            console.warn(f"{error.message}: left out")
            continue
        if header.kind != kind:
            continue
        other = [n for n, link in header.inputs.items() if n in headers and headers[n].digest != link.digest]
        if other:
            console.warn(f"{path} was made from another {other[0]} than {places[other[0]].name} beside it: left out")
        if other or strange & set(header.inputs):
            strange.add(kind)
        else:
            places[kind], headers[kind] = path, header
    checkpoint = _checkpoint(folder)
    return Seed(folder, places, headers, checkpoint) if headers or checkpoint else None


def _checkpoint(folder: Path) -> Header | None:
    """Of the furthest training in a folder that did not end."""
    for stage in reversed(own_stages()):
        if (path := checkpoint_of(folder / stage.file)).is_file():
            with suppress(SmodiceError):
                found = artifacts.load(path, "checkpoint")
                with artifacts.as_expected(found):
                    int(found.header.metrics["step"])
                return found.header
    return None


def _places(folder: Path) -> Iterator[tuple[str, Path]]:
    """Where the artifacts of one seed's chain lie, each after those it is made from."""
    for stage in own_stages():
        out = folder / stage.file
        yield stage.kind, out
        yield from ((kind, stage.companion(out, kind)) for kind in stage.companions)


def _run(folder: Path, own: str, seeds: list[Seed]) -> Run:
    name = folder.resolve().name
    for seed in seeds:
        for kind, header in seed.headers.items():
            if "dataset" not in header.inputs:
                continue
            path = artifacts.linked(seed.places[kind], header.inputs["dataset"])
            try:
                dataset = artifacts.read_header(path)
            except SmodiceError:
                continue
            if dataset.digest == header.inputs["dataset"].digest:
                return Run(folder, name, own, dataset, path, seeds)
    path = folder / maker("dataset").file
    if not any(seed.headers for seed in seeds) and path.is_file():  # interrupted in its first training
        with suppress(SmodiceError):
            return Run(folder, name, own, artifacts.read_header(path), path, seeds)
    return Run(folder, name, own, None, None, seeds)


def training_seconds(path: Path) -> float:
    """How long a policy took with all that it was trained from, the dataset aside, as far as that is there to ask."""
    waiting, seconds, seen = [path], 0.0, {path}
    while waiting:
        place = waiting.pop()
        try:
            header = artifacts.read_header(place)
        except InputError:
            continue
        seconds += header.seconds
        before = {artifacts.linked(place, link) for name, link in header.inputs.items() if name != "dataset"} - seen
        waiting += before
        seen |= before
    return seconds
