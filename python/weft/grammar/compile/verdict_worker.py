"""The worker process of `verdict.py`, which runs the `jsonschema` package. It reads a schema and an answer as one line
of JSON, and writes the verdict as one line.

It runs as a script (`python verdict_worker.py CPU_SECONDS MEMORY_BYTES`) and imports nothing from weft. A pattern may
keep Python's `re` busy forever, and references may expand exponentially. So the kernel kills the process if one answer
takes more than its CPU time. It never fetches a remote schema.
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
    """Return whether `text` is JSON that satisfies `schema`, including formats, under the draft that the schema
    declares; None if that raises `SchemaError`. Other exceptions, such as for a dangling reference, pass through."""
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
    """Answer the lines of standard input until it ends."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + memory_bytes, in_use + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            answer = verdict(*json.loads(line))
        except (
            Exception
        ):  # such as a dangling reference, an invalid pattern, or nesting beyond Python's stack
            answer = None
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
