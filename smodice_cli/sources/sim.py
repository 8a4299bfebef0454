"""`sim:NAME`: data from the simulator, by parallel processes; each episode is seeded by its number, so that any number
of processes gives the same bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from smodice_cli import artifacts, envs, rollout
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.data import Transitions, concatenate
from smodice_cli.envs import ENVIRONMENTS
from smodice_cli.errors import InputError, UsageError, nearest
from smodice_cli.files import matching
from smodice_cli.parallel import ordered_map
from smodice_cli.sources.source import EVERYTHING, Blocks, Choice, Contents, Source

BATCH = 8  # episodes a worker makes at a time
FROM_ALL = {  # selections that may go without a number where there is an end
    "states": "states to simulate, e.g. #states=300",
    "success": "success states to simulate, e.g. #success=300",
    "best": "trajectories the best is to be of, e.g. #best=50",
}
RANDOM = "random"  # the kind of data that uniform actions give


class Simulation(Source):
    """Episodes of an environment's demonstrator, of a policy, or of random actions."""

    bare_number = "steps"
    endless = True

    @property
    def origin(self) -> str:
        scripted = behaviour(self.name).controller  # it may do one thing after the other
        return self.text if scripted else super().origin

    @property
    def body(self) -> str:
        return behaviour(self.name).env

    def check(self, example: str) -> None:
        if not self.selection:
            raise UsageError(f"source '{self.text}': a simulation needs a size, e.g. {self.text}{example}")
        if self.selection in FROM_ALL and self.count is None:
            raise UsageError(f"source '{self.text}': say how many {FROM_ALL[self.selection]}")
        check_actor(self.name)

    def file(self, *, fetch: bool = True) -> Path | None:
        return behaviour(self.name).policy

    def describe(self, choice: Choice = EVERYTHING, *, fetch: bool = True) -> Contents | None:
        env = envs.find(self.body)
        return Contents(env.obs_dim, env.act_dim)

    def episodes(
        self, env: str, seed: int, workers: int, *, states_only: bool = False, choice: Choice = EVERYTHING
    ) -> Blocks:
        """As they are seeded by their number, single ones are made without those before them."""
        check_actor(self.name)  # fail here, before any process starts
        if self.selection == "traj":
            return self._simulate(seed, workers, first=self.count or 0, limit=1)
        if self.selection == "episodes":
            return self._simulate(seed, workers, limit=self.count)
        return self.select(self._simulate(seed, workers))

    def _simulate(self, seed: int, workers: int, first: int = 0, limit: int | None = None) -> Blocks:
        """Blocks of episodes from number `first` on, `limit` of them or without end."""
        last = first + limit if limit else sys.maxsize
        tasks = (range(number, min(number + BATCH, last)) for number in range(first, last, BATCH))
        return ordered_map(partial(_batch, self.name, seed), tasks, min(workers, -(-(last - first) // BATCH)))


@dataclass(frozen=True)
class Actor:
    """Who acts, and where: a controller of the environment's own, a policy, or neither, which is uniform actions."""

    env: str
    controller: Callable[..., Transitions] | None = None
    policy: Path | None = None  # the file of the policy that acts, or a pattern of those that the controller steers


def behaviour(name: str) -> Actor:
    """Who acts under a name: `hopper-random`, `hopper-expert`, `pointmass-4direction`, `antmaze-umaze-reversed`,
    `hopper@policy.safetensors`."""
    env, at, path = name.partition("@")
    if at:
        envs.find(env)
        if not Path(path).is_file():
            raise InputError(f"policy {path} does not exist")
        return Actor(env, policy=Path(path))
    if name in ENVIRONMENTS and ENVIRONMENTS[name].demonstrator:
        return Actor(name, ENVIRONMENTS[name].demonstrator, ENVIRONMENTS[name].steered)
    env, _, kind = name.rpartition("-")
    if envs.can_simulate(env) and kind == RANDOM:
        envs.find(env)
        return Actor(env)
    if env in ENVIRONMENTS and kind in ENVIRONMENTS[env].kinds:
        return Actor(env, ENVIRONMENTS[env].kinds[kind], ENVIRONMENTS[env].steered)
    home = ENVIRONMENTS[env].policies or env if env in ENVIRONMENTS else env
    shipped = envs.POLICIES / f"{home if kind == 'expert' else f'{home}-{kind}'}.safetensors"
    if env in ENVIRONMENTS and name not in ENVIRONMENTS and (shipped.is_file() or kind in ("expert", "medium")):
        if not shipped.is_file():
            raise InputError(
                f"there is no {kind} policy for {env}",
                f"train one: smodice train-expert {env}, then use sim:{env}@FILE",
            )
        return Actor(env, policy=shipped)
    if name.startswith(envs.GYM):
        raise UsageError(f"who acts in {name}?", f"sim:{name}-random, or sim:{name}@FILE for a policy")
    stems = sorted(path.stem for path in envs.POLICIES.glob("*.safetensors"))
    known = [f"{env}-{kind}" for env, found in ENVIRONMENTS.items() for kind in (RANDOM, *found.kinds)]
    known += [f"{stem}-expert" if stem in ENVIRONMENTS else stem for stem in stems]
    raise UsageError(f"nothing to simulate under the name '{name}'", nearest(name, [*known, *ENVIRONMENTS]))


def check_actor(name: str) -> None:
    """Refuse a name that cannot be simulated, a policy for another body included."""
    actor = behaviour(name)
    envs.check_simulator(actor.env)
    if actor.controller or not actor.policy:
        return
    env, found = actor.env, envs.find(actor.env)
    policy, absorbing, body = _policy(actor.policy)
    if body not in ("", env, found.policies):
        raise InputError(f"policy {actor.policy} was trained for {body}, not for {env}")
    shape = (policy.obs_dim - absorbing, policy.act_dim)
    if shape != (found.obs_dim, found.act_dim):
        raise InputError(
            f"policy {actor.policy} takes {shape[0]} observations and gives {shape[1]} actions, "
            f"but {env} has {found.obs_dim} and {found.act_dim}"
        )


@cache
def _policy(path: Path) -> tuple[NumpyPolicy, bool, str]:
    """A policy, whether it expects the absorbing indicator, and its environment where the file says so."""
    policy = NumpyPolicy.load(path)
    try:
        metrics = artifacts.read_header(path).metrics
    except InputError:  # a policy from elsewhere: the tensors alone
        return policy, False, ""
    return policy, bool(metrics.get("absorbing", False)), str(metrics.get("env", ""))


def _batch(name: str, seed: int, numbers: range) -> Transitions:
    return concatenate([_episode(name, seed, number) for number in numbers])


def _episode(name: str, seed: int, number: int) -> Transitions:
    actor = behaviour(name)
    if actor.controller:
        steered = matching(actor.policy) if actor.policy else []
        return actor.controller(seed, number, *(_policy(path)[0].act for path in steered))
    policy, absorbing, _ = _policy(actor.policy) if actor.policy else (None, False, "")
    rng, reset_seed = rollout.seeded(seed, number)
    first, steps = rollout.begin(rollout.environment(actor.env), policy, rng, reset_seed, absorbing=absorbing)
    actions, observations, rewards, terminated, *_ = zip(*steps, strict=True)
    return Transitions.episode([first, *observations], actions, rewards, terminated=terminated[-1])
