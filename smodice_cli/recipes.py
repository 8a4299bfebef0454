"""Recipes (TOML): which data, which algorithms, and what each does otherwise than the defaults.

Settings merge in the order preset, recipe, what defines the algorithm, the recipe's `[value.demodice]` for it, `--set`.
A file of variants holds named changes to any recipe: `[chi2]` with `value.f = "chi2"`.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smodice_cli.config import (
    BY_ALGORITHM,
    SECTIONS,
    DiscConfig,
    PolicyConfig,
    Settings,
    ValueConfig,
    build,
    check_ends,
    check_own_section,
    check_together,
    merge,
    preset,
    refuse_unread,
)
from smodice_cli.errors import ConfigError, InputError, UsageError, nearest
from smodice_cli.methods import METHODS

RUN = "run"  # the section that holds the top-level `algo` of a recipe


def read_recipe(path: Path, source: str = "", algos: str | Sequence[str] = ()) -> Settings:
    """The sections of a TOML recipe, with unknown sections refused; `preset = "..."` at the top expands first.

    `algo = [...]` at the top says which algorithms are compared. `[dataset.NAME]` is another choice of data: `source`
    NAME puts it over `[dataset]`, otherwise it is left out. `algos` are run instead of the recipe's own.
    """
    raw = _parse(path)
    base = preset(raw.pop("preset", ""))
    own = check_algorithms(raw.pop("algo", "smodice"), f"{path}: algo")
    algos = check_algorithms(algos, "--algo") if algos else own
    for name, value in raw.items():
        if name not in SECTIONS:
            raise ConfigError(f"{path}: unknown section '{name}'", nearest(name, [*SECTIONS, "preset", "algo"]))
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: '{name}' must be a section, [{name}]")
    data = raw.get("dataset", {})
    choices = {name: data.pop(name) for name in list(data) if isinstance(data[name], dict)}
    if source and source not in choices:
        hint = nearest(source, list(choices)) if choices else "leave --source out"
        raise ConfigError(f"{path} has no section [dataset.{source}]", hint)
    for name, section in raw.items():
        for key, values in section.items():
            if isinstance(values, dict) or key in METHODS:
                _check_own(f"{path}: [{name}.{key}]", name, key, values)
    refuse_unread(raw.get("policy", {}), algos)
    _refuse_overruled(path, raw, algos)
    return merge(base, raw, {"dataset": choices[source]} if source else {}, {RUN: {"algo": algos}})


def _refuse_overruled(path: Path, raw: dict[str, Any], algos: Sequence[str]) -> None:
    """Refuse a setting of a recipe for one algorithm that this has a value of its own for, which would win."""
    if len(algos) == 1:
        for section, fixed in METHODS[algos[0]].settings.items():
            if found := [key for key in raw.get(section, {}) if key in fixed]:
                raise ConfigError(
                    f"{path}: {algos[0]} has a {section}.{found[0]} of its own",
                    f"to change it for {algos[0]}, set it in [{section}.{algos[0]}]",
                )


def read_variants(path: Path) -> dict[str, Settings]:
    """Named changes to a recipe's settings; every name is a folder beside the recipe's own files."""
    found = _parse(path)
    for name, sections in found.items():
        if not re.fullmatch(r"(?!seed\d)[a-z0-9][a-z0-9.-]*", name) or name in METHODS:
            raise ConfigError(f"{path}: '{name}' cannot name a variant", "use small letters, digits, dots and dashes")
        for section in sections if isinstance(sections, dict) else [name]:
            if section not in BY_ALGORITHM or not isinstance(sections, dict) or not isinstance(sections[section], dict):
                raise ConfigError(f"{path}: a variant changes {', '.join(BY_ALGORITHM)}, not '{section}'")
            build(section, sections[section])
    return found


def _check_own(where: str, section: str, algo: str, values: Any) -> None:
    """Refuse a section of one algorithm that is none, or holds what it does not read, whether or not it runs."""
    check_own_section(where, section, algo)
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a section of settings, not {values!r}")
    build(section, {**values, **_named(algo).get(section, {})})


def _parse(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"recipe {path} does not exist")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def check_algorithms(names: Any, where: str) -> list[str]:
    """One algorithm or a list of them, each known and named once."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
        raise ConfigError(f'{where} must be a list of algorithms, e.g. ["smodice", "bc"]')
    for name in found:
        if name not in METHODS:
            raise ConfigError(f"{where}: unknown algorithm '{name}'", nearest(name, list(METHODS)))
    if len(set(found)) != len(found):
        raise ConfigError(f"{where}: an algorithm is named twice")
    return found


def for_algorithm(algo: str, shared: Settings, chosen: Settings) -> Settings:
    """The settings of one algorithm, without subsections: presets and recipe, then what defines the method, then the
    recipe's own section of it, then what was chosen on the command line, last of all for this algorithm alone.

    Settings of [policy] that it does not read, and that are there for the others, are left out.
    """
    layers = [_common(shared, algo), METHODS[algo].settings, _own(shared, algo), _common(chosen, algo)]
    return merge(*layers, _own(chosen, algo), _named(algo))


def _named(algo: str) -> Settings:
    """The algorithm's name in the sections that keep it."""
    return {name: {"algo": algo} for name in ("value", "policy") if name in (*METHODS[algo].stages, "policy")}


def for_run(algo: str, algos: Sequence[str], shared: Settings, chosen: Settings) -> Settings:
    """The settings of one of a run's algorithms, every value checked, so that nothing runs before all are right."""
    if any("algo" in section for settings in (shared, chosen) for name, section in settings.items() if name != RUN):
        raise ConfigError("algo: the algorithms of a run stand at the top of the recipe, or after --algo")
    refuse_unread(chosen.get("policy", {}), algos)
    refuse_idle(chosen, algos)
    settings = for_algorithm(algo, shared, chosen)
    for section in SECTIONS:
        check_together(build(section, settings.get(section, {})))
    if "disc" in METHODS[algo].stages:
        check_discriminator(algo, build("disc", settings.get("disc", {})), build("value", settings.get("value", {})))
    if METHODS[algo].expert_actions and not settings.get("dataset", {}).get("expert_actions"):
        raise ConfigError(
            f"{algo} learns from the expert's actions, which imitation from observations never reads",
            "give them to it with expert_actions = true in [dataset], or --set dataset.expert_actions=true",
        )
    return settings


def for_methods(shared: Settings, chosen: Settings, algos: Sequence[str], variants: Path | None) -> dict[str, Settings]:
    """The settings of every method of a run: its algorithms, or smodice and the variants of it."""
    settings = {name: for_run(name, algos, shared, chosen) for name in algos}
    if variants:
        if list(algos) != ["smodice"]:
            raise UsageError("--variants are changes to smodice: they go with no other algorithm")
        for name, changes in read_variants(variants).items():
            settings[name] = for_run("smodice", algos, merge(shared, changes), chosen)
    return settings


def run_folder(recipe: Path, source: str) -> Path:
    """Where a recipe's run lies unless another place is named."""
    return Path("runs") / (f"{recipe.stem}-{source}" if source else recipe.stem)


def check_discriminator(algo: str, disc: DiscConfig, value: ValueConfig) -> None:
    """Refuse a discriminator of another kind than the algorithm's, or ends that it could not tell the reward of."""
    for name, wanted in METHODS[algo].discriminator.items():
        if (found := getattr(disc, name)) != wanted:
            raise ConfigError(f"{algo} needs disc.{name} = {wanted}, not {found}")
    if disc.inputs != "state" and "value" in METHODS[algo].stages:
        check_ends(value)


def refuse_idle(chosen: Settings, algos: Sequence[str]) -> None:
    """Refuse what was chosen on the command line for an algorithm, or a stage, that does not run."""
    for name in ("disc", "value"):
        if chosen.get(name) and not any(name in METHODS[algo].stages for algo in algos):
            raise ConfigError(f"--set has settings of train-{name}, which {', '.join(algos)} does not need")
    for section in chosen.values():
        if idle := [key for key, value in section.items() if isinstance(value, dict) and key not in algos]:
            raise ConfigError(f"--set has settings of {idle[0]}, which does not run", f"it runs {', '.join(algos)}")


def _common(settings: Settings, algo: str) -> Settings:
    plain = {
        name: {key: value for key, value in section.items() if not isinstance(value, dict)}
        for name, section in settings.items()
        if name in SECTIONS
    }
    readers = {f.name: f.metadata["algos"] for f in dataclasses.fields(PolicyConfig)}
    policy = plain.get("policy", {})
    return plain | {"policy": {key: v for key, v in policy.items() if algo in (readers.get(key) or (algo,))}}


def _own(settings: Settings, algo: str) -> Settings:
    return {name: settings[name][algo] for name in BY_ALGORITHM if algo in settings.get(name, {})}
