"""The path to a device, as far as a machine without one can tell: where tensors lie, and that no step waits for it.

torch's meta device stands for it, which knows shapes but no numbers: joining or adding tensors of two places fails on
it, and so does whatever asks a tensor for its value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smodice_cli import artifacts
from smodice_cli.algos import clone, discriminator, dual, sampling
from smodice_cli.data import Dataset
from smodice_cli.graphs import WARM, Graph
from smodice_cli.training import Learner

DEVICE = torch.device("meta")
SIZES: dict[str, Any] = {"steps": 10, "hidden": 16, "batch": 16}


def learners(data: Dataset, device: torch.device) -> dict[str, Learner]:
    """The trainings of smodice, cloning by either loss."""
    generator = torch.Generator().manual_seed(0)
    config = dual.Config(**SIZES)
    problem = dual.set_up(data, np.zeros(data.rows, np.float32), np.zeros(len(data.offsets) - 1, np.float32), config)
    value = dual.new_value(data, config, generator)
    likely, squared = clone.TrajectoryConfig(**SIZES, loss="nll", entropy=True), clone.TrajectoryConfig(**SIZES)
    return {
        "disc": discriminator.DiscriminatorLearner(data, discriminator.Config(**SIZES), generator, device),
        "value": dual.ValueLearner(problem, value, generator, device),
        "policy": clone.clone_rows(data, None, likely, generator, device),
        "squared": clone.clone_rows(data, None, squared, generator, device),
    }


def to(module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Module.to, which on a real device changes parameters in place, and here would put others in their place."""
    for part in module.modules():
        for name, tensor in part._parameters.items():
            assert tensor is not None
            part._parameters[name] = torch.nn.Parameter(tensor.detach().to(device), tensor.requires_grad)
        part._buffers.update({name: tensor.to(device) for name, tensor in part._buffers.items() if tensor is not None})
    if hasattr(module, "weights"):
        module.weights = tuple(module.body.parameters())  # type: ignore[union-attr, assignment, operator]
    return module


@pytest.fixture
def data(run: Path) -> Dataset:
    return Dataset.of(artifacts.load(run / "dataset.h5", "dataset"))


@pytest.mark.parametrize("free", [1 << 40, 0], ids=["data on the device", "data in memory"])
@pytest.mark.parametrize("name", ["disc", "value", "policy", "squared"])
def test_a_step_mixes_no_places_and_waits_for_nothing(
    data: Dataset, name: str, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1 << 40))
    monkeypatch.setattr(torch.nn.Module, "to", to)
    learner = learners(data, DEVICE)[name]
    for step in range(2):
        loss = learner.update(step)["loss"]
    assert loss.device == DEVICE
    with pytest.raises(RuntimeError, match="meta"):
        float(loss)  # which is what would wait


def test_columns_are_kept_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1 << 40))
    for rows, place in ((100, "meta"), (200, "cpu")):
        kept = sampling.resident(DEVICE, torch.zeros(rows), torch.zeros(10))
        assert [column.device.type for column in kept] == [place] * 2


class Recorder(TorchDispatchMode):
    """Every call that a step comes to, with its tensors and the numbers that it had then."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, found))
        return found

    def replay(self) -> None:
        """Make the same calls with the same tensors, into the same tensors."""
        for function, args, kwargs, found in self.calls:
            for place, tensor in zip(tree_leaves(found), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(place, torch.Tensor) and place is not tensor:
                    place.copy_(tensor)


def stand_in(learner: Learner) -> Any:
    """A recording as a device makes it: the step does not run while it is recorded, and Python takes no part later."""

    def record(step: Any, kept: tuple[torch.Tensor, ...]) -> Any:
        before = {name: tensor.clone() for name, tensor in learner.state.tensors().items()}
        with Recorder() as recorder:
            figures = step(*kept)
        learner.state.restore(before)

        @torch.no_grad()
        def replay() -> dict[str, torch.Tensor]:
            recorder.replay()
            return figures

        return replay

    return record


def refused(learner: Learner) -> Any:
    def record(step: Any, kept: tuple[torch.Tensor, ...]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore about it")

    return record


@pytest.mark.parametrize("record", [stand_in, refused])
@pytest.mark.parametrize("name", ["disc", "value", "policy", "squared"])
def test_a_recorded_step_learns_what_the_plain_one_does(
    data: Dataset, name: str, record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = []
    for graph in (False, True):
        learner = learners(data, torch.device("cpu"))[name]
        learner.schedule = "constant"  # off a device the rate is a number of Python's, fixed by the recording
        learner.graph = Graph(record(learner)) if graph else None
        infos = [learner.update(step) for step in range(SIZES["steps"])]
        trained.append((learner.state.tensors(), [float(info["loss"]) for info in infos]))
    (plain, told), (recorded, retold) = trained
    assert all(torch.equal(plain[key], recorded[key]) for key in plain)
    assert told == retold, "figures of one step must not be written over by the next"
    assert len(set(retold)) == SIZES["steps"] > WARM
    said = capsys.readouterr().err
    assert ("could not be recorded" in said) == (record is refused)
    assert "more about it" not in said


def test_only_cudas_steps_are_recorded(data: Dataset) -> None:
    cuda = torch.device("cuda")
    for learner in learners(data, torch.device("cpu")).values():
        assert learner.graph is None
        learner.record_on(cuda)
        assert isinstance(learner.graph, Graph)
