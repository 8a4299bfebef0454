"""build-dataset: sources -> dataset.h5, streamed, checked, float32, contiguous."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smodice_cli import envs, files
from smodice_cli.config import Config as BaseConfig
from smodice_cli.config import setting
from smodice_cli.console import console
from smodice_cli.data import Spool, check, parse_dims, range_of_actions
from smodice_cli.engine import Context, Output, Stage
from smodice_cli.envs import Environment
from smodice_cli.errors import InputError, UsageError
from smodice_cli.lazy import Lazy, np

if TYPE_CHECKING:
    from smodice_cli import sources
    from smodice_cli.sources import expert, layouts
    from smodice_cli.sources import source as reading
    from smodice_cli.sources.layouts import outside
    from smodice_cli.sources.source import Choice, Contents, Source
else:
    sources, expert, layouts, outside, reading = (
        Lazy(f"smodice_cli.sources{name}") for name in ("", ".expert", ".layouts", ".layouts.outside", ".source")
    )

EXAMPLE = {"offline": "log.hdf5", "expert": "log.hdf5#traj=0"}
MOSTLY = 0.5  # share of the expert's states outside the offline range that is worth a warning
RANGE_ROWS = 10_000  # offline rows whose range is looked at first


@dataclass(frozen=True)
class Config(BaseConfig):
    """build-dataset: which states and transitions."""

    env: str = setting(
        "", "environment the policy is for: one that `smodice envs` lists, gym:ID or data (no simulator)", flag="--env"
    )
    offline: tuple[str, ...] = setting(
        (),
        "offline sources: sim:NAME#N, d4rl:ID, minari:ID or file:PATH#N, one or more",
        flag="--offline",
        metavar="SOURCE",
    )
    expert: tuple[str, ...] = setting(
        (),
        "expert sources, with #traj=K, #best, #states[=N], #success[=N]; one or more; their actions are not read",
        flag="--expert",
        metavar="SOURCE",
    )
    expert_dims: str = setting(
        "", "state dimensions that expert and imitator share, e.g. 0:2 or 0,1,5", flag="--expert-dims", metavar="DIMS"
    )
    keys: str = setting(
        "",
        "our names of columns and those in your files, e.g. actions=acts; several with commas",
        flag="--keys",
        metavar="OURS=THEIRS",
    )
    obs_keys: str = setting(
        "", "parts of an observation that is a dictionary, joined in this order", flag="--obs-keys", metavar="A,B"
    )
    expert_keys: str = setting(
        "", "the expert's parts or columns, where they have other names", flag="--expert-keys", metavar="A,B"
    )
    state_columns: str = setting(
        "", "columns of a table that are the state, names or patterns", flag="--state-columns", metavar="A,B*"
    )
    action_columns: str = setting(
        "", "columns of a table that are the action, names or patterns", flag="--action-columns", metavar="A,B*"
    )
    episode_column: str = setting(
        "",
        "column that numbers the episodes, where nothing else marks their ends",
        flag="--episode-column",
        metavar="NAME",
    )
    absorbing: bool = setting(
        False,
        "add an absorbing state (indicator dimension) that terminal rows lead to",
        flag="--absorbing",
    )
    allow_links: bool = setting(
        False,
        "read recordings that take data from other files, HDF5's links and virtual datasets",
        flag="--allow-links",
    )
    expert_actions: bool = setting(
        False, "also read the expert's actions, which only demodice and bc-expert-only may see"
    )
    keep: float = setting(1.0, "share of the offline rows that is kept, drawn at random: steps go missing", gt=0, le=1)
    expert_keep: float = setting(1.0, "the same of the expert's states", gt=0, le=1)


class BuildDataset(Stage):
    """Offline transitions and expert states, recorded or simulated -> dataset.h5."""

    name, kind, file, section, flag = "build-dataset", "dataset", "dataset.h5", "dataset", "data"
    Config = Config
    per_run = simulates = True
    help = "Collect offline transitions and expert states into [bold]dataset.h5[/]."
    examples = (
        "smodice build-dataset --env pointmass-4direction --offline sim:pointmass-4direction#50000 "
        "--expert sim:pointmass-4direction#success=300 --out runs/pm/dataset.h5",
        "smodice build-dataset --env hopper --offline hopper-expert-v2#200 --offline hopper-random-v2 "
        "--expert hopper-expert-v2#traj=0  # downloads D4RL's files",
        "smodice build-dataset --env data --offline arm.hdf5 --expert demo.hdf5#traj=0 --obs-keys joints,gripper"
        "  # with recordings of yours",
        "smodice build-dataset --config hopper --source d4rl --dry-run",
    )

    def place(self, start: Path | None, config: Any, folder: Path) -> Path:
        return Path("runs") / (config.env.rpartition(":")[2] or "unnamed") / self.file

    def prepare(self, context: Context, start: Path | None) -> Context:
        config, fetch = context.config, not context.options.dry_run
        if not config.env:
            raise UsageError("which environment? pass --env, e.g. --env pointmass-4direction")
        if config.env != envs.DATA:
            envs.find(config.env)
        if not config.offline or not config.expert:
            missing = "offline" if not config.offline else "expert"
            raise UsageError(f"no {missing} source was given", f"name one, e.g. --{missing} {EXAMPLE[missing]}")
        context.stack.enter_context(outside.permitted(config.allow_links))
        context.stack.enter_context(layouts.kept_open())
        offline, experts = ([sources.parse(text) for text in texts] for texts in (config.offline, config.expert))
        for source in offline:
            source.check_offline(config.env)
        if config.env == envs.DATA:
            config = replace(config, env=_measured(offline[0], reading.choice_of(config), fetch=fetch))
        env = envs.find(config.env)
        parse_dims(config.expert_dims, env.obs_dim)
        for source in experts:
            source.check_expert(env.name)
            if config.expert_actions and (config.expert_dims or source.body not in ("", env.name)):
                raise UsageError(f"expert source '{source.text}' is another body, whose actions are not the imitator's")
        pins = context.options.sha256
        links = sources.linked_files([*offline, *experts], context.out.parent, fetch=fetch, pins=pins)
        for source in offline:  # recordings of another environment, before anything is simulated
            if held := source.describe(reading.choice_of(config, env), fetch=False):
                observations = env.as_recorded(held.observations)
                env.check_widths(source.text, observations=observations, actions=held.actions)
        _refuse_inside(context.out, [*offline, *experts])
        return replace(context, config=config, links=links)

    def work(self, context: Context) -> list[Output]:
        config = context.config
        notes: list[str] = []
        env, offline = envs.find(config.env), [sources.parse(text) for text in config.offline]
        found, dims, demonstrated = _read_expert(context, env, notes)
        with files.writing(context.out):
            spool = Spool(context.scratch(), env.obs_dim, env.act_dim, config.absorbing)
        described = [_read_offline(context, env, spool, index, source, notes) for index, source in enumerate(offline)]
        if spool.rows == 0:
            raise InputError("the offline sources hold no transitions")
        with files.writing(context.out):
            arrays = spool.arrays() | found
        arrays["std"] = env.deviations(arrays["std"])
        low, high = env.action_bounds() or range_of_actions(arrays, config.absorbing)
        names = _names(described, "names")  # of a recording with more columns than our state they are no use
        metrics = {
            "rows": spool.rows,
            "episodes": len(arrays["episode_source"]),
            "expert_states": len(found["expert/observations"]),
            "expert_dims": dims,
            "expert_return": expert.expert_return(described, demonstrated),
            "sources": sources.labels(offline),
            "offline": described,
            "state_names": names if len(names) == env.obs_dim else list(env.state_names),
            "action_names": _names(described, "action_names") or list(env.action_names),
        }
        _warn_of_range(notes, arrays, dims)
        arrays["files"] = _places(offline, config, env)
        return [Output(arrays | {"action_low": low, "action_high": high}, metrics, notes)]


def _refuse_inside(out: Path, found: list[Source]) -> None:
    """Refuse to write among the recordings that are read: the next time, the artifact would be one of them."""
    for source in found:
        place = source.file(fetch=False)
        if place is None or place.is_file():
            continue
        if place.resolve() in out.resolve().parents or fnmatch(str(out.resolve()), str(place.absolute())):
            raise UsageError(f"{out} lies in {place}, which is read", "choose another --out")


def _measured(source: Source, choice: Choice, *, fetch: bool) -> str:
    """The environment `data` in full: the sizes of state and action are those of the first recording."""
    held = source.describe(choice, fetch=fetch)
    if held is None:
        raise UsageError(f"--env {envs.DATA}: '{source.text}' is not there yet to be measured")
    if not held.actions:
        raise InputError(f"{source.text} holds no actions")
    return f"{envs.DATA}:{held.observations}x{held.actions}"


def _read_expert(
    context: Context, env: Environment, notes: list[str]
) -> tuple[dict[str, np.ndarray], list[int], list[dict[str, Any]]]:
    """What is stored of the expert, the dimensions it shares with the imitator, and its sources of the same body."""
    config = context.config
    parts: list[expert.ExpertStates] = []
    demonstrated: list[dict[str, Any]] = []
    for index, source in enumerate(map(sources.parse, config.expert)):
        seed = context.seed + 1000 * (index + 500)  # the expert's episodes are not the offline ones
        threads, actions = context.options.threads, config.expert_actions
        choice = reading.choice_of(config, env, expert=True)
        found = expert.expert_states(source, config.env, seed, threads, actions=actions, choice=choice)
        if config.expert_keep < 1:
            found = expert.thin(found, config.expert_keep, np.random.default_rng([seed, 2]))
        expert.check(found, source, env, dims=config.expert_dims)
        if found.actions is not None and (outside := env.count_outside(found.actions)):
            _warn_of_clipping(notes, source, env, f"{outside} expert")
        if len(found.lengths) and env.success and not config.expert_dims and not env.success(found.states).any():
            _warn(notes, f"expert source '{source.text}' never passes {env.name}'s own success test")
        parts.append(found)
        if any(found.returns) and not config.expert_dims and source.body in ("", config.env):
            demonstrated.append(source.summary(len(found.states), found.returns))
    arrays, dims = expert.join(parts, env, config.expert_dims, absorbing=config.absorbing)
    return arrays, dims, demonstrated


def _read_offline(
    context: Context, env: Environment, spool: Spool, index: int, source: Source, notes: list[str]
) -> dict[str, Any]:
    """Append a source to the spool; returns what the header tells of it."""
    choice = reading.choice_of(context.config, env)
    held = source.describe(choice)
    assert held is not None
    if held.left_out:
        _tell_of_parts(notes, source, held, chosen=bool(choice.parts or choice.columns or env.entry_point))
    rows = kept = clipped = longest = 0
    returns: list[float] = []
    share = context.config.keep
    seed = context.seed + 1000 * index  # two sources of one kind must not repeat each other
    thinning = np.random.default_rng([seed, 2])
    wanted = source.count if source.selection == "steps" else None
    with console.progress(f"{context.stage.name} {source.label}", wanted or 0) as bar:
        for block in source.episodes(env.name, seed, context.options.threads, choice=choice):
            matrices = ("observations", "next_observations", "actions")
            env.check_widths(source.text, **{name: getattr(block, name).shape[1] for name in matrices})
            if not block.actions.shape[1]:
                raise InputError(f"{source.text}: its actions have no dimensions")
            check(block, source.text, rows)
            source.check_states(block.observations, source.text, rows)
            env.check_places(source.text, block.observations, rows)
            clipped += env.count_outside(block.actions)
            rows += block.rows
            longest = max(longest, int(np.diff(block.offsets).max()))
            returns += block.returns()
            block = block.thin(share, thinning) if share < 1 else block
            kept += block.rows
            with files.writing(context.out):
                spool.append(replace(block, actions=np.clip(block.actions, *env.action_range)), index)
            bar.update(rows, episodes=len(returns))
    if clipped:
        _warn_of_clipping(notes, source, env, f"{clipped} of {rows}")
    if longest > env.horizon:
        _warn(notes, f"{source.text}: an episode has {longest} steps, where {env.name} ends after {env.horizon}")
    if not held.ends and len(returns) == 1:
        alone = f"nothing marks an end among its {rows} rows, so they count as one episode"
        _warn(notes, f"{source.text}: {alone}; {reading.MARKS}")
    named = {"names": held.names, "action_names": held.action_names, "left_out": held.left_out}
    called = {"episode_name": held.episode_name} if held.episode_name else {}
    named_parts = {key: list(names) for key, names in named.items() if names}
    return source.summary(kept, returns, rewards=held.rewards) | called | named_parts


def _names(described: list[dict[str, Any]], which: str) -> list[str]:
    """The names of the dimensions, as the first source has them that has any."""
    found = [source[which] for source in described if source.get(which)]
    return found[0] if found else []


def _places(offline: list[Source], config: Any, env: Environment) -> np.ndarray:
    """The files of every source that its episodes are numbered by, one text a source and file."""
    choice = reading.choice_of(config, env)
    texts = [f"{index}\t{path}" for index, source in enumerate(offline) for path in source.members(choice)]
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def _tell_of_parts(notes: list[str], source: Source, held: Contents, *, chosen: bool) -> None:
    """Warn of what is left out of the state; a goal must be left out by the user, or by the environment."""
    goals = [part for part in held.left_out if "goal" in part.lower()]
    if goals and not chosen:
        raise InputError(
            f"{source.text}: the observation has a goal ({', '.join(goals)}); nothing says whether the state has it",
            "choose the parts of the state, with a goal or without: --obs-keys A,B",
        )
    unseen = f"; the imitator will not see its goal ({', '.join(goals)})" if goals else ""
    parts = f"{', '.join(held.left_out)} of the observation {'is' if len(held.left_out) == 1 else 'are'} left out"
    _warn(notes, f"{source.text}: {parts}{unseen} (--obs-keys chooses)")


def _warn_of_clipping(notes: list[str], source: Source, env: Environment, which: str) -> None:
    _warn(notes, f"{source.text}: {which} actions lay outside {env.range_in_words} and were clipped to it")


def _warn_of_range(notes: list[str], arrays: dict[str, np.ndarray], dims: list[int]) -> None:
    """Say so where the expert is mostly outside the range of the offline states: in other units, or another frame."""
    states, offline = arrays["expert/observations"], arrays["observations"]
    for some in (offline[:: max(len(offline) // RANGE_ROWS, 1)], offline):  # within some of them is within all
        low, high = some.min(axis=0)[dims], some.max(axis=0)[dims]
        outside = ((states < low) | (states > high)).mean(axis=0)
        if outside.max() <= MOSTLY:
            return
    for dim, share, least, most in zip(dims, outside, low, high, strict=True):
        if share > MOSTLY:
            _warn(
                notes,
                f"{100 * share:.0f} % of the expert's states lie outside the offline data in dimension {dim} "
                f"({least:.3g} to {most:.3g}): are they in other units, or in another frame?",
            )


def _warn(notes: list[str], text: str) -> None:
    """Say it now, and in the artifact's header."""
    notes.append(text)
    console.warn(text)
