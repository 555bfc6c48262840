"""`python -m weft.migration FILE.py ...`: lists the names of TensorRT-LLM that weft lacks or treats differently."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from weft.errors import InputError
from weft.migration.findings import Finding
from weft.migration.program import check_file
from weft.migration.report import as_json, as_text

NOTHING, SOMETHING, UNREADABLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the files given on the command line, print the findings, and return the exit code.

    0: nothing to change; 1: something to change; 2: a file can't be read or parsed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m weft.migration",
        description="Say what Python programs written for TensorRT-LLM's Executor use that weft.executor lacks or does "
        "otherwise. They are read, not run.",
        epilog="Ends with 0 where nothing is to be changed, with 1 where something is, with 2 where a file can't be "
        "read or parsed.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE.py", help="a Python program")
    parser.add_argument("--json", action="store_true", help="print findings as JSON")
    asked = parser.parse_args(arguments)
    found: dict[str, list[Finding]] = {}
    wrong: list[str] = []
    for file in asked.files:
        try:
            found[file] = check_file(file)
        except InputError as error:
            wrong.append(str(error))
    print((as_json if asked.json else as_text)(found, wrong))
    if wrong:
        return UNREADABLE
    return SOMETHING if any(found.values()) else NOTHING


if __name__ == "__main__":
    sys.exit(main())
