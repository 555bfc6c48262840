"""`weft bench`: each command measures one claim, prints a table, and writes JSON where asked. A file for each folder of
benchmarks.
"""

from weft_bench.cli import runtime, grammar, engine, serve, every  # isort: skip  (the order of `weft bench --help`)
from weft_bench.cli.app import app

__all__ = ["app", "engine", "every", "grammar", "runtime", "serve"]
