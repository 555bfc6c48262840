"""The Python that a page is typed into: blocks come as lines of JSON, and run in one module, one after the other.

Each is answered by a NUL in standard output. What a block raises ends the process, as it ends a script.
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
