"""Finished runs as they lie in folders: the seeds of each recipe and method, their headers, scores and data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.artifacts import Header
from smodice_cli.console import console
from smodice_cli.errors import InputError, SmodiceError
from smodice_cli.stages import paper

KINDS = ("disc", "value", "weights", "policy", "eval")
SEED_FOLDER = re.compile(r"seed\d+")


@dataclass(frozen=True)
class Seed:
    """One seed's chain: the headers by kind, with their places."""

    folder: Path
    places: dict[str, Path]
    headers: dict[str, Header]

    @property
    def number(self) -> int:
        return next(iter(self.headers.values())).seed

    @cached_property
    def scores(self) -> dict[str, Any]:
        """The score file's content; empty where there is none."""
        return artifacts.read_payload(self.places["eval"]) if "eval" in self.places else {}

    @property
    def algo(self) -> str:
        return self.headers["policy"].config.get("algo", "smodice") if "policy" in self.headers else "smodice"

    @property
    def score(self) -> dict[str, Any] | None:
        return self.scores.get("score")


@dataclass(frozen=True)
class Run:
    """One recipe's run with one method, an algorithm or a variant of smodice: a dataset and the seeds trained on it."""

    folder: Path
    own: str  # the name of the method's own folder, '' where it has none
    dataset: Header | None
    dataset_path: Path | None
    seeds: list[Seed]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def env(self) -> str:
        if self.dataset:
            return self.dataset.config["env"]
        return next((s.headers["policy"].metrics["env"] for s in self.seeds if "policy" in s.headers), "")

    @property
    def problem(self) -> str:
        return paper.setting(self.env, self.dataset.config["expert"]) if self.dataset else ""

    @property
    def algo(self) -> str:
        return next((seed.algo for seed in self.seeds if "policy" in seed.headers), "smodice")

    @property
    def method(self) -> str:
        name = self.own or self.algo
        value = next((seed.headers["value"] for seed in self.seeds if "value" in seed.headers), None)
        if value is None:
            return name
        config = value.config
        if config.get("estimator") == "returns":
            return f"{name}: trajectory returns"
        return f"{name}: {config.get('f')}, n = {config.get('n_step')}, alpha = {config.get('alpha')}"


def collect(folders: Sequence[Path]) -> list[Run]:
    """The runs in the folders named: run folders, folders of run folders, or one seed's folder."""
    runs: list[Run] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder")
        found = _runs_below(folder)
        if not found:
            raise InputError(f"{folder} holds no results", "smodice run RECIPE --out DIR makes some")
        runs += found
    return runs


def _runs_below(folder: Path) -> list[Run]:
    chains = [seed for path in _seed_folders(folder) if (seed := _seed(path))]
    grouped: dict[tuple[Path, str], list[Seed]] = {}
    for seed in chains:
        if set(seed.headers) == {"disc"} and any(path.is_dir() for path in seed.folder.iterdir()):
            continue  # not a run of smodice's: other methods share this discriminator
        method = "" if SEED_FOLDER.fullmatch(seed.folder.name) else seed.folder.name
        own = seed.folder.parent if method else seed.folder
        inside = SEED_FOLDER.fullmatch(own.name) is not None
        grouped.setdefault((own.parent, method) if inside else (seed.folder, ""), []).append(seed)
    return [_run(*which, sorted(seeds, key=lambda s: s.number)) for which, seeds in sorted(grouped.items())]


def _seed_folders(folder: Path) -> list[Path]:
    named = ("disc.safetensors", "value.safetensors", "policy.safetensors", "eval.json")
    return sorted({path.parent for name in named for path in folder.rglob(name)})


def _seed(folder: Path) -> Seed | None:
    names = {kind: f"{kind}.safetensors" for kind in ("disc", "value", "policy")}
    names |= {"weights": "weights.h5", "eval": "eval.json"}
    places: dict[str, Path] = {}
    headers: dict[str, Header] = {}
    strange: set[str] = set()
    for kind in KINDS:  # each after its inputs
        path = folder / names[kind]
        if not path.is_file():
            continue
        try:
            header = artifacts.read_header(path)
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
    return Seed(folder, places, headers) if headers else None


def _run(folder: Path, own: str, seeds: list[Seed]) -> Run:
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
                return Run(folder, own, dataset, path, seeds)
    return Run(folder, own, None, None, seeds)
