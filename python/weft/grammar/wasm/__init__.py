"""Programs in WebAssembly as constraints, through AICI's interface of generation 2."""

from weft._core import wasm_logs, wasm_undo_bytes
from weft.grammar.wasm.limits import WasmLimits

__all__ = ["WasmLimits", "wasm_logs", "wasm_undo_bytes"]
