"""Settings as data: frozen dataclasses whose fields say what they mean and which values they take.

This module knows no stage and no algorithm: each declares its own `Config`, and reads nothing else. So a cache key
depends only on what is read, and a setting that nobody reads cannot exist.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import ge, gt, le, lt
from typing import Any

from smodice_cli.errors import ConfigError, nearest

Settings = dict[str, dict[str, Any]]  # section -> setting -> value
LARGEST = 2**53  # what every library takes for a whole number
LIMITS = {"gt": ("above", gt), "ge": ("at least", ge), "lt": ("below", lt), "le": ("at most", le)}


def setting(default: Any, help: str, *, choices: Any = (), flag: bool | str = False, **more: Any) -> Any:
    """A field with its meaning, shown by `smodice settings`; `more` are its limits (`gt`, `ge`, `lt`, `le`).

    `choices` are the values it takes, or a function that is asked when a value is checked, so that it may read a table
    that others add to. `flag` makes it an option of the stage's command, too, where text says how that is written;
    `metavar` is what its value is called there.
    """
    return field(default=default, metadata={"help": help, "choices": choices, "flag": flag, **more})


@dataclass(frozen=True)
class Config:
    """The settings of one stage or algorithm."""

    def check(self) -> None:
        """Refuse settings that are right one by one and contradict each other."""


def choices_of(found: dataclasses.Field) -> list[str]:
    """The values a setting takes, where it takes only some."""
    choices = found.metadata["choices"]
    return list(choices() if callable(choices) else choices)


def build(cls: type[Config], section: str, values: Mapping[str, Any]) -> Any:
    """A config of this class, every value checked for its type and range."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    checked = {}
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(f"unknown setting '{section}.{key}'", nearest(key, list(fields)))
        checked[key] = _checked(f"{section}.{key}", value, hints[key], fields[key])
    return cls(**checked)


def _checked(name: str, value: Any, hint: Any, found: dataclasses.Field) -> Any:
    if allowed := choices_of(found):
        if value not in allowed:
            raise ConfigError(f"{name} = {value!r} is not one of {', '.join(allowed)}")
        return value
    if typing.get_origin(hint) is tuple:
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
            raise ConfigError(f"{name} must be a list of strings, not {json.dumps(value, default=str)}")
        return tuple(items)
    if type(value) is int and abs(value) > LARGEST:
        raise ConfigError(f"{name} = {value} is out of range")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise ConfigError(f"{name} = {value!r} must be of type {hint.__name__}")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{name} = {value} is out of range: it must be finite")
    for limit, (words, holds) in LIMITS.items():
        if limit in found.metadata and not holds(value, found.metadata[limit]):
            raise ConfigError(f"{name} = {value} is out of range: it must be {words} {found.metadata[limit]:g}")
    return value


def as_dict(config: Config) -> dict[str, Any]:
    """A config as plain JSON values, as it is stored in headers."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def describe(classes: Mapping[str, type[Config]], section: str) -> list[tuple[str, str, str]]:
    """(setting, default, meaning) of a section, for `smodice settings`.

    `classes` are the configs that may stand there, by algorithm: a setting that only some of them have says which, and
    one whose default is not the same for all says where it differs.
    """
    rows = []
    for name in dict.fromkeys(f.name for cls in classes.values() for f in dataclasses.fields(cls)):
        found = {a: f for a, cls in classes.items() for f in dataclasses.fields(cls) if f.name == name}
        first = next(iter(found.values()))
        words = first.metadata["help"]
        words += f" ({' | '.join(choices_of(first))})" if choices_of(first) else ""
        for other in dict.fromkeys(f.default for f in found.values() if f.default != first.default):
            words += f"; {_shown(other)} for {', '.join(a for a, f in found.items() if f.default == other)}"
        words += f"; {', '.join(found)} only" if len(found) < len(classes) else ""
        rows.append((f"{section}.{name}", _shown(first.default), words))
    return rows


def _shown(default: Any) -> str:
    return "[]" if isinstance(default, tuple) else json.dumps(default)


def merge(*layers: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Later layers win, key by key, in the subsections of algorithms too."""
    merged: Settings = {}
    for layer in layers:
        for section, values in layer.items():
            target = merged.setdefault(section, {})
            for key, value in values.items():
                target[key] = {**target.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


Known = Mapping[str, Collection[str]]  # the settings of each section


def parse_assignments(assignments: Sequence[str], sections: Known, only: str = "") -> Settings:
    """`value.gamma=0.98` as settings, `gamma=0.98` where `only` one section is meant; values are TOML.

    `policy.td3bc.steps=1000` goes to the subsection of one algorithm.
    """
    settings: Settings = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected KEY=VALUE, e.g. --set value.gamma=0.98")
        assign(settings, name.strip(), _toml_value(value.strip()), sections, only, f"--set {text}")
    return settings


def assign(settings: Settings, name: str, value: Any, sections: Known, only: str = "", where: str = "") -> None:
    """Put a value under its dotted name; `where` is what the user wrote."""
    where = where or f"{name}={value!r}"
    if not isinstance(name, str):
        raise ConfigError(f"{where}: the name of a setting is text")
    path, dot, key = name.rpartition(".")
    section, _, algo = (path if dot else only).partition(".")
    if not section:
        having = " or ".join(f"{one}.{key}" for one, keys in sections.items() if key in keys)
        hint = f"did you mean {having}?" if having else "smodice settings lists them, e.g. value.gamma"
        raise ConfigError(f"{where}: settings are called SECTION.NAME", hint)
    if section not in sections:
        raise ConfigError(f"{where}: unknown section '{section}'", nearest(section, list(sections)))
    if only and section != only:
        raise ConfigError(f"{where}: this stage reads only [{only}]")
    if isinstance(value, dict):
        raise ConfigError(f"{where}: expected a single value, not a table")
    target = settings.setdefault(section, {})
    (target.setdefault(algo, {}) if algo else target)[key] = value


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):  # of numbers with thousands of digits, too
        return text  # a bare word, e.g. --set value.f=kl
