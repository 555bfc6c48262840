"""Common parts of benchmarks: timing, the description of the machine, JSON files and tables."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from weft.config.environment import environment


@dataclass
class Report:
    """The result of a benchmark: `rows`, usually with the same keys, and a `summary` of figures or tables. Keys
    contain units. `failures` are the measurements that failed, each with its `error`."""

    name: str
    rows: list[dict[str, Any]]
    summary: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        """Write `folder/NAME.json` with the machine, the versions and the commit."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        fields = asdict(self)
        if not self.failures:
            del fields["failures"]
        # Replace the file atomically. If the process is killed, the old file remains.
        part = path.with_suffix(".part")
        part.write_text(json.dumps({**fields, **environment()}, indent=2) + "\n")
        part.replace(path)
        return path

    def show(self, console: Console) -> None:
        """Print the rows as a table, or as several if the console is too narrow. Then print the summary, with lists
        of rows as tables."""
        title: str | None = f"weft bench {self.name}"
        for failure in self.failures:
            what = ", ".join(f"{key} {value}" for key, value in failure.items() if key != "error")
            console.print(f"{self.name}: failed: {what}: {failure['error']}", markup=False)
        names = {key: key for row in self.rows for key in row}
        if not names:
            return
        if self._width(names) > console.width:
            names = {key: key.replace("_", "\n") for key in names}
        for part in self._parts(names, console.width):
            table = Table(title=title)
            for key in part:
                table.add_column(
                    names[key], justify="left" if isinstance(self.rows[0].get(key), str) else "right"
                )
            for row in self.rows:
                table.add_row(*(shown(row.get(key, "")) for key in part))
            console.print(table)
            title = None
        tables = {key: value for key, value in self.summary.items() if is_table(value)}
        for key, value in self.summary.items():
            if key not in tables:
                console.print(f"{key}: {shown(value)}")
        for key, rows in tables.items():
            Report(f"{self.name}: {key}", rows).show(console)

    def _parts(self, names: dict[str, str], width: int) -> list[list[str]]:
        """Return the columns of each table. Every table begins with the columns that identify a row."""
        keys = list(names)
        num_telling = next((n for n in range(1, len(keys)) if self._tell_apart(keys[:n])), 1)
        telling, others = keys[:num_telling], keys[num_telling:]
        parts = [list(telling)]
        for key in others:
            taken = {each: names[each] for each in (*parts[-1], key)}
            if self._width(taken) > width and len(parts[-1]) > num_telling:
                parts.append(list(telling))
            parts[-1].append(key)
        return parts

    def _tell_apart(self, keys: list[str]) -> bool:
        return len({tuple(str(row.get(key)) for key in keys) for row in self.rows}) == len(self.rows)

    def _width(self, names: dict[str, str]) -> int:
        """Return the width of a table with these columns in characters. Each column has a border and two spaces."""
        return 1 + sum(
            3
            + max(len(text) for text in (*name.split("\n"), *(shown(row.get(key, "")) for row in self.rows)))
            for key, name in names.items()
        )


def is_table(value: Any) -> bool:
    """Whether a value in a summary is a list of rows."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def shown(value: Any) -> str:
    """Format a float with three digits. Other values are returned unchanged."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def median_seconds(run: Callable[[], object], repeat: int, warmup: int = 3) -> float:
    """Return the median wall time of `run()` in seconds."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
