"""Weights as a table: a row for each row of the data, with the recording's own file, episode and frame."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path
from typing import Any

from smodice_cli.exports import Export
from smodice_cli.lazy import np
from smodice_cli.steering import RowWeights


def columns(weights: RowWeights) -> dict[str, np.ndarray]:
    """The table; `name` is there where a recording calls its episodes by name."""
    found = {
        "source": np.array(weights.sources)[weights.source],
        "file": weights.file_names(),
        "episode": weights.episode,
        "frame": weights.frame,
        "weight": weights.weight,
    }
    if any(weights.names):
        pairs, row = np.unique(np.stack([weights.source, weights.episode], 1), axis=0, return_inverse=True)
        found["name"] = np.array([weights.names[s].format(e) for s, e in pairs.tolist()])[row.reshape(-1)]
    return found


class Csv(Export):
    """For a spreadsheet, or anything."""

    ending = ".csv"

    def write(self, artifact: Path, target: Path, top: int) -> dict[str, Any]:
        table = columns(RowWeights.load(artifact))
        with open(target, "w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(table)
            writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
        return {"rows": len(table["weight"])}


class Parquet(Export):
    """For pandas, polars, or LeRobot's own tables, which join on episode and frame."""

    ending, extra = ".parquet", ("pyarrow", "lerobot")

    def write(self, artifact: Path, target: Path, top: int) -> dict[str, Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = columns(RowWeights.load(artifact))
        pq.write_table(pa.table(table), target)
        return {"rows": len(table["weight"])}


class Npz(Export):
    """For numpy."""

    ending = ".npz"

    def write(self, artifact: Path, target: Path, top: int) -> dict[str, Any]:
        table = columns(RowWeights.load(artifact))
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:  # numpy.savez knows no column named file
            for name, column in table.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, column, allow_pickle=False)
        return {"rows": len(table["weight"])}
