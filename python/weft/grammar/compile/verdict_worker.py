"""The process that asks the `jsonschema` package: schemas and answers in, a line of JSON each; verdicts out, alike.

Run as a separate file (`python worker.py CPU_SECONDS MEMORY_BYTES`), so that it loads nothing of weft. A pattern may
take Python's `re` for ever, and references may double with each step: the kernel ends it where one answer takes more
than its time of a CPU. It reads no schema from anywhere else.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]


def verdict(schema: Any, text: str) -> bool | None:
    """Whether `text` is JSON that `schema` describes, by the draft that it declares, formats included; None where
    that can't be said."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        return bool(kind(schema, registry=REGISTRY, format_checker=kind.FORMAT_CHECKER).is_valid(value))
    except SchemaError:
        return None


def serve(cpu_seconds: float, memory_bytes: int) -> None:
    """Answer until there is nothing more to read."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory_bytes, taken + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            found = verdict(*json.loads(line))
        except Exception:  # a reference to nowhere, a pattern that is none, nesting beyond Python's stack
            found = None
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
