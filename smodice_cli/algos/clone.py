"""Behaviour cloning under weights (Eq. 16; D8): what smodice's policy, bc and bc-expert-only are."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

from smodice_cli.algos import Algorithm, PolicyConfig, PolicyLearner, correction, nets
from smodice_cli.algos.losses import average, policy_entropy, policy_mse, policy_nll
from smodice_cli.algos.sampling import moved, resident, row_sampler
from smodice_cli.artifacts import Arrays
from smodice_cli.config import setting
from smodice_cli.data import Dataset, moments
from smodice_cli.errors import ConfigError
from smodice_cli.lazy import Device, Generator, Tensor, np, torch
from smodice_cli.statistics import effective_size
from smodice_cli.training import Adam, State, descend, flatten, held_out

WATCHED = 8192  # held-out rows on which the loss is measured
LEAST_SPREAD = 0.1  # of all rows' deviation that the rows with weight are taken to have
STEPS_PER_ROOT, FEWEST_STEPS, MOST_STEPS = 110, 3_000, 20_000  # docs/stress.md has the measurements
MEMBERS = 4  # of an ensemble, where those steps are fewer than the most


@dataclass(frozen=True)
class Config(PolicyConfig):
    """train-policy by cloning."""

    steps: int = setting(0, "gradient steps; 0 means as many as the rows that carry the weight can teach", ge=0)
    lr: float = setting(2e-3, "Adam's learning rate", gt=0)
    loss: str = setting(
        "mse", "likelihood of the tanh-Gaussian, or squared error of tanh(mean)", choices=("nll", "mse"), flag=True
    )
    schedule: str = setting("cosine", "learning rate over the steps", choices=("constant", "cosine"))
    average: float = setting(
        0.999, "decay of the moving average of the weights that is kept; 0 keeps the last", ge=0, lt=1
    )
    members: int = setting(
        0,
        "networks that learn side by side, a share of the batch each; the policy is their mean. 0: four, or one where "
        "the rows that carry the weight are many",
        ge=0,
        le=64,
    )
    correction: float = setting(
        0.05, "noise on states, in deviations, with actions corrected for it, where the data show how; 0: none", ge=0
    )
    entropy: bool = setting(
        False, "keep the policy's entropy at -|A| with a learned temperature (loss nll only)", flag=True
    )

    def check(self) -> None:
        if self.entropy and self.loss != "nll":
            raise ConfigError("policy.entropy needs policy.loss = nll: squared error has no spread to constrain")
        if self.members > self.batch:
            raise ConfigError(
                f"policy.members = {self.members} share a batch of {self.batch}: each needs a row of its own"
            )


@dataclass(frozen=True)
class TrajectoryConfig(Config):
    """The same of whole trajectories, of which some can be held out."""

    holdout: float = setting(0.0, "share of the trajectories kept out of training to watch the loss", ge=0, lt=1)
    patience: int = setting(0, "checks without a lower held-out loss before stopping; 0 never stops", ge=0)

    def check(self) -> None:
        super().check()
        if self.patience and not self.holdout:
            raise ConfigError("policy.patience needs policy.holdout: it stops on the loss of trajectories held out")


def new_policy(
    data: Dataset, hidden: int, generator: Generator, weights: np.ndarray | None = None, members: int = 1
) -> nets.TanhGaussianPolicy:
    """A policy for these data, initialised; it standardises states as the rows with these weights are spread (D54)."""
    mean, std = data["mean"], data["std"]
    if weights is not None:
        # An f without bound has negative weights, too.
        mean, narrow = moments(data["observations"], np.maximum(weights, 0.0), constant=0.0)
        std = np.maximum(narrow, LEAST_SPREAD * std)
    low, high = torch.tensor(data["action_low"]), torch.tensor(data["action_high"])
    policy = nets.TanhGaussianPolicy(torch.tensor(mean), torch.tensor(std), low, high, hidden, members)
    return nets.initialise(policy, generator)


def steps_for(weights: np.ndarray) -> int:
    """As many steps as a square root of the effective sample asks for (D8): more only learn the noise of few rows."""
    fitting = STEPS_PER_ROOT * math.sqrt(effective_size(weights))
    return int(min(max(fitting, FEWEST_STEPS), MOST_STEPS))


def members_for(config: Any, weights: np.ndarray) -> int:
    """How many networks learn side by side (D57): where the rows are many, one needs all of the steps' rows."""
    return config.members or (min(MEMBERS, config.batch) if steps_for(weights) < MOST_STEPS else 1)


class CloneLearner(PolicyLearner):
    """Weighted behaviour cloning of rows of states and actions.

    Rows are drawn in proportion to their weight, or uniformly among those with any and weighted in the loss. `held`
    marks rows that are kept out of training, to watch the loss on. `corrected` is how actions follow the noise that
    is put on states (D55).
    """

    shown = ("loss", "entropy", "held_out")

    def __init__(
        self,
        policy: nets.TanhGaussianPolicy,
        states: np.ndarray,
        actions: np.ndarray,
        weights: np.ndarray,
        config: Any,
        generator: Generator,
        device: Device,
        *,
        counts: np.ndarray | None = None,
        uniform: bool = False,
        held: np.ndarray | None = None,
        corrected: correction.Correction | None = None,
    ) -> None:
        self.generator, self.device = generator, device
        self.schedule, self.policy = config.schedule, policy.to(device)
        if config.loss == "mse":
            policy.narrow()
        averaged = copy.deepcopy(policy)
        self.flat_average = flatten(averaged.parameters())
        self.kept = averaged if config.average else policy
        self.log_temperature = torch.nn.Parameter(torch.zeros((), device=device))
        self.optimisers = {"policy": Adam(policy.parameters(), config.lr)}
        if config.entropy:
            self.optimisers["temperature"] = Adam([self.log_temperature], config.lr)
        counts = np.ones(len(weights)) if counts is None else counts
        self.watched = None
        if held is not None:
            self.watched = row_sampler(weights * held, generator)(WATCHED) if (weights * held).any() else None
            counts, weights = counts * ~held, weights * ~held
        if not config.steps:
            config = replace(config, steps=steps_for(weights))
            taught = f"{config.steps:,} steps for an effective sample of {effective_size(weights):,.0f} rows"
            self.notes += (taught + (f", {policy.members} members" if policy.members > 1 else ""),)
        self.config = config
        self.gain: Tensor | None = None
        if corrected is not None:
            self.notes += (f"learns to come back, from states beside the recorded ones too: {corrected}",)
            self.figures = {"correction": {"explained": corrected.explained, "undone": corrected.undone}}
            self.gain = torch.from_numpy(corrected.gain).to(device)
            self.noise = config.correction * policy.normaliser.std * self.gain.any(dim=1)
        self.sample = row_sampler(counts if uniform else weights, generator)
        row_weights = torch.from_numpy(weights / weights[counts > 0].mean() if uniform else counts).float()
        columns = (torch.from_numpy(states), torch.from_numpy(actions), row_weights)
        self.states, self.actions, self.row_weights = resident(device, *columns)
        self.record = torch.tensor([np.inf, 0.0], dtype=torch.float64)  # lowest held-out loss, checks since
        self.state = State(
            {"policy": policy, "averaged": averaged},
            self.optimisers,
            generator,
            {"log_temperature": self.log_temperature.data, "record": self.record},
        )
        self.record_on(device)

    def draw(self, step: int) -> tuple[Tensor, ...]:
        """A batch, the step's part in the moving average, and noise for the entropy where that counts."""
        config, rows = self.config, moved(self.sample(self.config.batch), self.states.device)
        w = moved(self.row_weights.index_select(0, rows), self.device)
        states, actions = self._beside(*self._rows(rows))
        # With Adam's correction of the start: the untrained weights have no part in the average.
        fresh = (1 - config.average) / (1 - config.average ** (step + 1)) if config.average else 1.0
        part = moved(torch.tensor(fresh), self.device)
        if not config.entropy:
            return states, actions, w, part
        return states, actions, w, part, moved(torch.randn(actions.shape, generator=self.generator), self.device)

    def advance(
        self, states: Tensor, actions: Tensor, w: Tensor, part: Tensor, noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        loss, mean, log_std = self._loss(self.policy, states, actions, w, apart=True)
        info = {"loss": loss.detach()}
        if noise is not None and log_std is not None:
            entropy = policy_entropy(mean, log_std, noise)
            surplus = entropy.detach() + mean.shape[1]  # target entropy -|A|
            temperature = self.log_temperature
            loss = loss - temperature.exp().detach() * entropy + temperature * surplus
            info |= {"entropy": entropy.detach(), "temperature": temperature.detach().exp()}
        descend(loss, self.optimisers.values())
        if self.config.average:
            average(self.flat_average, self.optimisers["policy"].flat, part)
        return info

    def _rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """States of these rows, and their actions in [-1, 1]."""
        states, taken = (moved(column.index_select(0, rows), self.device) for column in (self.states, self.actions))
        return states, self.policy.unit(taken)

    def _beside(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """States a little beside those recorded, and the actions that lead from there to the same next states."""
        if self.gain is None:
            return states, actions
        noise = moved(torch.randn(states.shape, generator=self.generator), self.device) * self.noise
        return states + noise, (actions + noise @ self.gain).clamp(-1, 1)

    def _loss(
        self, policy: nets.TanhGaussianPolicy, states: Tensor, actions: Tensor, w: Tensor, apart: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.config.loss == "mse":
            mean = policy.centre(states, apart)
            return policy_mse(mean, actions, w), mean, None
        mean, log_std = policy(states, apart)
        return policy_nll(mean, log_std, actions, w), mean, log_std

    def check(self) -> tuple[dict[str, float], bool]:
        """The loss on held-out trajectories, and whether it has not fallen for `patience` checks."""
        if self.watched is None:
            return {}, False
        with torch.no_grad():
            rows = moved(self.watched, self.states.device)
            loss = float(self._loss(self.kept, *self._rows(rows), torch.ones(len(rows), device=self.device))[0])
        record = self.record
        record[1] += 1
        if loss < record[0]:
            record[0], record[1] = loss, 0.0
        return {"held_out": loss}, bool(self.config.patience and record[1] >= self.config.patience)


def corrected_by(data: Dataset, config: Any) -> correction.Correction | None:
    """How actions are corrected, if they are to be and these data show it well enough."""
    found = correction.find(data) if config.correction else None
    return found if found and found.trusted else None


def clone_rows(
    data: Dataset,
    weights: np.ndarray | None,
    config: Any,
    generator: Generator,
    device: Device,
    *,
    uniform: bool = False,
    standardise: bool = True,
) -> CloneLearner:
    """Cloning of the offline rows, under equal weights where none are given; an absorbing end has no action."""
    real = data.real_rows().astype(np.float64)
    taken = real if weights is None else np.where(real, weights, 0.0)
    standard = None if weights is None or not standardise else taken
    policy = new_policy(data, config.hidden, generator, standard, members_for(config, taken))
    columns = data["observations"], data["actions"], taken
    held, trajectories = None, np.empty(0, np.int64)
    if config.holdout:
        lengths = np.diff(data.offsets)
        chosen = held_out(len(lengths), config.holdout, generator)
        held, trajectories = np.repeat(chosen, lengths), np.flatnonzero(chosen)
    corrected = corrected_by(data, config)
    learner = CloneLearner(
        policy, *columns, config, generator, device, counts=real, uniform=uniform, held=held, corrected=corrected
    )
    learner.held_out = trajectories.tolist()
    return learner


class BC(Algorithm):
    """Behaviour cloning of all rows alike."""

    Config = TrajectoryConfig

    def learner(self, data: Dataset, config: Any, upstream: Arrays, rng: Generator, device: Device) -> PolicyLearner:
        return clone_rows(data, None, config, rng, device)


class BCExpertOnly(Algorithm):
    """Behaviour cloning of the expert's own states and actions."""

    Config = Config
    expert_actions = True

    def learner(self, data: Dataset, config: Any, upstream: Arrays, rng: Generator, device: Device) -> PolicyLearner:
        states, actions = data.expert_pairs()
        even, corrected = np.ones(len(states)), corrected_by(data, config)
        policy = new_policy(data, config.hidden, rng, members=members_for(config, even))
        return CloneLearner(policy, states, actions, even, config, rng, device, corrected=corrected)
