"""Programs in WebAssembly as constraints, through AICI's interface of generation 2."""

from weft._core import wasm_logs, wasm_undo_bytes
from weft.aici.report import ProgramReport, program_report
from weft.grammar.wasm_limits import WasmLimits

__all__ = ["ProgramReport", "WasmLimits", "program_report", "wasm_logs", "wasm_undo_bytes"]


def __dir__() -> list[str]:
    return list(__all__)
