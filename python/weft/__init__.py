"""weft: language-model decoding under a grammar and with speculation, inside one CUDA graph."""

from __future__ import annotations

import logging as _logging
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from weft.config import EngineConfig, Speculation, package_model_path
from weft.core import Output, OutputStats, Piece, SamplingParams
from weft.errors import (
    CapacityError,
    DriverError,
    ExecutorError,
    GraphError,
    GuideError,
    GuideStateError,
    HostFuncError,
    InputError,
    InterfaceError,
    ModelError,
    RequestError,
    TokenizerError,
    WeftError,
)
from weft.runtime.hostfunc import (
    check,
    free_hostfunc_user_data,
    hostfunc,
    hostfunc_handles,
    launch_hostfunc,
)

if TYPE_CHECKING:
    from weft.engine.flight_recorder import FlightRecorder
    from weft.grammar.guide import Guide
    from weft.grammar.kinds.plugin import include_dir
    from weft.llm import LLM
    from weft.models.outputs import mark_output
    from weft.text import load_tokenizer

__version__ = _version("weft")

_logging.getLogger("weft").addHandler(_logging.NullHandler())

__all__ = [
    "LLM",
    "CapacityError",
    "DriverError",
    "EngineConfig",
    "ExecutorError",
    "FlightRecorder",
    "GraphError",
    "Guide",
    "GuideError",
    "GuideStateError",
    "HostFuncError",
    "InputError",
    "InterfaceError",
    "ModelError",
    "Output",
    "OutputStats",
    "Piece",
    "RequestError",
    "SamplingParams",
    "Speculation",
    "TokenizerError",
    "WeftError",
    "__version__",
    "check",
    "free_hostfunc_user_data",
    "hostfunc",
    "hostfunc_handles",
    "include_dir",
    "launch_hostfunc",
    "load_tokenizer",
    "mark_output",
    "package_model_path",
]

_LAZY = {
    "FlightRecorder": "weft.engine.flight_recorder",
    "Guide": "weft.grammar.guide",
    "LLM": "weft.llm",
    "include_dir": "weft.grammar.kinds.plugin",
    "load_tokenizer": "weft.text",
    "mark_output": "weft.models.outputs",
}


def __getattr__(name: str) -> Any:
    """Import what needs transformers or xgrammar on first use: `from weft import hostfunc` stays light."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
