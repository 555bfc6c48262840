"""The worker process that compiles an untrusted module. It reads the module from standard input, and writes machine
code to standard output.

It runs as a script (`python -I -S worker.py EXTENSION LIBRARY CPU_SECONDS MEMORY_BYTES`), so that it loads nothing from
weft but the extension. It limits itself before it reads the module. If the module does not compile, it writes the
reason to standard error and exits with status 2.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import math
import resource
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

REFUSED = 2
PR_SET_PDEATHSIG = 1


def limit(cpu_seconds: float, memory_bytes: int) -> None:
    """Limit this process's CPU time and its memory beyond the current use, and forbid core dumps and file writes."""
    seconds = math.ceil(cpu_seconds)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, mapped + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def extension(path: str) -> Any:
    """Load the extension `weft._core` from `path`. An empty module stands in for the package `weft`, whose `__init__`
    does not run. Only submodules that the extension imports are loaded."""
    package = ModuleType("weft")
    package.__path__ = [str(Path(__file__).parents[2])]
    sys.modules["weft"] = package
    loader = importlib.machinery.ExtensionFileLoader("weft._core", path)
    spec = importlib.util.spec_from_file_location("weft._core", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def main(path: str, library: str, cpu_seconds: str, memory_bytes: str) -> int:
    """Compile the module on standard input. Returns the exit status."""
    # Let the kernel kill this process when its parent dies: a parent that is killed can't clean up.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C and systemd signal all processes of a server, which finishes the requests in flight.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    core = extension(path)
    problem = core.aici_bind_wasmtime(library)
    if problem:
        print(problem, file=sys.stderr)
        return REFUSED
    limit(float(cpu_seconds), int(memory_bytes))
    try:
        artefact = core.aici_compile(sys.stdin.buffer.read())
    except MemoryError:
        print("it takes more memory than it may", file=sys.stderr)
        return REFUSED
    except Exception as error:
        print(error, file=sys.stderr)
        return REFUSED
    sys.stdout.buffer.write(artefact)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
