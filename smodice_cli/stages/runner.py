"""What every stage does around its work: find inputs, decide whether to run, lock, write, report.

inputs -> cache key -> cached? -> lock -> work -> artifact (atomic) -> checkpoint removed
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.artifacts import Artifact, Header, Link
from smodice_cli.config import as_dict
from smodice_cli.console import console
from smodice_cli.errors import ForeignFileError, InputError, UsageError

# A stage that comes to compute something else from the same settings gets a new number, so that what it made before is
# not taken for what it would make now; select-f, which trains V, along with train-value.
REVISIONS = {"train-value": 4, "train-policy": 2, "select-f": 3}


NETWORKS = ("disc", "value", "policy")  # kinds of artifacts whose names others are made from


@dataclass(frozen=True)
class Options:
    """Flags every stage shares; none of them changes what is computed."""

    force: bool = False
    resume: bool = True
    dry_run: bool = False
    threads: int = 1
    device: str = "cpu"
    checkpoint_every: float = 20.0


@dataclass(frozen=True)
class Result:
    """What a stage did: where the artifact is, and whether and why it ran."""

    path: Path
    header: Header | None
    status: str  # "cached" | "done" | "would run"
    reason: str

    def summary(self) -> dict[str, Any]:
        head = self.header
        return {
            "path": str(self.path),
            "status": self.status,
            "reason": self.reason,
            **({"digest": head.digest, "seconds": head.seconds, "metrics": head.metrics} if head else {}),
        }


@dataclass(frozen=True)
class Job:
    """One stage about to run: its name, its output and everything that determines it."""

    stage: str
    kind: str
    out: Path
    config: Any
    seed: int
    inputs: Mapping[str, Artifact] = field(default_factory=dict)
    options: Options = Options()
    files: Mapping[str, Link] = field(default_factory=dict)  # inputs that are no artifacts: a user's data, say
    beside: Mapping[str, Path] = field(default_factory=dict)  # further artifacts this job writes, by kind

    @property
    def digests(self) -> dict[str, str]:
        """Content digests of everything this job reads."""
        files = {name: link.digest for name, link in self.files.items()}
        return files | {name: artifact.header.digest for name, artifact in self.inputs.items()}

    @property
    def key(self) -> str:
        stage = f"{self.stage} {REVISIONS[self.stage]}" if self.stage in REVISIONS else self.stage
        return artifacts.cache_key(stage, as_dict(self.config), self.seed, self.digests)

    @property
    def checkpoint(self) -> Path:
        return self.out.with_name(f".{self.out.name}.ckpt")

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".log.jsonl")

    def header(self, **extra: Any) -> Header:
        """The header of this job's artifact; `extra` adds metrics, notes, outputs, seconds."""
        links = {name: artifact.link(self.out.parent) for name, artifact in self.inputs.items()} | dict(self.files)
        return Header(self.kind, self.stage, as_dict(self.config), self.seed, links, key=self.key, **extra)


Work = Callable[[Job, float], Header]  # does the work and writes the artifact; the float is the start time


def run(job: Job, work: Work) -> Result:
    """Run a stage unless its artifact is already there; says why."""
    for path in (job.out, *job.beside.values()):
        artifacts.refuse_folder(path)
    if job.kind in NETWORKS and job.out.suffix != ".safetensors":
        raise UsageError(f"--out {job.out}: the name of a {job.kind} ends in .safetensors")
    _refuse_own_input(job)
    reason = why(job)
    if job.options.dry_run:
        return Result(job.out, None, "would run" if reason else "cached", reason or "nothing changed")
    if not reason:
        return _cached(job)
    with artifacts.locked(job.out, lambda pid: console.note(f"{job.out} is being made by process {pid}: waiting")):
        reason = why(job)  # another process may have made it while we waited
        if not reason:
            return _cached(job)
        for path in (job.out, *job.beside.values()):
            artifacts.remove_remains(path)
        console.note(f"{job.stage}: {reason}")
        header = work(job, time.monotonic() - spent(job))
        job.checkpoint.unlink(missing_ok=True)
    return Result(job.out, header, "done", reason)


def _refuse_own_input(job: Job) -> None:
    places = {name: artifact.path for name, artifact in job.inputs.items()}
    places |= {name: job.out.parent / link.path for name, link in job.files.items()}
    for name, place in places.items():
        if place.resolve() in [path.resolve() for path in (job.out, *job.beside.values())]:
            raise UsageError(f"{place} is this stage's {name}: it cannot be its output too", "choose another --out")


def spent(job: Job) -> float:
    """The seconds that the run took up to the checkpoint it goes on from."""
    header = _own_checkpoint(job) if job.options.resume else None
    return header.seconds if header else 0.0


def _own_checkpoint(job: Job) -> Header | None:
    try:
        header = artifacts.read_header(job.checkpoint)
    except InputError:
        return None
    return header if header.key == job.key else None


def _cached(job: Job) -> Result:
    if _own_checkpoint(job):
        job.checkpoint.unlink(missing_ok=True)  # killed after the artifact was written and before this
    return Result(job.out, artifacts.read_header(job.out), "cached", "nothing changed")


def why(job: Job) -> str:
    """The reason to run, or '' if the artifact at the output is exactly what this job would make."""
    if job.options.force:
        return "--force was given"
    there = {path: artifacts.peek(path) for path in (job.out, *job.beside.values())}
    for (path, found), kind in zip(there.items(), (job.kind, *job.beside), strict=True):
        if found and found.header.kind != kind:
            raise ForeignFileError(
                f"{path} holds a {found.header.kind}, not a {kind}",
                "choose another --out, or overwrite it with --force",
            )
    present = there[job.out]
    if present is None:
        return f"{job.out.name} does not exist yet"
    if present.header.key != job.key:
        return _difference(job, present.header)
    if not artifacts.is_whole(present):
        return f"{job.out.name} does not match its digest"
    for name, link in present.header.outputs.items():
        beside = artifacts.peek(job.out.parent / link.path)
        if beside is None or not artifacts.is_whole(beside) or beside.header.digest != link.digest:
            return f"{link.path}, its {name}, is missing or changed"
    if _own_checkpoint(job) and job.checkpoint.stat().st_mtime_ns > job.out.stat().st_mtime_ns:
        return "a run of it with --force was not finished"
    return ""


def _difference(job: Job, old: Header) -> str:
    new_config = as_dict(job.config)
    for name in sorted({*new_config, *old.config}):
        before, now = (config.get(name, "its default") for config in (old.config, new_config))
        if before != now:
            return f"{name} changed from {before} to {now}"
    for name, digest in job.digests.items():
        if name not in old.inputs or old.inputs[name].digest != digest:
            return f"its {name} changed"
    if old.seed != job.seed:
        return f"the seed changed from {old.seed} to {job.seed}"
    return "it was made by another version of this stage"
