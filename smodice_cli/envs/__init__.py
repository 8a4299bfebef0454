"""Environments by name: each family declares its own in a module, and one line here says where.

Listing the names loads neither gymnasium nor mujoco. Nothing here knows about learning.
"""

from __future__ import annotations

import importlib.util
import math
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smodice_cli.errors import ConfigError, InputError, UsageError, nearest
from smodice_cli.files import first_line
from smodice_cli.lazy import np
from smodice_cli.registry import Registry

if TYPE_CHECKING:
    import gymnasium

    from smodice_cli.data import Transitions

GYM = "gym:"
DATA = "data"
NOISE_MARGIN = 1.05  # a spread this many times that of the noise is no more than noise
UNLIMITED = 1 << 40  # steps of an episode where nothing says how many there can be
POLICIES = Path(__file__).parent / "policies"  # the experts shipped with the package


@dataclass(frozen=True)
class Environment:
    """One environment: how to build it, its shapes, and how its scores are read."""

    name: str
    entry_point: str | Callable[..., Any]  # a gymnasium environment's class, or "package.module:Class", loaded later
    obs_dim: int
    act_dim: int
    horizon: int
    random_score: float = 0.0  # the return that counts as 0
    expert_score: float = 100.0  # the return that counts as 100
    plot_dims: tuple[int, int] | None = None  # state coordinates worth drawing
    state_names: tuple[str, ...] = ()  # of the state's dimensions, for tables and pictures
    success: Callable[[np.ndarray], np.ndarray] | None = None  # observations (N, d) -> which of them solve the task
    tasks: Mapping[str, Callable[[np.ndarray], np.ndarray]] = field(default_factory=dict)  # all that can be done there
    demonstrator: Callable[..., Transitions] | None = None  # (seed, number) -> one episode of a controller
    kinds: Mapping[str, Callable[..., Transitions]] = field(default_factory=dict)  # further controllers: sim:NAME-KIND
    steered: Path | None = None  # the policies that its controllers steer, a pattern; they take each one's `act`
    policies: str = ""  # the environment whose shipped policies act in this one: the same body in another world
    possible: Callable[[np.ndarray], np.ndarray] | None = None  # observations (N, d) -> which of them can occur
    goes_on: bool = False  # recordings go on where the task is solved: terminals mark states, timeouts end an episode
    action_range: tuple[Any, Any] = (-1.0, 1.0)  # least and largest action, of all dimensions or of each
    action_names: tuple[str, ...] = ()
    observation_parts: tuple[str, ...] = ("observation",)  # of a recorded dictionary observation, joined in this order
    recorded_widths: tuple[int, ...] = ()  # of states in recordings, other than obs_dim, that `recorded` reads
    recorded: Callable[[Transitions], tuple[Transitions, str]] | None = None  # its rows as ours, and a remark
    noise: tuple[float, ...] = ()  # half-widths of the uniform noise on each observed dimension, where there is any
    extra: tuple[str, str] = ("", "")  # a package that its simulator needs, and our extra that brings it
    kwargs: dict[str, Any] = field(default_factory=dict)

    def normalized(self, score: float) -> float:
        """The D4RL normalized score: 0 is the random, 100 the expert reference."""
        return 100.0 * (score - self.random_score) / (self.expert_score - self.random_score)

    def action_bounds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The least and the largest action of each dimension; None where they are not known."""
        if not np.isfinite(self.action_range).all():
            return None
        low, high = (np.full(self.act_dim, limit, np.float32) for limit in self.action_range)
        return low, high

    def count_outside(self, actions: np.ndarray) -> int:
        """How many actions lie outside the range."""
        low, high = self.action_range
        return int(((actions < low) | (actions > high)).any(axis=1).sum())

    @property
    def range_in_words(self) -> str:
        """The range of actions, for a message."""
        low, high = self.action_range
        return f"[{low:g}, {high:g}]" if np.ndim(low) == 0 else f"the range of {self.name}'s"

    def check_places(self, source: str, states: np.ndarray, first: int = 0) -> None:
        """Refuse states that this environment cannot be in; the first is row number `first` of the source."""
        if self.possible is None or (found := self.possible(states)).all():
            return
        row = int((~found).argmax())
        place = ", ".join(f"{number:.2f}" for number in states[row, :2])
        raise InputError(
            f"{source}: {int((~found).sum())} of {len(states)} states cannot be {self.name}'s, first number "
            f"{first + row}, which begins with ({place})",
            "are they of another maze, or in another frame?",
        )

    def as_recorded(self, width: int) -> int:
        """The width of our states that recorded ones of this width become; the same where they stay as they are."""
        return self.obs_dim if width in self.recorded_widths else width

    def deviations(self, std: np.ndarray) -> np.ndarray:
        """What states are divided by: 1 where nothing but the noise of the observation moves, as for constant ones."""
        alone = np.pad(self.noise, (0, len(std) - len(self.noise))) / math.sqrt(3)  # a uniform noise's deviation
        return np.where(std < NOISE_MARGIN * alone, np.float32(1.0), std)

    def check_widths(self, source: str, **widths: int) -> None:
        """Refuse data whose states or actions have other dimensions than this environment's."""
        for what, width in widths.items():
            wanted = self.act_dim if what == "actions" else self.obs_dim
            if width != wanted and not (what == "actions" and width == 0):  # no actions at all is another error
                raise InputError(f"{source}: {what} have {width} dimensions, but {self.name} has {wanted}")

    def as_json(self) -> dict[str, Any]:
        """The declaration as `smodice envs --json` shows it, functions and classes by their place."""
        return {name: _as_text(value) for name, value in vars(self).items()}


def _as_text(value: Any) -> Any:
    """Functions and classes by their place, tables of them and files by their names."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping) and any(map(callable, value.values())):
        return list(value)
    named = getattr(value, "func", value)  # of a function some of whose arguments are given
    return f"{named.__module__}:{named.__qualname__}" if callable(value) else value


ENVIRONMENTS: Registry[Environment] = Registry(
    "environment",
    {
        "pointmass-4direction": "smodice_cli.envs.pointmass:POINTMASS",
        "hopper": "smodice_cli.envs.locomotion:HOPPER",
        "hopper-noisy": "smodice_cli.envs.locomotion:HOPPER_NOISY",
        "walker2d": "smodice_cli.envs.locomotion:WALKER2D",
        "halfcheetah": "smodice_cli.envs.locomotion:HALFCHEETAH",
        "ant": "smodice_cli.envs.locomotion:ANT",
        "halfcheetah-short": "smodice_cli.envs.locomotion:HALFCHEETAH_SHORT",
        "ant-disabled": "smodice_cli.envs.locomotion:ANT_DISABLED",
        "ant-heading": "smodice_cli.envs.antmaze:ANT_HEADING",
        "antmaze-umaze": "smodice_cli.envs.antmaze:ANTMAZE",
        "antmaze-umaze-random-goal": "smodice_cli.envs.antmaze:ANTMAZE_RANDOM_GOAL",
        "pointmass-umaze": "smodice_cli.envs.pointumaze:POINTMASS_UMAZE",
        "kitchen-mixed": "smodice_cli.envs.kitchen:MIXED",
        "kitchen-complete": "smodice_cli.envs.kitchen:COMPLETE",
        "kitchen-kettle": "smodice_cli.envs.kitchen:KETTLE",
        "kitchen-microwave": "smodice_cli.envs.kitchen:MICROWAVE",
    },
)


def find(name: str) -> Environment:
    """The environment of that name: one of ours, `gym:ID` of Gymnasium's, or `data:17x6`, recordings without any."""
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    if name.startswith(GYM):
        return _of_gymnasium(name)
    if sizes := re.fullmatch(rf"{DATA}:([0-9]+)x([0-9]+)", name):
        observations, actions = map(int, sizes.groups())
        return Environment(name, "", observations, actions, UNLIMITED, action_range=(-math.inf, math.inf))
    others = f"{GYM}ID is one of Gymnasium's, {DATA} stands for recordings without a simulator"
    raise ConfigError(f"unknown environment '{name}'", f"{nearest(name, list(ENVIRONMENTS))} ({others})")


def find_in_file(name: str, named: str = "") -> Environment:
    """The environment that a file names: one that imports a module, gym:MODULE:ID, only if the user `named` it too."""
    refuse_module(name, named)
    return find(name)


def refuse_module(name: str, named: str = "") -> None:
    """Refuse an environment that imports a module, unless the user `named` it."""
    if name.startswith(GYM) and ":" in name.removeprefix(GYM) and name != named:
        module = name.removeprefix(GYM).partition(":")[0]
        raise UsageError(
            f"the file's environment, {name}, runs the module '{module}'", f"do you trust it? --env {name}"
        )


def can_simulate(name: str) -> bool:
    """Whether something can be simulated under this name."""
    return name in ENVIRONMENTS or name.startswith(GYM)


def check_simulator(name: str) -> None:
    """Refuse an environment of which only recordings are known, or whose simulator is not installed."""
    found = find(name)
    if not found.entry_point:
        raise ConfigError(f"there is no simulator of {name}: its data are recordings alone")
    package, extra = found.extra
    if package and importlib.util.find_spec(package) is None:
        raise ConfigError(f"simulating {name} needs the {package} package", f"pip install 'smodice[{extra}]'")


def make(name: str, **kwargs: Any) -> gymnasium.Env:
    """A new environment with its time limit, e.g. `make("hopper", render_mode="rgb_array")`."""
    from gymnasium.wrappers import TimeLimit

    from smodice_cli.envs.rendering import import_mujoco

    check_simulator(name)
    found = find(name)
    if name in ENVIRONMENTS:
        import_mujoco()
    build = found.entry_point if callable(found.entry_point) else pkgutil.resolve_name(found.entry_point)
    return TimeLimit(build(**found.kwargs, **kwargs), found.horizon)


@contextmanager
def gymnasium_errors_explained(name: str, hint: str = "") -> Iterator[None]:
    """Turn what Gymnasium says of an environment that cannot be made or drawn into one sentence."""
    import gymnasium

    try:
        yield
    except (gymnasium.error.Error, ImportError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise ConfigError(f"{name}: {first_line(error)}", hint) from error


@cache
def _of_gymnasium(name: str) -> Environment:
    """Whatever Gymnasium makes of the id, with its own time limit; its score is the return itself."""
    import gymnasium
    from gymnasium.spaces import Box

    identifier = name.removeprefix(GYM)
    own = "one of your own is gym:MODULE:ID, and Python must find the module: PYTHONPATH=. smodice ..."
    with gymnasium_errors_explained(name, own):
        env = gymnasium.make(identifier)
    observed, acted = env.observation_space, env.action_space
    horizon = env.spec.max_episode_steps if env.spec else None
    env.close()
    if not isinstance(observed, Box) or not isinstance(acted, Box) or len(observed.shape) != 1 or len(acted.shape) != 1:
        raise ConfigError(f"{name}: states and actions must be vectors of numbers, not {observed} and {acted}")
    if not acted.is_bounded():
        raise ConfigError(f"{name}: its actions must have bounds, not {acted}")
    if not horizon:
        raise ConfigError(f"{name} has no time limit: its episodes may never end", "register it with max_episode_steps")
    bounds = acted.low.astype(np.float32), acted.high.astype(np.float32)
    sizes = observed.shape[0], acted.shape[0], horizon
    return Environment(name, "gymnasium:make", *sizes, action_range=bounds, kwargs={"id": identifier})
