"""The discriminator, whose logit is the reward R(s) = log d^E(s)/d^O(s) (Eq. 9).

DemoDICE's looks at states with actions, R(s, a) = log d^E(s, a)/d^O(s, a); SAIL's is a Wasserstein critic of states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smodice_cli.algos import ALGORITHMS, nets
from smodice_cli.algos.losses import discriminator_loss, gradient_penalty, wasserstein_loss
from smodice_cli.algos.sampling import moved, resident
from smodice_cli.artifacts import Artifact
from smodice_cli.config import Config as BaseConfig
from smodice_cli.config import setting
from smodice_cli.data import Dataset
from smodice_cli.errors import ConfigError, InputError
from smodice_cli.lazy import Device, Generator, Tensor, np, torch
from smodice_cli.statistics import auroc
from smodice_cli.training import Adam, Learner, State, descend

BLOCK = 1 << 14  # rows at a time when R is evaluated on the whole data set
FIRST = 0.2  # of the steps, in which `safe` finds the trajectories that are not the expert's
COLUMNS = {"state": ("observations",), "state-action": ("observations", "actions")}  # what it looks at
WATCHED = 8192  # held-out states on which the AUC is measured


@dataclass(frozen=True)
class Config(BaseConfig):
    """train-disc: R(s) = log d^E/d^O by a classifier (Eq. 9)."""

    inputs: str = setting(
        "state", "what is told apart: states, or states with actions (demodice)", choices=("state", "state-action")
    )
    loss: str = setting(
        "cross-entropy",
        "Eq. 9, or the difference of means under the gradient penalty (sail)",
        choices=("cross-entropy", "wasserstein"),
    )
    steps: int = setting(1000, "gradient steps", gt=0)
    batch: int = setting(128, "expert states and offline states per step", gt=0, le=1 << 20)
    lr: float = setting(3e-3, "Adam's learning rate", gt=0)
    schedule: str = setting("cosine", "learning rate over the steps", choices=("constant", "cosine"))
    hidden: int = setting(256, "units in each of the two hidden layers", gt=0, le=1 << 14)
    gradient_penalty: float = setting(10.0, "weight of (|grad logit| - 1)^2 on mixed states; 0 is the paper", ge=0)
    prior: float = setting(
        0.0, "share of expert-like states in the offline data for the nnPU loss; 0 is Eq. 9", ge=0, lt=1
    )
    safe: float = setting(
        0.0,
        "share of the trajectories, those least like the expert, that alone count as offline after a first fifth of "
        "the steps under the prior (tailo); 0 takes all",
        ge=0,
        lt=1,
    )
    holdout: float = setting(0.1, "share of the states kept out of training to measure the AUC on", ge=0, lt=1)
    freeze_first_layer: bool = setting(False, "leave the first layer as initialised (what the official code does)")

    def check(self) -> None:
        if self.loss == "wasserstein" and (self.gradient_penalty == 0 or self.prior):
            raise ConfigError("disc.loss = wasserstein needs disc.gradient_penalty above 0 and disc.prior = 0")
        if self.safe and not self.prior:
            raise ConfigError(
                "disc.safe needs disc.prior: the trajectories are chosen by a positive-unlabelled classifier"
            )


class DiscriminatorLearner(Learner):
    """Tells the expert's states from the offline ones."""

    shown = ("loss", "reward_expert", "reward_offline", "auc")

    def __init__(self, data: Dataset, config: Config, generator: Generator, device: Device) -> None:
        self.data, self.config, self.generator, self.device = data, config, generator, device
        self.schedule = config.schedule
        self.net = new_discriminator(data, config, generator).to(device)
        if config.freeze_first_layer:
            self.net.body[0].requires_grad_(False)
        self.optimiser = Adam(self.net.parameters(), config.lr)
        self.expert = torch.from_numpy(data.expert_inputs(config.inputs)).to(device)
        self.columns = resident(device, *(torch.from_numpy(data[name]) for name in COLUMNS[config.inputs]))
        self.expert_rows, self.expert_watched = self._split(len(self.expert))
        self.offline_rows, self.offline_watched = self._split(data.rows)
        self.negatives = torch.ones(len(data.offsets) - 1, dtype=torch.bool)  # trajectories
        self.negative_rows: Tensor | None = None  # their rows among those that train, once they are chosen
        self.prior = config.prior  # the share of the rows drawn that may be the expert's
        if not config.safe:  # which learns in two ways, one after the other
            self.record_on(device)
        extra = {"negatives": self.negatives} if config.safe else {}
        self.state = State({"disc": self.net}, {"disc": self.optimiser}, generator, extra)

    def _split(self, count: int) -> tuple[Tensor, Tensor]:
        """Which states train and which are only watched (at most WATCHED of them)."""
        order = torch.randperm(count, generator=self.generator)
        held = min(int(self.config.holdout * count), WATCHED)
        return order[held:], order[:held]

    def _draw(self, rows: Tensor) -> Tensor:
        return rows[torch.randint(len(rows), (self.config.batch,), generator=self.generator)]

    def _expert(self, rows: Tensor) -> Tensor:
        return self.expert[moved(rows, self.device)]

    def _offline(self, rows: slice | Tensor) -> Tensor:
        own = rows if isinstance(rows, slice) else moved(rows, self.columns[0].device)
        return self.net.select(torch.cat([moved(column[own], self.device) for column in self.columns], dim=1))

    def _begin_again(self) -> None:
        """Choose the safe negatives by what was learned so far, and forget it (D52)."""
        reward, offsets = self.rewards()[0].cpu().double().numpy(), self.data.offsets
        mean = np.add.reduceat(reward, offsets[:-1]) / np.diff(offsets)
        self.negatives.copy_(torch.from_numpy(mean < np.quantile(mean, self.config.safe)))
        if not self.negatives.any():
            raise InputError("disc.safe needs trajectories that differ: none is less like the expert than the others")
        self.net.load_state_dict(new_discriminator(self.data, self.config, self.generator).state_dict())
        for moment in self.optimiser.moments.values():
            moment.zero_()

    def _offline_rows(self, step: int) -> Tensor:
        """Which offline rows a step draws from."""
        config = self.config
        first = max(1, int(FIRST * config.steps))
        if not config.safe or step < first:
            return self.offline_rows
        if step == first:
            self._begin_again()
        if self.negative_rows is None:
            rows = self.offline_rows.numpy()
            chosen = self.negatives.numpy()[np.searchsorted(self.data.offsets, rows, side="right") - 1]
            self.negative_rows = torch.from_numpy(rows[chosen])
            self.prior = 0.0  # none of them is the expert's
        return self.negative_rows

    def draw(self, step: int) -> tuple[Tensor, ...]:
        """States of both kinds, and where between them the penalty looks."""
        among = self._offline_rows(step)
        drawn = self._expert(self._draw(self.expert_rows)), self._offline(self._draw(among))
        if not self.config.gradient_penalty:
            return drawn
        return *drawn, moved(torch.rand((self.config.batch, 1), generator=self.generator), self.device)

    def advance(self, expert: Tensor, offline: Tensor, mix: Tensor | None = None) -> dict[str, Tensor]:
        config = self.config
        on_expert, on_offline = self.net(torch.cat([expert, offline])).split(config.batch)
        if config.loss == "wasserstein":
            loss, info = wasserstein_loss(on_expert, on_offline)
        else:
            loss, info = discriminator_loss(on_expert, on_offline, self.prior)
        info = {"loss": loss, **info}
        if mix is not None:
            loss = loss + config.gradient_penalty * gradient_penalty(self.net, expert, offline, mix)
        descend(loss, [self.optimiser])
        return {name: value.detach() for name, value in info.items()}

    def check(self) -> tuple[dict[str, float], bool]:
        """The AUC on states that it was not trained on."""
        if not len(self.expert_watched) or not len(self.offline_watched):
            return {}, False
        states = torch.cat([self._expert(self.expert_watched), self._offline(self.offline_watched)])
        with torch.no_grad():
            logits = self.net(states).cpu().numpy()
        return {"auc": auroc(logits, np.arange(len(logits)) < len(self.expert_watched))}, False

    def rewards(self) -> tuple[Tensor, Tensor]:
        """R of every offline row, block by block, and of every expert state."""
        blocks = (slice(start, start + BLOCK) for start in range(0, self.data.rows, BLOCK))
        with torch.no_grad():
            return torch.cat([self.net(self._offline(rows)) for rows in blocks]), self.net(self.expert)

    def finish(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The network beside what it says of the data, so that nobody has to ask again; and the figures."""
        offline, expert = self.rewards()
        figures = {"reward_expert": float(expert.mean()), "reward_offline": float(offline.mean())}
        tensors = {**self.net.state_dict(), "reward": offline, "expert_reward": expert}
        return tensors, figures | self.check()[0]


def new_discriminator(data: Dataset, config: Config, generator: Generator) -> nets.Discriminator:
    """A discriminator for these data, initialised; actions are scaled to [-1, 1]."""
    mean, std, low, high = (torch.tensor(data[name]) for name in ("mean", "std", "action_low", "action_high"))
    dims = list(data.dims)
    if config.inputs == "state-action":
        dims += range(len(mean), len(mean) + len(low))
        mean, std = torch.cat([mean, (low + high) / 2]), torch.cat([std, (high - low) / 2])
    return nets.initialise(nets.Discriminator(mean, std, dims, config.hidden), generator)


def reward_of(net: nets.Discriminator, states: np.ndarray) -> Tensor:
    """R of any states (or of states with actions)."""
    with torch.no_grad():
        return net(net.select(torch.from_numpy(states).to(net.dims.device)))


def kind_for(algo: str) -> dict[str, str]:
    """What an algorithm's discriminator looks at and learns by."""
    own = ALGORITHMS[algo].defaults.get("disc", {})
    return {name: own.get(name, getattr(Config, name)) for name in ("inputs", "loss")}


def check_kind(disc: Artifact, algo: str) -> None:
    """Refuse a discriminator of another kind than the algorithm's."""
    for name, wanted in kind_for(algo).items():
        if (found := disc.header.config[name]) != wanted:
            raise InputError(
                f"{algo} needs a discriminator with {name} = {wanted}, but that of {disc.path} has {found}",
                f"smodice train-disc --algo {algo} makes one",
            )
