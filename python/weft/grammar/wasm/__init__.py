"""Programs in WebAssembly as constraints, through AICI's interface of generation 2."""

from weft._core import wasm_logs, wasm_undo_bytes
from weft.grammar.wasm.limits import WasmLimits
from weft.grammar.wasm.report import ProgramReport, program_report

__all__ = ["ProgramReport", "WasmLimits", "program_report", "wasm_logs", "wasm_undo_bytes"]
