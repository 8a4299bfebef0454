"""Tables of things by name: each entry says where its thing declares itself, and that is imported when it is asked for.

A module named in the environment variable SMODICE_PLUGINS (several with commas between them) is imported before the
first look at any table, and may add its own: `ALGORITHMS.add("mine", Mine)`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from smodice_cli.errors import ConfigError, SmodiceError, UsageError, nearest

PLUGINS = "SMODICE_PLUGINS"
Thing = TypeVar("Thing")


class Registry(Mapping[str, Thing], Generic[Thing]):
    """Things of one sort by name, in order.

    An entry is the thing itself or where to find it, `module:NAME`; of `singletons`, its class, made when asked for.
    """

    def __init__(
        self, sort: str, entries: Mapping[str, Thing | type[Thing] | str], *, singletons: bool = False
    ) -> None:
        self.sort, self.singletons = sort, singletons
        self._found: dict[str, Any] = dict(entries)

    def add(self, name: str, entry: Thing | type[Thing] | str) -> None:
        """One thing more, or another one under a known name."""
        self._found[name] = entry

    def __getitem__(self, name: str) -> Thing:
        load_plugins()
        found = self._found[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = getattr(importlib.import_module(module), attribute)
        if self.singletons and isinstance(found, type):
            found = found()
        self._found[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(self._found)

    def __len__(self) -> int:
        load_plugins()
        return len(self._found)

    def __contains__(self, name: object) -> bool:
        load_plugins()
        return name in self._found

    def check(self, name: str, where: str = "", error: type[SmodiceError] = ConfigError) -> None:
        """Refuse an unknown name, with the nearest known ones."""
        if name not in self:
            raise error(f"{where}{': ' if where else ''}unknown {self.sort} '{name}'", nearest(name, list(self)))


_loaded = False


def load_plugins() -> None:
    """Import the modules that the user named, once."""
    global _loaded
    if _loaded:
        return
    _loaded = True  # also while they are loaded: a plug-in looks at the tables itself
    for name in filter(None, map(str.strip, os.environ.get(PLUGINS, "").split(","))):
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # whatever a module may raise
            _loaded = False
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise UsageError(f"{PLUGINS}: {name} cannot be imported ({what})") from error
