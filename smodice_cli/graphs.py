"""A gradient step as a CUDA graph: the device is told once what a step does, and then launches all of it at a time.

Small networks keep a processor busier with launching a hundred kernels than a device with running them. A graph reads
and writes the same memory at every launch, so whatever differs from step to step is copied into place first.

Untested on a device: none was at hand. The tests see the rest of it, with a stand-in for the device's recording.
"""

from __future__ import annotations

from collections.abc import Callable

from smodice_cli.console import console
from smodice_cli.lazy import Tensor, torch

WARM = 3  # steps before the recording, as torch asks: libraries choose their kernels in the first
Step = Callable[..., dict[str, Tensor]]
Replay = Callable[[], dict[str, Tensor]]


class Graph:
    """A step that is recorded once and then replayed; `step` takes tensors of the same shapes at every call."""

    def __init__(self, step: Step, record: Callable[[Step, tuple[Tensor, ...]], Replay] | None = None) -> None:
        self.step, self.record = step, record or recorded
        self.calls, self.eager = 0, False
        self.kept: tuple[Tensor, ...] = ()
        self.replay: Replay | None = None

    def __call__(self, *drawn: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        if self.eager or self.calls <= WARM:
            return self.step(*drawn)
        if self.replay is None:
            self.kept = tuple(tensor.clone() for tensor in drawn)
            try:
                self.replay = self.record(self.step, self.kept)
            except RuntimeError as error:
                console.warn(f"the step could not be recorded for the device and runs piece by piece: {error}")
                self.eager = True
                return self.step(*drawn)
        for place, tensor in zip(self.kept, drawn, strict=True):
            place.copy_(tensor, non_blocking=True)
        return {name: figure.clone() for name, figure in self.replay().items()}  # the next launch writes over them


def recorded(step: Step, kept: tuple[Tensor, ...]) -> Replay:
    """Record what a step does with these tensors; nothing runs until the recording is replayed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        figures = step(*kept)

    def replay() -> dict[str, Tensor]:
        graph.replay()
        return figures

    return replay
