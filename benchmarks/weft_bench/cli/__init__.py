"""`weft bench`: each command measures one claim, prints a table, and optionally writes JSON. Each folder of benchmarks
has a file here."""

from weft_bench.cli import runtime, grammar, engine, serve, every  # isort: skip  (the order of `weft bench --help`)
from weft_bench.cli.app import app

__all__ = ["app", "engine", "every", "grammar", "runtime", "serve"]
