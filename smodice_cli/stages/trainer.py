"""The one training loop: steps, learning-rate schedule, log, checkpoints, interruption, divergence.

A checkpoint holds everything the next step depends on (networks, optimiser moments, generator, extra tensors, step), so
a run that was killed and resumed ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam as adam_update

from smodice_cli import artifacts
from smodice_cli.artifacts import Header
from smodice_cli.console import console
from smodice_cli.errors import DivergedError, ForeignFileError, InputError, Interrupted
from smodice_cli.stages.runner import Job, spent

LOG_EVERY = 100  # steps between figures on the bar and in the log
CHECK_EVERY = 500  # steps between looks at held-out data; a multiple of LOG_EVERY
Update = Callable[[int], dict[str, Tensor]]  # one gradient step; the info must hold "loss"
Check = Callable[[int], tuple[dict[str, float], bool]]  # figures on held-out data, and whether to stop


def flatten(parameters: Iterable[nn.Parameter]) -> Tensor:
    """One flat vector that the trained parameters become views of, so that one kernel does where many would."""
    own = _trained(parameters)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in own])
    for parameter, part in zip(own, _parts(flat, own), strict=True):
        parameter.data = part
    return flat


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad]


def _parts(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """The pieces of a flat vector in the shapes of the parameters."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]


class Adam:
    """Adam on a flat vector: torch's own update, without what `torch.optim.Adam` does around it at every step."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        own = _trained(parameters)
        self.lr, self.weight_decay = lr, weight_decay
        self.flat = flatten(own)
        self.gradient = torch.zeros_like(self.flat)
        for parameter, part in zip(own, _parts(self.gradient, own), strict=True):
            parameter.grad = part
        self.moments = {
            "mean": torch.zeros_like(self.flat),
            "square": torch.zeros_like(self.flat),
            "step": torch.zeros((), device=self.flat.device),
        }

    @torch.no_grad()
    def step(self) -> None:
        mean, square, step = self.moments.values()
        adam_update(
            [self.flat],
            [self.gradient],
            [mean],
            [square],
            [],
            [step],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            lr=self.lr,
            weight_decay=self.weight_decay,
        )


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

    modules: dict[str, nn.Module]
    optimisers: dict[str, Adam]
    generator: torch.Generator
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


def _shapes(flat: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in flat.items()}


def _below(flat: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in flat.items() if name.startswith(prefix)}


def prepare(job: Job) -> tuple[torch.Generator, torch.device]:
    """Threads, denormals, and the job's own generator."""
    torch.set_num_threads(job.options.threads)
    torch.set_flush_denormal(True)
    try:
        device = torch.device(job.options.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device '{job.options.device}' cannot be used: {str(error).splitlines()[0]}") from error
    return torch.Generator().manual_seed(job.seed), device


def fit(
    job: Job,
    state: State,
    update: Update,
    *,
    steps: int,
    lr: float,
    schedule: str = "constant",
    shown: tuple[str, ...] = ("loss",),
    check: Check | None = None,
) -> int:
    """Run `update` for the remaining steps and return how many were done.

    `check` is called every CHECK_EVERY steps and at the end; it returns figures and whether to stop early.
    """
    began = time.monotonic() - spent(job)
    start = done = _restore(job, state)
    log = _Log(job.log, start)
    saved = time.monotonic()
    with _stop_requests() as stop, console.progress(job.stage, steps, start) as bar:
        for step in range(start, steps):
            rate = lr * 0.5 * (1 + math.cos(math.pi * step / steps)) if schedule == "cosine" else lr
            for optimiser in state.optimisers.values():
                optimiser.lr = rate
            info = update(step)
            if not math.isfinite(float(info["loss"])):
                raise _diverged(job, step)
            done = step + 1
            halt = False
            if done % LOG_EVERY == 0 or done == steps:
                figures = {name: float(value) for name, value in info.items()}
                if check and (done % CHECK_EVERY == 0 or done == steps):
                    more, halt = check(done)
                    figures |= more
                log.write(done, figures)
                bar.update(done, **{name: figures[name] for name in shown if name in figures})
            if halt:  # before a checkpoint is due: a run resumed after this step would not know that it had ended
                bar.update(steps)
                break
            if stop.requested or time.monotonic() - saved > job.options.checkpoint_every:
                _save(job, state, done, time.monotonic() - began)
                saved = time.monotonic()
            if stop.requested:
                raise Interrupted(f"{job.stage} stopped at step {done:,} of {steps:,}; a checkpoint was written")
    if not state.is_finite():
        raise _diverged(job, done)
    return done


def held_out(episodes: int, share: float, generator: torch.Generator) -> np.ndarray:
    """Which of the trajectories are kept out of training, drawn at random: at least one, if there are two."""
    count = max(1, int(share * episodes)) if share and episodes > 1 else 0
    held = np.zeros(episodes, bool)
    held[torch.randperm(episodes, generator=generator).numpy()[:count]] = True
    return held


def _diverged(job: Job, step: int) -> DivergedError:
    kept = f"the checkpoint before it is kept in {job.checkpoint}" if job.checkpoint.exists() else "nothing was written"
    return DivergedError(
        f"{job.stage}: training became non-finite at step {step:,}; {kept}",
        "try a smaller learning rate (--set lr=1e-4) or a larger alpha, and look at the data with smodice inspect",
    )


# --- checkpoints ---------------------------------------------------------------------------------------------------


def _save(job: Job, state: State, step: int, seconds: float) -> None:
    if not state.is_finite():
        raise _diverged(job, step)  # the checkpoint before this one is the last good one
    header = Header("checkpoint", job.stage, {}, job.seed, key=job.key, metrics={"step": step}, seconds=seconds)
    artifacts.write_safetensors(job.checkpoint, header, state.tensors())


def _restore(job: Job, state: State) -> int:
    if not job.checkpoint.exists() or not job.options.resume:
        return 0
    try:
        checkpoint = artifacts.load(job.checkpoint, "checkpoint")
    except InputError as error:
        console.warn(f"{error.message}: starting from the beginning")
        return 0
    if checkpoint.header.key != job.key:
        console.note(f"{job.stage}: the checkpoint belongs to other settings or inputs: starting from the beginning")
        return 0
    tensors = checkpoint.tensors()
    if _shapes(tensors) != _shapes(state.tensors()):
        console.note(f"{job.stage}: the checkpoint is of another version of smodice: starting from the beginning")
        return 0
    state.restore(tensors)
    step = int(checkpoint.header.metrics["step"])
    console.note(f"{job.stage}: resuming from step {step:,}")
    return step


# --- log -----------------------------------------------------------------------------------------------------------


class _Log:
    """`<artifact>.log.jsonl`: a line of figures every LOG_EVERY steps; on resume, lines after the checkpoint go."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        if not start and path.exists():
            with open(path, "rb") as file:
                if not b'{"step":'.startswith(file.read(8)):
                    raise ForeignFileError(
                        f"{path} exists and is no log of smodice's", "move it away, or choose another --out"
                    )
        lines = path.read_text().splitlines(keepends=True) if start and path.exists() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= start]
        if kept:
            with artifacts.atomic(path) as temporary:
                temporary.write_text("".join(kept))
        else:
            path.unlink(missing_ok=True)

    def write(self, step: int, figures: dict[str, float]) -> None:
        with artifacts.writing(self.path), open(self.path, "a") as file:
            file.write(json.dumps({"step": step, **figures}) + "\n")


# --- interruption --------------------------------------------------------------------------------------------------


class _Stop:
    requested = False


@contextmanager
def _stop_requests() -> Iterator[_Stop]:
    """Ctrl-C and SIGTERM end the run after the current step and a checkpoint; a second Ctrl-C ends it at once."""
    stop = _Stop()

    def request(number: int, frame: object) -> None:
        stop.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
