"""The dual (Eq. 14) of one data set: its segments, V's steps on them, and the importance weight of every row (Eq. 15).

Memory is a handful of single-precision figures a row, whatever the width of the states; everything else is computed
for the batch, or block by block.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

from smodice_cli.algos import ALGORITHMS, nets
from smodice_cli.algos.divergences import DIVERGENCES
from smodice_cli.algos.losses import bellman_residual, importance_weights, value_loss
from smodice_cli.algos.sampling import moved, resident, row_sampler
from smodice_cli.algos.segments import Segments, absorb, lasting, return_weights, row_weights, segments
from smodice_cli.config import Config as BaseConfig
from smodice_cli.config import setting
from smodice_cli.data import Dataset
from smodice_cli.errors import ConfigError, DivergedError
from smodice_cli.lazy import Device, Generator, Tensor, np, torch
from smodice_cli.training import Adam, Learner, State, descend, held_out

BLOCK = 1 << 13  # rows per block when V is evaluated on many
NORMALISER_RATE = 10.0  # how much faster the normaliser, a number in log-weight units, learns than V's weights
HELD_OUT_ROWS = 1 << 15  # segments and initial states of the held-out trajectories that the objective is watched on
AUTO = "auto"  # the divergence that select-f chooses


@dataclass(frozen=True)
class Config(BaseConfig):
    """train-value: the Lagrangian value function on the Fenchel dual (Eq. 14) and its weights (Eq. 15)."""

    algo: str = setting(
        "smodice", "whose V it is", choices=lambda: [a for a in ALGORITHMS if ALGORITHMS[a].starts_from == "value"]
    )
    estimator: str = setting(
        "dual", "V on the dual, or TAILO's value-free trajectory weights", choices=("dual", "returns")
    )
    reward: str = setting(
        "discriminator", "R(s): the discriminator's, or 0 everywhere (SMODICE-Zero)", choices=("discriminator", "zero")
    )
    ceiling: float = setting(
        0.25, "the quantile of the expert's own R above which R counts no more; 1 is the paper: no bound", gt=0, le=1
    )
    f: str = setting(
        "kl", "the divergence D_f(d || d^O); auto asks select-f", choices=lambda: (*DIVERGENCES, AUTO), flag=True
    )
    gamma: float = setting(0.99, "discount", flag=True, gt=0, lt=1)
    alpha: float = setting(0.15, "strength of the regulariser per step; 1 is the paper", flag=True, gt=0)
    cap: float = setting(10_000.0, "bound on the ratio xi; 0 means none", ge=0)
    normaliser: bool = setting(True, "learn the multiplier of E[xi] = 1 beside V")
    n_step: int = setting(100, "rows in a segment; 1 is the paper", gt=0)
    sampling: str = setting(
        "discounted", "rows uniformly, or in proportion to gamma^t", choices=("uniform", "discounted")
    )
    terminal: str = setting(
        "absorb",
        "after a terminal row: its end state forever, nothing (V = 0), or V of the end state, a dead end",
        choices=("absorb", "zero", "bootstrap"),
    )
    timeout: str = setting(
        "absorb",
        "where an episode was cut: its last states forever, V of the end state (a dead end), or no part and no weight",
        choices=("absorb", "bootstrap", "drop"),
    )
    steps: int = setting(3000, "gradient steps", gt=0)
    batch: int = setting(256, "segments per step", gt=0, le=1 << 20)
    initial_batch: int = setting(32, "initial states per step; the paper uses as many as transitions", gt=0, le=1 << 20)
    lr: float = setting(3e-4, "Adam's learning rate", gt=0)
    schedule: str = setting("cosine", "learning rate over the steps", choices=("constant", "cosine"))
    weight_decay: float = setting(0.0, "L2 penalty on V's weights and the normaliser", ge=0)
    hidden: int = setting(256, "units in each of the two hidden layers", gt=0, le=1 << 14)
    scale: float = setting(10.0, "V = scale x network", gt=0)
    holdout: float = setting(0.1, "share of the trajectories kept out of training to watch the objective", ge=0, lt=1)
    patience: int = setting(0, "checks without a better held-out objective before stopping; 0 never stops", ge=0)

    def check(self) -> None:
        if 0 < self.cap <= 1:
            raise ConfigError(f"value.cap must be above 1 (the mean ratio is one), or 0 for none, got {self.cap}")
        if self.patience and not self.holdout:
            raise ConfigError("value.patience needs value.holdout: it stops on the objective of trajectories held out")

    def check_rewards(self, inputs: str) -> None:
        """Refuse to ask a discriminator of states with actions for the reward of an end state."""
        if inputs != "state" and ("absorb" in (self.terminal, self.timeout) or self.estimator == "returns"):
            raise ConfigError(
                "a discriminator of states with actions gives an end state, where nobody acts, no reward",
                "--set value.terminal=zero with the dual",
            )


@dataclass(frozen=True)
class Problem:
    """The dual of one data set: its segments (discount 0 where nothing follows), and how often each is sampled."""

    dataset: Dataset
    config: Config
    segments: Segments
    probability: np.ndarray  # unnormalised

    @property
    def alpha(self) -> float:
        """The regulariser's strength for a whole segment: alpha per step times the discounted steps in n."""
        c = self.config
        return c.alpha * (1 - c.gamma**c.n_step) / (1 - c.gamma)

    @property
    def cap(self) -> float:
        return self.config.cap or math.inf

    @property
    def gamma(self) -> float:
        """The discount of a whole segment."""
        return self.config.gamma**self.config.n_step


def bounded(config: Config, expert_reward: np.ndarray, *rewards: np.ndarray) -> list[np.ndarray]:
    """Rewards that are no higher than a quantile of the expert's own (D53): more expert-like than that is noise.

    A ceiling below 0, where the data are as the expert is, would hide the expert that begins like everybody else.
    """
    highest = np.float32(max(np.quantile(expert_reward, config.ceiling), 0) if config.ceiling < 1 else np.inf)
    return [np.minimum(reward, highest) for reward in rewards]


def set_up(dataset: Dataset, reward: np.ndarray, end_reward: np.ndarray, config: Config) -> Problem:
    """Set up the dual; `reward` is R(s) of every row, `end_reward` R of each episode's final next state."""
    last_rows = dataset.offsets[1:] - 1
    terminal = dataset["terminals"][last_rows] != 0
    stays = np.where(terminal, config.terminal == "absorb", config.timeout == "absorb")
    end_reward = np.where(terminal, end_reward, lasting(reward, end_reward, dataset.offsets, config.n_step))
    found = segments(reward, dataset.offsets, config.n_step, config.gamma)
    longest = int(np.diff(dataset.offsets).max())
    rate = config.gamma if config.sampling == "discounted" else 1.0
    at_time = (rate ** np.arange(longest + 1)).clip(min=np.finfo(np.float32).tiny).astype(np.float32)  # 0 is for drops
    probability = at_time[dataset.time_of_row()]
    if config.timeout == "drop":
        dropped = dataset["timeouts"] != 0
        dropped[last_rows[terminal]] = False
        probability[dropped[found.last]] = 0
    found = absorb(found, last_rows[stays], end_reward[stays], config.n_step, config.gamma)
    probability = np.append(probability, at_time[np.diff(dataset.offsets)[stays]])
    if config.terminal == "zero":
        found.discount[np.isin(found.last, last_rows[terminal])] = 0
    return Problem(dataset, config, found, probability)


def new_value(data: Dataset, config: Config, generator: Generator) -> nets.ValueFunction:
    """V, initialised."""
    mean, std = torch.tensor(data["mean"]), torch.tensor(data["std"])
    return nets.initialise(nets.ValueFunction(mean, std, config.hidden, config.scale), generator)


class ValueLearner(Learner):
    """V and the normaliser, their steps, and the look at held-out trajectories."""

    shown = ("loss", "held_out", "effective_share", "mean_ratio")

    def __init__(self, problem: Problem, value: nets.ValueFunction, generator: Generator, device: Device) -> None:
        self.problem, self.value, self.generator, self.device = problem, value.to(device), generator, device
        config, dataset, found = problem.config, problem.dataset, problem.segments
        self.config, self.schedule = config, config.schedule
        training = ~held_out(len(dataset.offsets) - 1, config.holdout, generator)
        starts = dataset.initial_observations()
        columns = (dataset["observations"], dataset["next_observations"], found.reward, found.last, found.discount)
        kept = resident(device, *map(torch.from_numpy, columns))
        self.states, self.next_states, self.reward, self.last, self.discount = kept
        self.initial = torch.from_numpy(starts[training]).to(device)
        episode_of_end = np.searchsorted(dataset.offsets, found.last[dataset.rows :], side="right") - 1
        trains = np.append(np.repeat(training, np.diff(dataset.offsets)), training[episode_of_end])
        self.taught = trains & (problem.probability > 0)
        self.sample = row_sampler(problem.probability * trains, generator)
        self.unit_normaliser = torch.nn.Parameter(torch.zeros((), device=device))
        trained = [*value.parameters(), *([self.unit_normaliser] if config.normaliser else [])]
        self.optimiser = Adam(trained, config.lr, config.weight_decay)
        self.best = copy.deepcopy(value)
        self.record = torch.tensor([math.inf, 0.0], dtype=torch.float64)  # best held-out objective, checks since
        self.watched_rows = _watched_rows(problem.probability * ~trains)
        self.watched_segment = torch.unique(self.watched_rows, return_inverse=True)[1]
        unseen = starts[~training]
        evenly = np.linspace(0, len(unseen), min(len(unseen), HELD_OUT_ROWS), endpoint=False, dtype=np.int64)
        self.watched_starts = torch.from_numpy(unseen[evenly]).to(device)
        self.state = State(
            {"value": value, "best": self.best},
            {"value": self.optimiser},
            generator,
            {"record": self.record, "normaliser": self.unit_normaliser.data},
        )
        self.record_on(device)

    @property
    def nu(self) -> Tensor | None:
        """The normaliser, which moves NORMALISER_RATE times as quickly as V's weights."""
        return NORMALISER_RATE * self.unit_normaliser if self.problem.config.normaliser else None

    def batch(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Where segments start and end, their rewards and discounts."""
        rows = moved(rows, self.last.device)
        last = self.last.index_select(0, rows)
        after = self.next_states.index_select(0, last)
        before = self.states.index_select(0, rows.clamp(max=len(self.states) - 1))
        before = torch.where((rows >= len(self.states))[:, None], after, before)  # absorbing ends start where they end
        reward, discount = (column.index_select(0, rows) for column in (self.reward, self.discount))
        return tuple(moved(part, self.device) for part in (before, after, reward, discount))

    def residual(
        self, before: Tensor, after: Tensor, reward: Tensor, discount: Tensor, starts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The residuals of segments, and V of initial states, by one pass through the network."""
        sizes = [len(before), len(after), len(starts)]
        v, v_next, v0 = self.value(torch.cat([before, after, starts])).split(sizes)
        return bellman_residual(reward, v, v_next, discount), v0

    def residual_of(self, rows: Tensor) -> Tensor:
        """The residuals of these segments."""
        before, after, reward, discount = self.batch(rows)
        return self.residual(before, after, reward, discount, self.initial[:0])[0]

    def loss(self, residual: Tensor, v0: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 14 with the problem's constants."""
        problem = self.problem
        return value_loss(problem.config.f, residual, v0, problem.gamma, problem.alpha, problem.cap, self.nu)

    def draw(self, step: int) -> tuple[Tensor, ...]:
        """A batch of segments and of initial states."""
        config = self.problem.config
        chosen = torch.randint(len(self.initial), (config.initial_batch,), generator=self.generator)
        starts = self.initial.index_select(0, moved(chosen, self.device))
        return *self.batch(self.sample(config.batch)), starts

    def advance(self, *drawn: Tensor) -> dict[str, Tensor]:
        """One gradient step on Eq. 14."""
        loss, info = self.loss(*self.residual(*drawn))
        descend(loss, [self.optimiser])
        return {"loss": loss.detach(), **{name: figure.detach() for name, figure in info.items()}}

    def check(self) -> tuple[dict[str, float], bool]:
        """The objective and the weights' health on held-out trajectories; keeps V if it is the best so far."""
        if not len(self.watched_rows):
            return {}, False
        problem, config, record = self.problem, self.problem.config, self.record
        with torch.no_grad():
            nu = None if self.nu is None else float(self.nu)
            residual = torch.cat([self.residual_of(rows) for rows in self.watched_rows.split(BLOCK)])
            v0 = torch.cat([self.value(starts) for starts in self.watched_starts.split(BLOCK)])
            objective = float(self.loss(residual, v0)[0])
            xi = importance_weights(config.f, residual, problem.alpha, problem.cap, nu)
        shares = (xi / xi.sum().clamp(min=1e-30)).cpu()
        of_segment = torch.zeros(len(xi)).index_add_(0, self.watched_segment, shares)
        health = {
            "effective_share": float(1 / shares.square().sum().clamp(min=1e-30) / len(xi)) if xi.any() else 0.0,
            "largest_share": float(of_segment.max()),
            "mean_ratio": float(xi.mean()),
        }
        record[1] += 1
        if objective < record[0]:
            record[0], record[1] = objective, 0.0
            self.best.load_state_dict(self.value.state_dict())
        return {"held_out": objective, **health}, bool(config.patience and record[1] >= config.patience)

    def take_best(self) -> dict[str, float]:
        """Go back to the V with the best held-out objective, and say what that was; nothing where none is held out."""
        if not len(self.watched_rows):
            return {}
        if not math.isfinite(self.record[0]):
            raise DivergedError("train-value: the held-out objective was never a number", "try a larger alpha")
        self.value.load_state_dict(self.best.state_dict())
        return {"held_out_objective": float(self.record[0])}


def _watched_rows(probability: np.ndarray) -> Tensor:
    """Held-out segments at evenly spaced quantiles, in proportion to their probability; empty where none is held out.

    Few segments carry most of the weight, so a random draw would make the objective look good where it missed them.
    """
    if not probability.any():
        return torch.empty(0, dtype=torch.int64)
    cumulative = np.cumsum(probability, dtype=np.float64)
    quantiles = (np.arange(HELD_OUT_ROWS) + 0.5) / HELD_OUT_ROWS
    return torch.from_numpy(np.searchsorted(cumulative, quantiles * cumulative[-1], side="right"))


def evaluate(value: nets.ValueFunction, states: np.ndarray) -> np.ndarray:
    """V of every row, block by block."""
    blocks = torch.from_numpy(states).split(BLOCK)
    with torch.no_grad():
        return torch.cat([value(block.to(value.scale.device)) for block in blocks]).cpu().numpy()


def values(value: nets.ValueFunction, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """V of every row's state and next state; a next state that is the following row's state is not computed twice."""
    states, next_states = dataset["observations"], dataset["next_observations"]
    v = evaluate(value, states)
    v_next = np.roll(v, -1)
    for start in range(0, dataset.rows, BLOCK):
        stop = min(start + BLOCK, dataset.rows)
        following = states[start + 1 : stop + 1]
        other = np.ones(stop - start, bool)
        other[: len(following)] = (next_states[start : start + len(following)] != following).any(axis=1)
        rows = start + np.flatnonzero(other)
        v_next[rows] = evaluate(value, next_states[rows])
    return v, v_next


def ratios(problem: Problem, v: np.ndarray, v_next: np.ndarray, taught: np.ndarray) -> np.ndarray:
    """xi of every segment (Eq. 15), on the whole data set; 0 for those that are never sampled.

    What V was not taught on, held-out trajectories, has no larger residual than what it was `taught` on (D56): nothing
    holds V up at an end that it never saw, and one such trajectory could take half of the weight.
    """
    config, found = problem.config, problem.segments
    residual = v_next[found.last]
    before = np.append(v, residual[len(v) :])
    residual *= found.discount
    residual += found.reward
    residual -= before
    np.minimum(residual, residual[taught].max(), out=residual)
    y = torch.from_numpy(residual) / problem.alpha
    q = torch.from_numpy(problem.probability / problem.probability.sum(dtype=np.float64).astype(np.float32))
    f = DIVERGENCES[config.f]
    nu = f.normaliser(y, q, problem.cap) if config.normaliser else f.closed_normaliser(y, q, problem.cap)
    xi = f.weights(y, problem.cap, nu).numpy()
    xi[problem.probability == 0] = 0  # V was not taught there
    return xi


@dataclass(frozen=True)
class Weights:
    """V, what it says of every row, the importance weight of every row, and figures about them."""

    value: nets.ValueFunction
    v: np.ndarray
    v_next: np.ndarray
    w: np.ndarray  # not yet of mean 1
    figures: dict[str, float]


def solve(
    data: Dataset,
    reward: np.ndarray,
    end_reward: np.ndarray,
    config: Config,
    generator: Generator,
    device: Device,
    train: Callable[[Learner], int],
) -> Weights:
    """Train V on R of every row and of each episode's end, by `train`, and weigh every row."""
    value = new_value(data, config, generator).to(device)
    if config.estimator == "returns":
        value.scale.zero_()  # there is no V: it is 0 everywhere
        w = return_weights(reward, end_reward, data.offsets, config.gamma, config.alpha)
        return Weights(value, *values(value, data), w, {})
    problem = set_up(data, reward, end_reward, config)
    learner = ValueLearner(problem, value, generator, device)
    train(learner)
    figures, taught = learner.take_best(), learner.taught
    del learner  # what follows needs its room
    v, v_next = values(value, data)
    xi = ratios(problem, v, v_next, taught)
    figures["raw_mean"] = float(np.average(xi, weights=problem.probability))
    del problem
    return Weights(value, v, v_next, row_weights(xi[: data.rows], data.offsets, config.n_step, config.gamma), figures)
