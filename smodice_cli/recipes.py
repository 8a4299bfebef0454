"""Recipes (TOML): which data, which algorithms, and what each does otherwise than the defaults.

Those that ship with the tool are known by name; `[about]` tells people what one is for, and nothing reads it but them.
Settings merge in the order preset, recipe, what defines the algorithm, the recipe's `[value.demodice]` for it, `--set`.
A file of variants holds named changes to any recipe: `[chi2]` with `value.f = "chi2"`. Presets are TOML files, too.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smodice_cli import files
from smodice_cli.algos import ALGORITHMS
from smodice_cli.config import Config, Settings, assign, build, merge, parse_assignments
from smodice_cli.errors import ConfigError, InputError, UsageError, nearest
from smodice_cli.stages import DEFAULT, chain, has, sections

HERE = Path(__file__).parent
PRESETS = {path.stem: path for path in sorted((HERE / "presets").glob("*.toml"))}
ABOUT: dict[str, Any] = {"task": str, "paper": str, "minutes": int | float}  # what a recipe may say of itself
Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """The settings that all algorithms of a run share, with those of single ones in subsections, and which run."""

    settings: Settings
    algos: list[str]


def preset(name: Any) -> Settings:
    """A named set of settings; the empty name is our defaults."""
    if not isinstance(name, str) or (name and name not in PRESETS):
        raise ConfigError(f"unknown preset '{name}'", nearest(str(name), list(PRESETS)))
    return _parse(PRESETS[name]) if name else {}


# --- recipes by name -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shipped:
    """A recipe that comes with the tool, and what it says of itself."""

    name: str
    path: Path
    task: str = ""
    paper: str = ""  # the section of the paper
    minutes: float | None = None  # of one seed, data included, on two cores


def pipelines() -> Path:
    """Where the shipped recipes lie: within an installed package, beside it in a checkout."""
    inside = HERE / "pipelines"
    return inside if inside.is_dir() else HERE.parent / "pipelines"


def names() -> dict[str, Path]:
    """The shipped recipes by name, that of the file, which no two share, whatever their folders."""
    return {path.stem: path for path in sorted(pipelines().glob("*/*.toml"))}


def variant_names() -> dict[str, Path]:
    """The shipped files of variants by name."""
    return {path.stem: path for path in sorted(pipelines().glob("*.toml"))}


def shipped() -> list[Shipped]:
    """The shipped recipes with what they say of themselves, the quickest first."""
    found = [Shipped(name, path, **_about(path, _parse(path))) for name, path in names().items()]
    return sorted(found, key=lambda recipe: math.inf if recipe.minutes is None else recipe.minutes)


def locate(text: str) -> Path:
    """A recipe by its name, or by its path."""
    return _locate(text, "recipe", names(), " (smodice recipes lists them)")


def locate_variants(text: str) -> Path:
    """A file of variants by its name, or by its path."""
    return _locate(text, "file of variants", variant_names())


def _locate(text: str, what: str, known: Mapping[str, Path], more: str = "") -> Path:
    if text in known:
        return known[text]
    path = Path(text)
    files.check_regular(path)
    if not path.is_file():
        raise InputError(f"{what} {text} does not exist", nearest(path.stem, list(known)) + more)
    return path


def _about(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Take out what a recipe says of itself."""
    about = raw.pop("about", {})
    if not isinstance(about, dict):
        raise ConfigError(f"{path}: 'about' must be a section, [about]")
    for key, value in about.items():
        if key not in ABOUT:
            raise ConfigError(f"{path}: unknown key 'about.{key}'", nearest(key, list(ABOUT)))
        if not isinstance(value, ABOUT[key]) or isinstance(value, bool):
            raise ConfigError(f"{path}: about.{key} = {value!r} must be {'text' if ABOUT[key] is str else 'a number'}")
    return about


# --- reading ---------------------------------------------------------------------------------------------------------


def parse_set(assignments: Iterable[str], only: str = "") -> Settings:
    """The settings after --set, for any section or `only` one."""
    found = parse_assignments(list(assignments), _known(), only)
    return _check_chosen(found, "--set ")


def chosen(values: Mapping[str, Any], only: str = "") -> Settings:
    """The same from a program: {"value.gamma": 0.98}."""
    found: Settings = {}
    for name, value in values.items():
        assign(found, name, value, _known(), only)
    return _check_chosen(found)


def _known() -> dict[str, set[str]]:
    """The settings of every section, whichever algorithm reads them."""
    return {
        section: {name for algo in ALGORITHMS for name in stage.config_of(algo).__dataclass_fields__}
        for section, stage in sections().items()
    }


def _check_chosen(found: Settings, origin: str = "") -> Settings:
    for section, values in found.items():
        for key, value in values.items():
            if isinstance(value, dict):
                _check_subsection(f"{origin}{section}.{key}", section, key)
            elif key in ALGORITHMS:
                hint = f"a setting of it: {section}.{key}.SETTING=VALUE"
                raise ConfigError(f"{origin}{section}.{key}={value}: {key} is an algorithm", hint)
    return found


def read_recipe(path: Path, source: str = "", algos: Sequence[str] = (), base: str = "") -> Recipe:
    """A TOML recipe, over the preset that it names or `base`; refuses what no section or algorithm reads.

    `algo = [...]` at the top says which algorithms are compared; `algos` are run instead of the recipe's own.
    `[dataset.NAME]` is another choice of data: `source` NAME puts it over `[dataset]`, otherwise it is left out.
    """
    raw = _parse(path)
    _about(path, raw)
    below = merge(preset(base), preset(raw.pop("preset", "")))
    own = check_algorithms(raw.pop("algo", DEFAULT), f"{path}: algo")
    algos = check_algorithms(list(algos), "--algo") if algos else own
    for name, value in raw.items():
        if name not in sections():
            raise ConfigError(
                f"{path}: unknown section '{name}'", nearest(name, [*sections(), "preset", "algo", "about"])
            )
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: '{name}' must be a section, [{name}]")
    data = raw.get("dataset", {})
    choices = {name: data.pop(name) for name in list(data) if isinstance(data[name], dict)}
    if source and source not in choices:
        hint = nearest(source, list(choices)) if choices else "leave --source out"
        raise ConfigError(f"{path} has no section [dataset.{source}]", hint)
    for section, values in raw.items():
        for key, value in values.items():
            if isinstance(value, dict) or key in ALGORITHMS:
                _check_own(f"{path}: [{section}.{key}]", section, key, value)
    refuse_unread(raw, algos)
    _refuse_overruled(path, raw, algos)
    return Recipe(merge(below, raw, {"dataset": choices[source]} if source else {}), list(algos))


def written(path: Path) -> str:
    """A recipe as its author wrote it, if it is one."""
    _parse(path)
    return path.read_text()


def _parse(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"recipe {path} does not exist")
    try:
        return tomllib.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        if path.suffix != ".toml":
            hint = "recordings go behind --offline and --expert: one flag for each file, or a pattern in quotes"
            raise ConfigError(f"{path} is no recipe, which is a TOML file", hint) from error
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


# --- checks ----------------------------------------------------------------------------------------------------------


def check_algorithms(names: Any, where: str) -> list[str]:
    """One algorithm or a list of them, each known and named once."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
        raise ConfigError(f'{where} must be a list of algorithms, e.g. ["smodice", "bc"]')
    for name in found:
        ALGORITHMS.check(name, where)
    if len(set(found)) != len(found):
        raise ConfigError(f"{where}: an algorithm is named twice")
    return found


def config_of(section: str, algo: str) -> type[Config]:
    """The class of a section's settings for this algorithm."""
    return sections()[section].config_of(algo)


def _readers(section: str, key: str) -> list[str]:
    """The algorithms that read this setting."""
    return [algo for algo in ALGORITHMS if key in config_of(section, algo).__dataclass_fields__]


def refuse_unread(settings: Sections, algos: Sequence[str]) -> None:
    """Refuse a setting that only other algorithms than these read."""
    for section, values in settings.items():
        for key, value in values.items():
            readers = [] if isinstance(value, dict) else _readers(section, key)
            if readers and not set(readers) & set(algos):
                raise ConfigError(f"{section}.{key} is not read by {', '.join(algos)}", f"only by {', '.join(readers)}")


def _check_subsection(where: str, section: str, algo: str) -> None:
    """Refuse settings for one algorithm where there is no such algorithm, or where it has no such stage."""
    if not sections()[section].by_algorithm:
        raise ConfigError(f"{where}: expected a single value, not a table")
    ALGORITHMS.check(algo, where)
    if not has(algo, section):
        raise ConfigError(f"{where}: {algo} has no {sections()[section].name}")


def _check_own(where: str, section: str, algo: str, values: Any) -> None:
    """Refuse a subsection that its algorithm cannot read, also where that algorithm does not run."""
    _check_subsection(where, section, algo)
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a section of settings, not {values!r}")
    refuse_unread({section: values}, [algo])
    build(config_of(section, algo), section, values)


def _refuse_overruled(path: Path, raw: Sections, algos: Sequence[str]) -> None:
    """Refuse a recipe's setting for a single algorithm that has a value of its own for it, which would win."""
    if len(algos) == 1:
        for section, fixed in ALGORITHMS[algos[0]].defaults.items():
            if found := [key for key in raw.get(section, {}) if key in fixed]:
                raise ConfigError(
                    f"{path}: {algos[0]} has a {section}.{found[0]} of its own",
                    f"to change it for {algos[0]}, set it in [{section}.{algos[0]}]",
                )


def refuse_idle(chosen: Settings, algos: Sequence[str]) -> None:
    """Refuse what was chosen on the command line for an algorithm, or a stage, that does not run."""
    for section, stage in sections().items():
        if chosen.get(section) and not any(has(algo, section) for algo in algos):
            raise ConfigError(f"--set has settings of {stage.name}, which {', '.join(algos)} does not need")
    for values in chosen.values():
        if idle := [key for key, value in values.items() if isinstance(value, dict) and key not in algos]:
            raise ConfigError(f"--set has settings of {idle[0]}, which does not run", f"it runs {', '.join(algos)}")


# --- the settings of each algorithm ----------------------------------------------------------------------------------


def for_algorithm(algo: str, shared: Settings, chosen: Settings) -> Settings:
    """The settings of one algorithm, without subsections and without what only the others read."""
    layers = [_common(shared, algo), ALGORITHMS[algo].defaults, _own(shared, algo), _common(chosen, algo)]
    named = {s.section: {"algo": algo} for s in chain(algo) if "algo" in s.config_of(algo).__dataclass_fields__}
    return merge(*layers, _own(chosen, algo), named)


def _common(settings: Settings, algo: str) -> Settings:
    return {
        section: {
            key: value
            for key, value in values.items()
            if not isinstance(value, dict) and algo in (_readers(section, key) or [algo])
        }
        for section, values in settings.items()
    }


def _own(settings: Settings, algo: str) -> Settings:
    return {section: values[algo] for section, values in settings.items() if algo in values}


def configs(algo: str, settings: Settings) -> dict[str, Any]:
    """The config of every stage that the algorithm needs, by section."""
    return {s.section: build(s.config_of(algo), s.section, settings.get(s.section, {})) for s in chain(algo)}


def for_run(algo: str, algos: Sequence[str], shared: Settings, chosen: Settings) -> dict[str, Any]:
    """The configs of one of a run's algorithms, every value checked, so that nothing runs before all are right."""
    if any("algo" in values for settings in (shared, chosen) for values in settings.values()):
        raise ConfigError("algo: the algorithms of a run stand at the top of the recipe, or after --algo")
    refuse_unread(chosen, algos)
    refuse_idle(chosen, algos)
    settings = for_algorithm(algo, shared, chosen)
    for section in settings:
        build(config_of(section, algo), section, settings[section]).check()
    found = configs(algo, settings)
    for stage in chain(algo):
        stage.check_chain(algo, found)
    return found


def for_methods(recipe: Recipe, chosen: Settings, variants: Path | None) -> dict[str, dict[str, Any]]:
    """The configs of every method of a run: its algorithms, or smodice and the variants of it."""
    found = {name: for_run(name, recipe.algos, recipe.settings, chosen) for name in recipe.algos}
    if variants:
        if recipe.algos != [DEFAULT]:
            raise UsageError(f"--variants are changes to {DEFAULT}: they go with no other algorithm")
        for name, changes in read_variants(variants).items():
            found[name] = for_run(DEFAULT, recipe.algos, merge(recipe.settings, changes), chosen)
    return found


def read_variants(path: Path) -> dict[str, Settings]:
    """Named changes to a recipe's settings; every name is a folder beside the recipe's own files."""
    found = _parse(path)
    changed = [section for section, stage in sections().items() if stage.by_algorithm]
    for name, values in found.items():
        if not re.fullmatch(r"(?!seed\d)[a-z0-9][a-z0-9.-]*", name) or name in ALGORITHMS:
            raise ConfigError(f"{path}: '{name}' cannot name a variant", "use small letters, digits, dots and dashes")
        for section in values if isinstance(values, dict) else [name]:
            if section not in changed or not isinstance(values, dict) or not isinstance(values[section], dict):
                raise ConfigError(f"{path}: a variant changes {', '.join(changed)}, not '{section}'")
            refuse_unread({section: values[section]}, [DEFAULT])
            build(config_of(section, DEFAULT), section, values[section])
    return found


def find(words: Sequence[str]) -> list[str]:
    """The recipes that words on the command line name, each once: names, files, and patterns of files."""
    found = [str(path) for word in words for path in (files.matching(Path(word)) or [Path(word)])]
    return list(dict.fromkeys(found))


def for_command(
    text: str, chosen: Settings, source: str = "", algos: Sequence[str] = (), base: str = ""
) -> tuple[Recipe, Path]:
    """The recipe of a name or path, or an empty one where the data were `chosen` without; and its run folder."""
    if text:
        path = locate(text)
        return read_recipe(path, source, algos, base), run_folder(path, source)
    given = chosen.get("dataset", {})
    env = given.get("env")
    if given and not env:
        raise UsageError("which environment? smodice envs lists them", "--env data, where nobody simulates it")
    if not env:
        raise UsageError(
            "which recipe? smodice recipes lists them", "or name data of your own: --env --offline --expert"
        )
    if source:
        raise UsageError("--source chooses among the data of a recipe: name one")
    found = Recipe(preset(base), check_algorithms(list(algos) or [DEFAULT], "--algo"))
    return found, Path("runs") / str(env).rpartition(":")[2]


def run_folder(recipe: Path, source: str) -> Path:
    """Where a recipe's run lies unless another place is named."""
    place = recipe.resolve()
    name = next((name for name, path in names().items() if path.resolve() == place), recipe.stem)
    return Path("runs") / (f"{name}-{source}" if source else name)
