"""What every stage does around its work: find inputs, decide whether to run, lock, work, write.

inputs -> cache key -> cached? -> lock -> work -> artifacts (atomic) -> checkpoint removed
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from smodice_cli import artifacts, files
from smodice_cli.artifacts import Artifact, Header, Link
from smodice_cli.config import Config as BaseConfig
from smodice_cli.config import as_dict
from smodice_cli.console import console
from smodice_cli.errors import ForeignFileError, InputError, UsageError

MAX_SEED = 2**32 - 1  # what every generator takes
MAX_THREADS = 256  # torch takes any number, and crashes
OTHER_KINDS: dict[type, tuple[type, ...]] = {float: (float, int), tuple: (tuple, list)}  # of options


@dataclass(frozen=True)
class Options:
    """Flags every stage shares; none of them changes what is computed."""

    force: bool = False
    resume: bool = True
    dry_run: bool = False
    only_cached: bool = False  # leave what would have to run
    owned: bool = False  # nobody else makes the same artifacts, so no locks: other machines may not see them
    threads: int = 1
    device: str = "cpu"
    checkpoint_every: float = 20.0
    track: str = ""  # trackers that are told of a training's figures, e.g. tensorboard,wandb
    env: str = ""  # an environment that the user named, beside the one in a file's header
    sha256: tuple[str, ...] = ()  # what downloaded files must be, NAME=SUM

    def __post_init__(self) -> None:
        for own in fields(self):
            kinds = OTHER_KINDS.get(type(own.default), (type(own.default),))
            if type(value := getattr(self, own.name)) not in kinds:
                raise UsageError(f"options: {own.name} = {value!r} must be of type {kinds[0].__name__}")
        if not 1 <= self.threads <= MAX_THREADS or not self.checkpoint_every >= 0:
            raise UsageError(f"options: threads are 1 to {MAX_THREADS}, and checkpoint_every is not negative")


def check_seed(seed: Any) -> int:
    """Refuse what no generator takes for a seed."""
    if not hasattr(seed, "__index__") or isinstance(seed, bool) or not 0 <= operator.index(seed) <= MAX_SEED:
        raise UsageError(f"seed {seed!r} is no whole number from 0 to {MAX_SEED}")
    return operator.index(seed)


def checkpoint_of(out: Path) -> Path:
    """Where the unfinished training of an artifact is kept."""
    return out.with_name(f".{out.name}.ckpt")


@dataclass(frozen=True)
class Result:
    """What a stage did: where the artifact is, and whether and why it ran."""

    path: Path
    header: Header | None
    status: str  # "cached" | "done" | "would run"
    reason: str

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Result({self.status}: {self.path})"

    @property
    def metrics(self) -> dict[str, Any]:
        """The figures in the artifact's header: of a policy's evaluation, its score."""
        return dict(self.header.metrics) if self.header else {}

    @property
    def seconds(self) -> float:
        """How long it took to make."""
        return self.header.seconds if self.header else 0.0

    def summary(self) -> dict[str, Any]:
        head = self.header
        return {
            "path": str(self.path),
            "status": self.status,
            "reason": self.reason,
            **({"digest": head.digest, "seconds": head.seconds, "metrics": head.metrics} if head else {}),
        }


@dataclass(frozen=True)
class Output:
    """What a stage made, before it is written: tensors, arrays or JSON members, as the file's ending says."""

    payload: Mapping[str, Any]
    metrics: dict[str, Any]
    notes: Sequence[str] = ()
    kind: str = ""  # of a companion; the stage's own where empty


class Stage:
    """One step of the pipeline: a subcommand that reads artifacts and writes one, perhaps with companions beside it.

    A stage declares itself by these attributes; the command line, `run`, `status`, `inspect` and `report` read them.
    """

    name: ClassVar[str]  # the subcommand
    kind: ClassVar[str]  # of the artifact it makes
    file: ClassVar[str]  # what that is usually called
    section: ClassVar[str] = ""  # of a recipe, with its settings
    flag: ClassVar[str] = ""  # by which later stages take its artifact; its kind where empty
    Config: ClassVar[type[BaseConfig]] = BaseConfig
    companions: ClassVar[Mapping[str, str]] = {}  # kind -> usual name; one that starts with a dot is an ending
    hands_on: ClassVar[str] = ""  # the companion that later stages read instead of the artifact itself
    by_algorithm: ClassVar[bool] = False  # an algorithm may have settings of its own in the section
    shared: ClassVar[bool] = False  # algorithms that leave its settings alone have one artifact in common
    in_run: ClassVar[bool] = True  # whether `smodice run` does it where its input is there
    per_run: ClassVar[bool] = False  # once for all algorithms and seeds of a run
    simulates: ClassVar[bool] = False  # its threads are processes, as many as there are cores
    films: ClassVar[bool] = False  # its command can also film an episode
    curves: ClassVar[Sequence[tuple[str, str]]] = ()  # figures of its log that a report draws, with their titles
    revision: ClassVar[int] = 1  # a new one for a stage that comes to compute something else from the same settings
    help: ClassVar[str] = ""  # of its command; one without help has a command of another kind
    examples: ClassVar[Sequence[str]] = ()

    def starts_from(self, algo: str) -> str:
        """The kind of artifact it starts from with this algorithm; empty where it starts from none."""
        return ""

    def config_of(self, algo: str) -> type[BaseConfig]:
        """The class of its settings with this algorithm."""
        return self.Config

    def check_chain(self, algo: str, configs: Mapping[str, Any]) -> None:
        """Refuse settings that do not go with those of the stages before it; `configs` are the chain's, by section."""

    def place(self, start: Path | None, config: Any, folder: Path) -> Path:
        """Where its artifact lies unless another place is named; `folder` is the algorithm's."""
        return folder / self.file

    def companion(self, out: Path, kind: str) -> Path:
        """Where a companion of `out` lies: value.safetensors -> weights.h5, x.safetensors -> x.weights.h5."""
        return beside(out, self.file, self.companions[kind])

    def settle(self, start: Path | None, config: Any, seed: int, options: Options) -> Any:
        """The config with what is left open decided; None in a dry run that would have to find out first."""
        return config

    def prepare(self, context: Context, start: Path | None) -> Context:
        """Find the inputs and refuse what cannot work, before anything runs."""
        assert start is not None
        found = self.inputs(start, context.config)
        self.check_inputs(found, context.options)
        return replace(context, inputs=found)

    def inputs(self, start: Path, config: Any) -> dict[str, Artifact]:
        """What it reads, found from the artifact that it starts from."""
        return with_dataset(artifacts.load(start, self.starts_from(getattr(config, "algo", ""))))

    def check_inputs(self, found: Mapping[str, Artifact], options: Options) -> None:
        """Refuse inputs that are whole and still cannot be worked with."""

    def writes(self, config: Any) -> Sequence[str]:
        """The companions that it writes with these settings."""
        return list(self.companions)

    def work(self, context: Context) -> list[Output]:
        """Do it: the stage's own output first, companions after it."""
        raise NotImplementedError

    def tell(self, header: Header) -> tuple[dict[str, Any], list[str]]:
        """What its command adds to the result: members for --json, and lines for people."""
        return {}, []


def with_dataset(first: Artifact) -> dict[str, Artifact]:
    """An artifact beside the dataset that it was made from, by kind."""
    kind = first.header.kind
    return {kind: first} | ({} if kind == "dataset" else {"dataset": artifacts.follow(first, "dataset", "dataset")})


def beside(path: Path, usual: str, name: str) -> Path:
    """The file that goes with `path`: plainly named beside a usual name, with the stem of any other."""
    if name.startswith("."):
        return path.with_suffix(name)
    return path.with_name(name if path.stem == Path(usual).stem else f"{path.stem}.{name}")


@dataclass(frozen=True)
class Context:
    """One stage about to run: its output and everything that determines it."""

    stage: Stage
    out: Path
    config: Any
    seed: int
    options: Options = Options()
    inputs: Mapping[str, Artifact] = field(default_factory=dict)
    links: Mapping[str, Link] = field(default_factory=dict)  # inputs that are no artifacts: a user's data, say
    opened: Any = None  # whatever `prepare` has opened for `work`
    ahead: Any = None  # what a chain's stages do for each other before their turn; it changes no result
    stack: ExitStack = field(default_factory=ExitStack)  # closes it in the end

    @property
    def digests(self) -> dict[str, str]:
        """Content digests of everything it reads."""
        other = {name: link.digest for name, link in self.links.items()}
        return other | {name: artifact.header.digest for name, artifact in self.inputs.items()}

    @property
    def key(self) -> str:
        """The hash of all that determines its output."""
        stage, config = f"{self.stage.name} {self.stage.revision}", as_dict(self.config)
        return artifacts.hash_of(stage=stage, config=config, seed=self.seed, inputs=self.digests)

    @property
    def outputs(self) -> dict[str, Path]:
        """Every artifact it writes, by kind."""
        beside = {kind: self.stage.companion(self.out, kind) for kind in self.stage.writes(self.config)}
        return {self.stage.kind: self.out, **beside}

    @property
    def checkpoint(self) -> Path:
        return checkpoint_of(self.out)

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".log.jsonl")

    def header(self, kind: str, **extra: Any) -> Header:
        """The header of one of its artifacts; `extra` adds metrics, notes, outputs, seconds."""
        inputs = {name: artifact.link(self.out.parent) for name, artifact in self.inputs.items()} | dict(self.links)
        return Header(kind, self.stage.name, as_dict(self.config), self.seed, inputs, key=self.key, **extra)

    def scratch(self) -> Path:
        """A folder beside the output that goes when the stage has ended."""
        return self.stack.enter_context(files.scratch(self.out))

    def seconds_before(self) -> float:
        """The seconds that the run took up to the checkpoint it goes on from."""
        header = self.own_checkpoint() if self.options.resume else None
        return header.seconds if header else 0.0

    def own_checkpoint(self) -> Header | None:
        """The header of the checkpoint of this very run, if there is one."""
        try:
            header = artifacts.read_header(self.checkpoint)
        except InputError:
            return None
        return header if header.key == self.key else None


def make(
    stage: Stage,
    start: Path | None,
    out: Path,
    config: Any,
    seed: int = 0,
    options: Options | None = None,
    ahead: Any = None,
) -> Result:
    """Make the artifact of a stage unless it is already there; says why. `start` is the artifact it starts from."""
    options = options or Options()
    with ExitStack() as stack:
        settled = stage.settle(start, config, seed, options)
        if settled is None:
            return Result(out, None, "would run", "its settings are decided first")
        settled.check()
        context = stage.prepare(Context(stage, out, settled, seed, options, stack=stack, ahead=ahead), start)
        _check_outputs(context)
        reason = why(context)
        if options.dry_run:
            return Result(out, None, "would run" if reason else "cached", reason or "nothing changed")
        if not reason:
            return _cached(context)
        if options.only_cached:
            return Result(out, None, "would run", reason)
        with _held(out, options), stack:
            reason = why(context)  # another process may have made it while we waited
            if not reason:
                return _cached(context)
            for path in (*context.outputs.values(), context.log):
                files.remove_remains(path)
            console.note(f"{stage.name}: {reason}")
            began = time.monotonic() - context.seconds_before()
            header = _write(context, stage.work(context), began)
            context.checkpoint.unlink(missing_ok=True)
        return Result(out, header, "done", reason)


def _held(out: Path, options: Options) -> AbstractContextManager[None]:
    """The right to make `out`: its lock, or the word of whoever gave the order."""
    if not options.owned:
        return files.locked(out, lambda pid: console.note(f"{out} is being made by process {pid}: waiting"))
    with files.writing(out):
        files.make_folder(out.parent)
    return nullcontext()


def _write(context: Context, made: Sequence[Output], began: float) -> Header:
    """Companions first: the stage's own artifact, which names them, is what makes the work count as done."""
    seconds, stage = time.monotonic() - began, context.stage
    names = {stage.kind: stage.file, **stage.companions}
    links: dict[str, Link] = {}
    for output in reversed(made):
        kind = output.kind or stage.kind
        extra = {"outputs": links} if kind == stage.kind else {}
        header = context.header(kind, metrics=output.metrics, notes=list(output.notes), seconds=seconds, **extra)
        path = context.outputs[kind]
        header = artifacts.write(path, header, output.payload, Path(names[kind]).suffix)
        links[kind] = Link(path.name, header.digest)
    return header


def _check_outputs(context: Context) -> None:
    """Refuse to write where a folder or an input is, or networks under another ending than theirs."""
    for path in context.outputs.values():
        artifacts.refuse_folder(path)
    if context.stage.file.endswith(".safetensors") and context.out.suffix != ".safetensors":
        raise UsageError(f"--out {context.out}: the name of a {context.stage.kind} ends in .safetensors")
    places = {name: artifact.path for name, artifact in context.inputs.items()}
    places |= {name: context.out.parent / link.path for name, link in context.links.items()}
    for name, place in places.items():
        if os.path.realpath(place) in [os.path.realpath(path) for path in context.outputs.values()]:
            raise UsageError(f"{place} is this stage's {name}: it cannot be its output too", "choose another --out")


def _cached(context: Context) -> Result:
    if context.own_checkpoint():
        context.checkpoint.unlink(missing_ok=True)  # killed after the artifact was written and before this
    for path in (*context.outputs.values(), context.log):
        files.remove_remains(path)
    return Result(context.out, artifacts.read_header(context.out), "cached", "nothing changed")


def why(context: Context) -> str:
    """The reason to run, or '' if the artifact at the output is exactly what this run would make."""
    if context.options.force:
        return "--force was given"
    there = {kind: (path, artifacts.peek(path)) for kind, path in context.outputs.items()}
    for kind, (path, found) in there.items():
        if found and found.header.kind != kind:
            raise ForeignFileError(
                f"{path} holds an artifact of the kind {found.header.kind}, not {kind}",
                "choose another --out, or overwrite it with --force",
            )
    out, present = there[context.stage.kind]
    if present is None:
        return f"{out.name} does not exist yet"
    if present.header.key != context.key:
        return _difference(context, present.header)
    if not present.is_whole():
        return f"{out.name} does not match its digest"
    for name, link in present.header.outputs.items():
        companion = artifacts.peek(out.parent / link.path)
        if companion is None or not companion.is_whole() or companion.header.digest != link.digest:
            return f"{link.path}, its {name}, is missing or changed"
    if context.own_checkpoint() and context.checkpoint.stat().st_mtime_ns > out.stat().st_mtime_ns:
        return "a run of it with --force was not finished"
    return ""


def _difference(context: Context, old: Header) -> str:
    new_config = as_dict(context.config)
    for name in sorted({*new_config, *old.config}):
        before, now = (config.get(name, "its default") for config in (old.config, new_config))
        if before != now:
            was, is_now = ("nothing" if value in ("", []) else value for value in (before, now))
            return f"{name} changed from {was} to {is_now}"
    for name, digest in context.digests.items():
        if name not in old.inputs or old.inputs[name].digest != digest:
            return f"its {name} changed"
    if old.seed != context.seed:
        return f"the seed changed from {old.seed} to {context.seed}"
    return "it was made by another version of this stage"
