"""The algorithms of the paper's comparison: each declares in its own module what it starts from, reads and learns.

To add one: a module with a subclass of `Algorithm`, and a line in the table. Plain arrays and tensors in, no files:
tests, benchmarks and notebooks use the learners as train-policy does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from smodice_cli.artifacts import Arrays
from smodice_cli.config import Config, Settings, setting
from smodice_cli.data import Dataset
from smodice_cli.lazy import Device, Generator, Lazy
from smodice_cli.registry import Registry
from smodice_cli.training import Learner

if TYPE_CHECKING:
    from smodice_cli.algos import nets as nets
else:
    nets = Lazy("smodice_cli.algos.nets")  # which needs torch from its first line


@dataclass(frozen=True)
class PolicyConfig(Config):
    """What every algorithm of train-policy reads."""

    algo: str = setting("smodice", "how the policy is learned", choices=lambda: ALGORITHMS)
    steps: int = setting(30_000, "gradient steps", gt=0)
    batch: int = setting(256, "transitions per step", gt=0, le=1 << 20)
    lr: float = setting(1e-3, "Adam's learning rate", gt=0)
    hidden: int = setting(256, "units in each of the two hidden layers", gt=0, le=1 << 14)
    snapshots: int = setting(10, "policies kept over the training, for eval's return curve", ge=0)


class PolicyLearner(Learner):
    """A learner whose result is a policy."""

    kept: nets.TanhGaussianPolicy  # what is written in the end
    held_out: Sequence[int] = ()  # the trajectories that it never saw
    figures: Mapping[str, Any] = {}  # about how it learns, for the header


class Algorithm:
    """One way to learn a policy."""

    Learner: ClassVar[Any]  # a class made of what `learner` takes, unless that is another one
    starts_from: ClassVar[str] = "dataset"  # the kind of artifact that train-policy begins with
    Config: ClassVar[type[PolicyConfig]] = PolicyConfig
    defaults: ClassVar[Settings] = {}  # settings that define it, by section; over a recipe's common ones
    expert_actions: ClassVar[bool] = False  # learns from them, where imitation from observations never reads any

    def accepts(self, data: Dataset) -> None:
        """Refuse, before anything runs, data that it cannot learn from."""
        if self.expert_actions:
            data.expert_pairs()  # says why, where there are none

    def learner(self, data: Dataset, config: Any, upstream: Arrays, rng: Generator, device: Device) -> PolicyLearner:
        """Its learner on these data; `upstream` holds the arrays of what it starts from, beyond the dataset."""
        return self.Learner(data, config, upstream, rng, device)


ALGORITHMS: Registry[Algorithm] = Registry(
    "algorithm",
    {
        "smodice": "smodice_cli.algos.smodice:SMODICE",
        "bc": "smodice_cli.algos.clone:BC",
        "bc-expert-only": "smodice_cli.algos.clone:BCExpertOnly",
        "oracle": "smodice_cli.algos.oracle:Oracle",
        "td3bc": "smodice_cli.algos.td3bc:TD3BC",
        "oril": "smodice_cli.algos.oril:ORIL",
        "sail": "smodice_cli.algos.sail:SAIL",
        "rce": "smodice_cli.algos.rce:RCE",
        "demodice": "smodice_cli.algos.demodice:DemoDICE",
        "demodice-sd": "smodice_cli.algos.demodice:StateDemoDICE",
        "iql": "smodice_cli.algos.iql:IQL",
        "seabo": "smodice_cli.algos.seabo:SEABO",
        "tailo": "smodice_cli.algos.tailo:TAILO",
    },
    singletons=True,
)
