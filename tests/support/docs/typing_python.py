"""The interpreter for the Python blocks of a page. It reads blocks as lines of JSON and runs them in one module.

After each block it writes a NUL to standard output. An exception in a block ends the process, as in a script.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType


def main() -> None:
    typed = sys.modules["__main__"] = ModuleType("__main__")
    for line in sys.stdin:
        block = json.loads(line)
        source = "\n" * (block["line"] - 1) + block["code"]
        exec(compile(source, block["page"], "exec", dont_inherit=True), typed.__dict__)
        print("\0", end="", flush=True)


if __name__ == "__main__":
    main()
