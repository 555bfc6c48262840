"""What a WASM program may cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

from weft.errors import GuideError


@dataclass(frozen=True)
class WasmLimits:
    """What a WASM program may use, each by itself. What it breaks ends its own request, with an error that names the
    limit.

    `step_ms`: milliseconds for one token; `start_ms`: from its start to its first mask. `memory_bytes`: its memory, for
    each sequence. `stack_bytes`: its stack of calls. `table_elements`: functions that it may call by address.
    `log_bytes`: what it may write to its log in one step. `result_bytes`: what a step may answer, or have tokenized.
    `max_variables` and `variable_bytes`: how many variables a request's sequences share, and the bytes of their names
    and values. `undo_bytes` and `undo_tokens`: what is kept to take tokens back, and of how many.
    `module_bytes`: the module. `compile_s` (of a CPU, at most `CompileLimits.time_s`) and `compile_memory_bytes`: its
    compiling, where it is not trusted.

    Raises `GuideError` for a limit that is none.
    """

    step_ms: int = 25
    start_ms: int = 1000
    memory_bytes: int = 64 << 20
    stack_bytes: int = 512 << 10
    table_elements: int = 100_000
    log_bytes: int = 64 << 10
    result_bytes: int = 1 << 20
    max_variables: int = 1000
    variable_bytes: int = 1 << 20
    undo_bytes: int = 64 << 20
    undo_tokens: int = 256
    module_bytes: int = 16 << 20
    compile_s: float = 20.0
    compile_memory_bytes: int = 2 << 30

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
        """The limits that hold while a program runs, by their names."""
        compiling = ("module_bytes", "compile_s", "compile_memory_bytes")
        return {name: value for name, value in asdict(self).items() if name not in compiling}


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
