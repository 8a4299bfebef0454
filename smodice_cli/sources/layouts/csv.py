"""CSV with a line of names at the top; `--state-columns` and `--action-columns` say which columns are what."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from smodice_cli.errors import InputError
from smodice_cli.files import first_line
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.tables import Table

LOOKED_AT = 100  # lines by which a column's type is told
WHOLE = re.compile(r"\s*[+-]?\d+\s*")
# No digit can be taken by two parts of it: that would take the square of a field's length.
NUMBER = re.compile(r"\s*[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)\s*", re.IGNORECASE)


class Csv(Table):
    """Numbers separated by commas, or by the semicolons or tabs that the first line has."""

    format = "a CSV file"

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return path.is_file() and path.suffix.lower() in (".csv", ".tsv")

    @cached_property
    def beginning(self) -> tuple[str, list[str], list[list[str]]]:
        """What separates the fields, the names of the columns, and the first lines."""
        with open(self.path, newline="") as handle:
            top = handle.readline()
            comma = max(",;\t", key=top.count)
            names = next(csv.reader([top.lstrip("\ufeff")], delimiter=comma), [])
            lines = list(itertools.islice(csv.reader(handle, delimiter=comma), LOOKED_AT))
        if not any(names) or all(NUMBER.fullmatch(name) for name in names):
            raise InputError(f"{self.origin} is a CSV file without a line of names at its top")
        return comma, [name.strip() for name in names], lines

    def kinds(self) -> Mapping[str, str]:
        _, names, lines = self.beginning
        columns = [[line[i] for line in lines if i < len(line)] for i in range(len(names))]
        whole = self.whole()
        return {
            name: "whole numbers" if name in whole else "numbers" if all(map(NUMBER.fullmatch, column)) else "text"
            for name, column in zip(names, columns, strict=True)
        }

    def whole(self) -> set[str]:
        _, names, lines = self.beginning
        return {n for i, n in enumerate(names) if lines and all(WHOLE.fullmatch(v[i]) for v in lines if i < len(v))}

    def listing(self) -> dict[str, str]:
        return dict(self.kinds())

    def batches(self, names: list[str]) -> Iterator[dict[str, np.ndarray]]:
        comma, known, _ = self.beginning
        places = [known.index(name) for name in names]
        with open(self.path) as handle:
            handle.readline()
            while True:
                lines = list(itertools.islice(handle, arrays.BLOCK_ROWS))
                if not lines:
                    return
                try:
                    found = np.loadtxt(lines, delimiter=comma, usecols=places, ndmin=2, comments=None, quotechar='"')
                except ValueError as error:
                    raise InputError(
                        f"{self.origin}: a line does not hold its numbers ({first_line(error)})"
                    ) from error
                yield {name: found[:, index] for index, name in enumerate(names)}
