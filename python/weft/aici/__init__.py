"""`Guide.wasm`: WebAssembly programs that constrain answers, through AICI's interface (generation 2)."""

from weft._core import aici_log as wasm_logs
from weft._core import aici_undo_bytes as wasm_undo_bytes
from weft.aici.guide import ProgramReport, program_report
from weft.aici.limits import WasmLimits

__all__ = ["ProgramReport", "WasmLimits", "program_report", "wasm_logs", "wasm_undo_bytes"]


def __dir__() -> list[str]:
    return list(__all__)
