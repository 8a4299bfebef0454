"""The one training loop: steps, learning-rate schedule, log, checkpoints, interruption, divergence.

Whatever learns is a `Learner`: the discriminator, V and every policy.

A checkpoint holds everything the next step depends on (networks, optimiser moments, generator, extra tensors, step), so
a run that was killed and resumed ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smodice_cli import artifacts, files, interrupts
from smodice_cli.artifacts import Header
from smodice_cli.config import as_dict
from smodice_cli.console import Progress, console
from smodice_cli.engine import Context
from smodice_cli.errors import DivergedError, ForeignFileError, InputError, Interrupted
from smodice_cli.graphs import Graph
from smodice_cli.lazy import Device, Generator, Tensor, np, torch
from smodice_cli.tracking import Followers

DEVICES = ("cpu", "cuda")
AUTO_DEVICE = "auto"  # cuda where there is one
LOG_EVERY = 100  # steps between figures on the bar and in the log
CHECK_EVERY = 500  # steps between looks at held-out data; a multiple of LOG_EVERY


class Learner:
    """One gradient step and everything that it changes; `config` holds at least `steps` and `lr`.

    Where a step is `draw` and `advance`, a CUDA device can launch the latter as one recorded `graph`.
    """

    config: Any
    state: State
    schedule: str = "constant"  # of the learning rate, or "cosine"
    shown: tuple[str, ...] = ("loss",)  # figures for the progress bar
    notes: tuple[str, ...] = ()  # what whoever trains it should know
    graph: Graph | None = None

    def draw(self, step: int) -> tuple[Tensor, ...]:
        """What differs from step to step: the batch, random numbers. All of it lies where the network does."""
        raise NotImplementedError

    def advance(self, *drawn: Any) -> dict[str, Tensor]:
        """The gradient step itself; the figures hold at least "loss"."""
        raise NotImplementedError

    def update(self, step: int) -> dict[str, Tensor]:
        """Draw, and take a gradient step."""
        drawn = self.draw(step)
        return self.graph(self.advance, *drawn) if self.graph else self.advance(*drawn)

    def record_on(self, device: Device) -> None:
        """Have the steps that follow recorded and launched as one, where the device is CUDA's."""
        self.graph = Graph() if device.type == "cuda" else None

    def check(self) -> tuple[dict[str, float], bool]:
        """Figures on held-out data, and whether to stop."""
        return {}, False


def flatten(parameters: Iterable[torch.nn.Parameter]) -> Tensor:
    """One flat vector that the trained parameters become views of, so that one kernel does where many would."""
    own = [parameter for parameter in parameters if parameter.requires_grad]
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in own])
    _become_views(own, "data", flat)
    return flat


def _become_views(parameters: list[torch.nn.Parameter], attribute: str, flat: Tensor) -> None:
    pieces = flat.split([parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        setattr(parameter, attribute, piece.view_as(parameter))


class Adam:
    """Adam on a flat vector: torch's own update, without what `torch.optim.Adam` does around it at every step."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        from torch.optim.adam import adam

        own = [parameter for parameter in parameters if parameter.requires_grad]
        self.torch_update, self.weight_decay = adam, weight_decay
        self.flat = flatten(own)
        # On a device the rate lies beside the parameters, where a recorded step reads it.
        self.rate: Any = torch.tensor(lr, device=self.flat.device) if self.flat.is_cuda else lr
        self.gradient = torch.zeros_like(self.flat)
        _become_views(own, "grad", self.gradient)
        self.moments = {
            "mean": torch.zeros_like(self.flat),
            "square": torch.zeros_like(self.flat),
            "step": torch.zeros((), device=self.flat.device),
        }

    @property
    def lr(self) -> float:
        return float(self.rate)

    @lr.setter
    def lr(self, rate: float) -> None:
        self.rate = self.rate.fill_(rate) if self.flat.is_cuda else rate

    def step(self) -> None:
        mean, square, step = self.moments.values()
        fixed: Any = {"fused": True, "amsgrad": False, "maximize": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
        state: Any = ([self.flat], [self.gradient], [mean], [square], [], [step])
        with torch.no_grad():
            self.torch_update(*state, **fixed, lr=self.rate, weight_decay=self.weight_decay)


def descend(loss: Tensor, optimisers: Collection[Adam]) -> None:
    """One step of every optimiser; gradients are cleared in place, because the parameters' own are views of them."""
    for optimiser in optimisers:
        optimiser.gradient.zero_()
    loss.backward()
    for optimiser in optimisers:
        optimiser.step()


@dataclass
class State:
    """What training changes, all of it: saved together, restored together."""

    modules: dict[str, torch.nn.Module]
    optimisers: dict[str, Adam]
    generator: Generator
    extra: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        flat = {f"extra/{name}": tensor for name, tensor in self.extra.items()}
        flat["generator"] = self.generator.get_state()
        for name, module in self.modules.items():
            flat |= {f"module/{name}/{key}": tensor for key, tensor in module.state_dict().items()}
        for name, optimiser in self.optimisers.items():
            flat |= {f"optimiser/{name}/{key}": tensor for key, tensor in optimiser.moments.items()}
        return flat

    def is_finite(self) -> bool:
        """Whether every parameter is a number: a loss can be finite while the step after it is not."""
        parameters = (parameter for module in self.modules.values() for parameter in module.parameters())
        return all(bool(parameter.isfinite().all()) for parameter in parameters)

    def restore(self, flat: dict[str, Tensor]) -> None:
        self.generator.set_state(flat["generator"])
        for name, tensor in self.extra.items():
            tensor.copy_(flat[f"extra/{name}"])
        for name, module in self.modules.items():
            module.load_state_dict(_below(flat, f"module/{name}/"))
        for name, optimiser in self.optimisers.items():
            for key, tensor in _below(flat, f"optimiser/{name}/").items():
                optimiser.moments[key].copy_(tensor)


def _below(flat: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in flat.items() if name.startswith(prefix)}


def prepare(context: Context) -> tuple[Generator, Device]:
    """Threads and denormals, until the stage has ended; the device, and a generator of one's own."""
    options = context.options
    context.stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(options.threads)
    context.stack.callback(torch.set_flush_denormal, False)
    torch.set_flush_denormal(True)
    name = options.device
    if name == AUTO_DEVICE:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in DEVICES:
            raise RuntimeError("training runs on cpu or cuda")
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        there = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
        raise InputError(f"device '{options.device}' cannot be used here", f"there is: {there}") from error
    return torch.Generator().manual_seed(context.seed), device


def fit(learner: Learner, context: Context | None = None) -> int:
    """Train for the remaining steps and return how many were done; without a context nothing is written or shown.

    `check` is called every CHECK_EVERY steps and at the end.
    """
    steps, lr, state = learner.config.steps, learner.config.lr, learner.state
    keeper = _Keeper(context, learner) if context else None
    start = done = keeper.restore() if keeper else 0
    losses: list[Tensor] = []  # that nobody has looked at: a look makes a device wait
    with keeper.watched(steps, start) if keeper else nullcontext((_Stop(), Progress())) as (stop, bar):
        for step in range(start, steps):
            rate = lr * 0.5 * (1 + math.cos(math.pi * step / steps)) if learner.schedule == "cosine" else lr
            for optimiser in state.optimisers.values():
                optimiser.lr = rate
            info = learner.update(step)
            losses.append(info["loss"])
            done, halt = step + 1, False
            if done % LOG_EVERY == 0 or done == steps:
                _refuse_divergence(losses, done, context)
                figures = {name: float(value) for name, value in info.items()}
                if done % CHECK_EVERY == 0 or done == steps:
                    more, halt = learner.check()
                    figures |= more
                if keeper:
                    keeper.write(done, figures)
                bar.update(done, **{name: figures[name] for name in learner.shown if name in figures})
            if halt:  # before a checkpoint is due: a run resumed after this step would not know that it had ended
                bar.update(steps)
                break
            if keeper and (stop.requested or keeper.is_due()):
                _refuse_divergence(losses, done, context)
                keeper.save(done)
                if stop.requested:
                    raise Interrupted(f"{keeper.stage} stopped at step {done:,} of {steps:,}; a checkpoint was written")
    if not state.is_finite():
        raise _diverged(done, context)
    return done


def _refuse_divergence(losses: list[Tensor], done: int, context: Context | None) -> None:
    """Look at the losses of the latest steps, of which `done` were done in all, and forget them."""
    if losses and not (finite := torch.stack(losses).isfinite()).all():
        raise _diverged(done - len(losses) + int(finite.int().argmin()), context)
    losses.clear()


def _diverged(step: int, context: Context | None) -> DivergedError:
    kept = "nothing was written"
    if context and context.checkpoint.exists():
        kept = f"the checkpoint before it is kept in {context.checkpoint}"
    return DivergedError(
        f"{context.stage.name if context else 'training'}: training became non-finite at step {step:,}; {kept}",
        "try a smaller learning rate (--set lr=1e-4) or a larger alpha, and look at the data with smodice inspect",
    )


def held_out(episodes: int, share: float, generator: Generator) -> np.ndarray:
    """Which of the trajectories are kept out of training, drawn at random: at least one, if there are two."""
    count = max(1, int(share * episodes)) if share and episodes > 1 else 0
    held = np.zeros(episodes, bool)
    held[torch.randperm(episodes, generator=generator).numpy()[:count]] = True
    return held


# --- what is kept of a training ------------------------------------------------------------------------------------


class _Keeper:
    """The checkpoint, the log and the progress bar of a stage."""

    def __init__(self, context: Context, learner: Learner) -> None:
        self.context, self.state, self.stage = context, learner.state, context.stage.name
        self.began = time.monotonic() - context.seconds_before()
        for note in learner.notes:
            console.note(f"{self.stage}: {note}")

    def restore(self) -> int:
        """Take the state of a checkpoint of this very run, if there is one; returns its step."""
        step = self._restored()
        self.lines = _Log(self.context.log, step)
        own = self.context
        self.followers = Followers(own.options.track, own.out, as_dict(own.config), step)
        self.saved = time.monotonic()
        return step

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Figures go to the log, and from there to whoever follows the training."""
        self.lines.write(step, figures)
        self.followers.write(step, figures)

    def _restored(self) -> int:
        place, again = self.context.checkpoint, "starting from the beginning"
        if not place.exists() or not self.context.options.resume:
            return 0
        try:
            checkpoint = artifacts.load(place, "checkpoint")
        except InputError as error:
            console.warn(f"{error.message}: {again}")
            return 0
        if checkpoint.header.key != self.context.key:
            console.note(f"{self.stage}: the checkpoint belongs to other settings or inputs: {again}")
            return 0
        tensors = checkpoint.tensors()
        shapes = [{name: tensor.shape for name, tensor in flat.items()} for flat in (tensors, self.state.tensors())]
        if shapes[0] != shapes[1]:
            console.note(f"{self.stage}: the checkpoint is of another version of smodice: {again}")
            return 0
        self.state.restore(tensors)
        step = int(checkpoint.header.metrics["step"])
        console.note(f"{self.stage}: resuming from step {step:,}")
        return step

    @contextmanager
    def watched(self, steps: int, start: int) -> Iterator[tuple[_Stop, Progress]]:
        try:
            with _stop_requests() as stop, console.progress(self.stage, steps, start) as bar:
                yield stop, bar
        finally:
            self.followers.close()

    def is_due(self) -> bool:
        return time.monotonic() - self.saved > self.context.options.checkpoint_every

    def save(self, step: int) -> None:
        if not self.state.is_finite():
            raise _diverged(step, self.context)  # the checkpoint before this one is the last good one
        own, seconds = self.context, time.monotonic() - self.began
        header = Header("checkpoint", self.stage, {}, own.seed, key=own.key, metrics={"step": step}, seconds=seconds)
        artifacts.write_safetensors(own.checkpoint, header, self.state.tensors())
        self.saved = time.monotonic()


# --- log -----------------------------------------------------------------------------------------------------------


class _Log:
    """`<artifact>.log.jsonl`: a line of figures every LOG_EVERY steps; on resume, lines after the checkpoint go."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        if path.exists() and not path.is_file():
            raise ForeignFileError(f"{path}, where the log goes, is no regular file", "choose another --out")
        if not start and path.exists():
            with open(path, "rb") as file:
                if not b'{"step":'.startswith(file.read(8)):
                    raise ForeignFileError(
                        f"{path} exists and is no log of smodice's", "move it away, or choose another --out"
                    )
        lines = path.read_text(errors="replace").splitlines(keepends=True) if start and path.exists() else []
        kept = [line for line in lines if line.endswith("\n") and 0 < _step(line) <= start]
        if kept:
            with files.atomic(path) as temporary:
                temporary.write_text("".join(kept))
        else:
            path.unlink(missing_ok=True)

    def write(self, step: int, figures: dict[str, float]) -> None:
        with files.writing(self.path), open(self.path, "a") as file:
            file.write(json.dumps({"step": step, **figures}) + "\n")


def _step(line: str) -> int:
    """The step that a line of the log is about; 0 where it is damaged."""
    try:
        found = json.loads(line)["step"]
        return found if isinstance(found, int) else 0
    except (ValueError, LookupError, TypeError, RecursionError):
        return 0


# --- interruption --------------------------------------------------------------------------------------------------


class _Stop:
    requested = False  # a plain mark: a handler that is itself interrupted must not wait for a lock


@contextmanager
def _stop_requests() -> Iterator[_Stop]:
    """Ctrl-C, SIGTERM and SIGUSR1 end the run after this step and a checkpoint; a second Ctrl-C ends it at once."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield stop
        return

    def request(number: int, frame: object) -> None:
        stop.requested = True
        interrupts.note(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, request) for number in interrupts.SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
