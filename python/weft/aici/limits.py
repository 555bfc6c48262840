"""`WasmLimits`: the resource limits of a WASM program."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

from weft.errors import GuideError

BOUNDS: dict[str, tuple[float, float]] = {
    "step_ms": (1, 60_000),
    "start_ms": (1, 600_000),
    "memory_bytes": (1 << 16, 1 << 32),
    "stack_bytes": (16 << 10, 4 << 20),
    "table_elements": (1, 10_000_000),
    "log_bytes": (1, 1 << 30),
    "result_bytes": (1 << 10, 64 << 20),
    "max_variables": (1, 1_000_000),
    "variable_bytes": (1, 1 << 30),
    "undo_bytes": (1 << 20, 1 << 40),
    "undo_tokens": (16, 1_000_000),
    "module_bytes": (8, 1 << 30),
    "compile_s": (0.1, 3600),
    "compile_memory_bytes": (256 << 20, 1 << 40),
}
"""The smallest and largest allowed value of each limit."""


@dataclass(frozen=True)
class WasmLimits:
    """Resource limits of one WASM program. A running program that exceeds a limit ends its own request, with an error
    that names the limit. A module that exceeds one is refused before it runs. The constructor raises `GuideError` for a
    value out of range.
    """

    step_ms: int = 25
    """CPU time of one token's step, in milliseconds."""
    start_ms: int = 1000
    """CPU time from the start to the first mask, in milliseconds."""
    memory_bytes: int = 64 << 20
    """Size of the program's linear memory, for each sequence."""
    stack_bytes: int = 512 << 10
    """Size of the call stack."""
    table_elements: int = 100_000
    """Size of the function table, for indirect calls."""
    log_bytes: int = 64 << 10
    """Size of the log output of one step, and of the tail of the log that is kept."""
    result_bytes: int = 1 << 20
    """Size of one step's result, of one storage command, and of one text to tokenize."""
    max_variables: int = 1000
    """Number of variables. The sequences of a request share them."""
    variable_bytes: int = 1 << 20
    """Total size of the names and values of the variables."""
    undo_bytes: int = 64 << 20
    """Size of the undo data for rollbacks. The oldest tokens can't be rolled back any more if it is full."""
    undo_tokens: int = 256
    """Number of tokens that can be rolled back."""
    module_bytes: int = 16 << 20
    """Size of the module."""
    compile_s: float = 20.0
    """CPU seconds to compile an untrusted module, at most `CompileLimits.time_s`."""
    compile_memory_bytes: int = 2 << 30
    """Memory of the process that compiles an untrusted module."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            smallest, largest = BOUNDS[field.name]
            is_number = isinstance(value, int | float if field.name == "compile_s" else int)
            if isinstance(value, bool) or not is_number or not math.isfinite(value):
                raise GuideError(f"WasmLimits.{field.name} is {value!r}; give a number")
            if not smallest <= value <= largest:
                raise GuideError(f"WasmLimits.{field.name} is {value}; it must be {smallest} to {largest}")

    def of_programs(self) -> dict[str, int]:
        """The limits that apply to a running program, by name, without those of compiling."""
        compiling = ("module_bytes", "compile_s", "compile_memory_bytes")
        return {name: value for name, value in asdict(self).items() if name not in compiling}
