"""Prints the requirements of pyproject.toml except torch: those at run time, and those of the extras serve, test, lint,
plot and docs."""

from __future__ import annotations

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
wanted = list(project["dependencies"])
for extra in ("serve", "test", "lint", "plot", "docs"):
    wanted += project["optional-dependencies"][extra]
print("\n".join(sorted({line for line in wanted if not line.startswith("torch")})))
