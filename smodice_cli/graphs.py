"""A gradient step as a CUDA graph: the device is told once what a step does, and then launches all of it at a time.

Small networks keep a processor busier with launching a hundred kernels than a device with running them. A graph reads
and writes the same memory at every launch, and numbers of Python's are fixed in it, so whatever differs from step to
step is a tensor that is copied into place first.

Untested on a device: none was at hand. A run that is resumed there takes its first steps kernel by kernel, so that its
last bits may be others.
"""

from __future__ import annotations

from collections.abc import Callable

from smodice_cli.console import console
from smodice_cli.lazy import Tensor, torch

WARM = 3  # steps before the recording: libraries choose their kernels in the first
Step = Callable[..., dict[str, Tensor]]
Replay = Callable[[], dict[str, Tensor]]


class Graph:
    """Records a step once and replays it; the step takes tensors of the same shapes at every call."""

    def __init__(self, record: Callable[[Step, tuple[Tensor, ...]], Replay] | None = None) -> None:
        self.record = record or recorded
        self.calls, self.refused = 0, False
        self.kept: tuple[Tensor, ...] = ()
        self.replay: Replay | None = None

    def __call__(self, step: Step, *drawn: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        if self.refused or self.calls <= WARM:
            return step(*drawn)
        if self.replay is None:
            self.kept = tuple(tensor.clone() for tensor in drawn)
            try:
                self.replay = self.record(step, self.kept)
            except RuntimeError as error:
                why = str(error).splitlines()[0]
                console.warn(f"a training step could not be recorded as a CUDA graph; training goes on, slower: {why}")
                self.refused = True
                return step(*drawn)
        for place, tensor in zip(self.kept, drawn, strict=True):
            place.copy_(tensor, non_blocking=True)
        return {name: figure.clone() for name, figure in self.replay().items()}  # the next launch writes over them


def recorded(step: Step, kept: tuple[Tensor, ...]) -> Replay:
    """Record what a step does with these tensors; nothing runs until the recording is replayed."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(kept[0].device)  # the device need not be the first
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        figures = step(*kept)

    def replay() -> dict[str, Tensor]:
        graph.replay()
        return figures

    return replay
