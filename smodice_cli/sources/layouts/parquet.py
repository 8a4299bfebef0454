"""Parquet with a row a step; `--state-columns` and `--action-columns` say which columns are what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.tables import Table, matrix_of


class Parquet(Table):
    """Columns of numbers, or of lists of them that are all of one length."""

    format = "a parquet file"
    extra = ("pyarrow", "lerobot")

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        if not path.is_file():
            return False
        with open(path, "rb") as handle:
            return handle.read(4) == b"PAR1"

    def files(self) -> list[Path]:
        """The files the table is in, in order."""
        return [self.path]

    @cached_property
    def schema(self) -> Any:
        """Names and types of the first file's columns."""
        import pyarrow.parquet as pq

        return pq.read_schema(self.files()[0])

    def kinds(self) -> Mapping[str, str]:
        return {field.name: _kind(field.type) for field in self.schema}

    def whole(self) -> set[str]:
        return {name for name, kind in self.kinds().items() if kind.startswith("whole numbers")}

    def listing(self) -> dict[str, str]:
        return dict(self.kinds())

    @cached_property
    def _first(self) -> dict[str, int]:
        """The widths of the columns in the first row, where their types do not tell."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.files()[0]) as file:
            names = [name for name, kind in self.kinds().items() if "numbers" in kind]
            for batch in file.iter_batches(1, columns=names):
                return {name: matrix_of(batch.column(name), self.origin, name).size for name in names}
        raise InputError(f"{self.origin} has no rows")

    def width(self, column: str) -> int:
        return self._first[column]

    def batches(self, names: list[str]) -> Iterator[dict[str, np.ndarray]]:
        import pyarrow.parquet as pq

        for path in self.files():
            with pq.ParquetFile(path) as file:
                if absent := [name for name in names if name not in file.schema_arrow.names]:
                    raise InputError(f"{path} has no '{absent[0]}' (it has: {', '.join(file.schema_arrow.names)})")
                declared = 4 * file.metadata.num_rows * sum(map(self.width, names))
                arrays.check_size(declared, path.stat().st_size, str(path))
                for batch in file.iter_batches(arrays.BLOCK_ROWS, columns=names, use_threads=False):
                    yield {name: self._column(batch, name, path) for name in names}

    def _column(self, batch: Any, name: str, path: Path) -> np.ndarray:
        found = matrix_of(batch.column(name), str(path), name)
        if found.dtype.kind not in "biuf":
            raise InputError(f"{path}: '{name}' is not a column of numbers")
        if len(found) and found[0].size != self.width(name):
            raise InputError(f"{path}: '{name}' holds {found[0].size} numbers a row, elsewhere {self.width(name)}")
        return found


def _kind(found: Any) -> str:
    """A type of Arrow's in our words."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_list(found) or kinds.is_large_list(found) or kinds.is_fixed_size_list(found):
        inner = _kind(found.value_type)
        return f"{inner}, a list a row" if "numbers" in inner else inner
    if kinds.is_floating(found):
        return "numbers"
    if kinds.is_integer(found) or kinds.is_boolean(found):
        return "whole numbers"
    return "pictures or other parts" if kinds.is_struct(found) else f"text or other things ({found})"
