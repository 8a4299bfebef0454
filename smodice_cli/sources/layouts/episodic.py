"""Recordings with a group, or a file, an episode: each is read whole, and several make a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from smodice_cli.data import Transitions
from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import Layout, arrays
from smodice_cli.sources.source import Blocks


class Episodic(Layout):
    """A recording whose episodes have numbers of their own."""

    def numbers(self) -> Sequence[int]:
        """The numbers of the episodes, in order."""
        raise NotImplementedError

    def name(self, number: int) -> str:
        """What the file calls an episode."""
        raise NotImplementedError

    def episode(self, number: int, *, states_only: bool) -> Transitions | None:
        """One episode; None where it has no step."""
        raise NotImplementedError

    def episodes(self, horizon: int, *, states_only: bool = False) -> Blocks:
        return arrays.batched(self._single(states_only))

    def _single(self, states_only: bool) -> Iterator[Transitions]:
        widths = None
        for number in self.numbers():
            found = self.episode(number, states_only=states_only)
            if found is None:
                continue
            sizes = (found.observations.shape[1], found.actions.shape[1])
            if sizes != (widths := widths or sizes):
                raise InputError(
                    f"{self.origin}: {self.name(number)} has {sizes[0]} dimensions of state and {sizes[1]} of action, "
                    f"others {widths[0]} and {widths[1]}"
                )
            yield replace(found, origin=np.array([[0, number, 0]]))
