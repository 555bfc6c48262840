"""weft: language-model decoding under a grammar and with speculation, inside one CUDA graph."""

from __future__ import annotations

import logging as _logging
from typing import TYPE_CHECKING

from weft.lazy import exports as _exports

if TYPE_CHECKING:
    from weft.config import EngineConfig, Speculation, package_model_path
    from weft.core import Output, OutputStats, Piece, SamplingParams
    from weft.engine.flight_recorder import FlightRecorder
    from weft.errors import (
        CapacityError,
        DeadEndError,
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
        UnavailableError,
        WeftError,
    )
    from weft.grammar.guide import Guide
    from weft.grammar.kinds.plugin import include_dir
    from weft.llm import LLM
    from weft.models.outputs import mark_output
    from weft.runtime.hostfunc import (
        check,
        free_hostfunc_user_data,
        hostfunc,
        hostfunc_handles,
        launch_hostfunc,
    )
    from weft.tokenizer.files import load_tokenizer
    from weft.tokenizer.tokenizer import Tokenizer
    from weft.version import __version__

_logging.getLogger("weft").addHandler(_logging.NullHandler())

__all__ = [
    "LLM",
    "CapacityError",
    "DeadEndError",
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
    "Tokenizer",
    "TokenizerError",
    "UnavailableError",
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

_HOMES = {
    "EngineConfig": "weft.config",
    "Speculation": "weft.config",
    "package_model_path": "weft.config",
    "Output": "weft.core",
    "OutputStats": "weft.core",
    "Piece": "weft.core",
    "SamplingParams": "weft.core",
    "FlightRecorder": "weft.engine.flight_recorder",
    "CapacityError": "weft.errors",
    "DeadEndError": "weft.errors",
    "DriverError": "weft.errors",
    "ExecutorError": "weft.errors",
    "GraphError": "weft.errors",
    "GuideError": "weft.errors",
    "GuideStateError": "weft.errors",
    "HostFuncError": "weft.errors",
    "InputError": "weft.errors",
    "InterfaceError": "weft.errors",
    "ModelError": "weft.errors",
    "RequestError": "weft.errors",
    "TokenizerError": "weft.errors",
    "UnavailableError": "weft.errors",
    "WeftError": "weft.errors",
    "Guide": "weft.grammar.guide",
    "include_dir": "weft.grammar.kinds.plugin",
    "LLM": "weft.llm",
    "mark_output": "weft.models.outputs",
    "check": "weft.runtime.hostfunc",
    "free_hostfunc_user_data": "weft.runtime.hostfunc",
    "hostfunc": "weft.runtime.hostfunc",
    "hostfunc_handles": "weft.runtime.hostfunc",
    "launch_hostfunc": "weft.runtime.hostfunc",
    "load_tokenizer": "weft.tokenizer.files",
    "Tokenizer": "weft.tokenizer.tokenizer",
    "__version__": "weft.version",
}
if not TYPE_CHECKING:
    __getattr__, __dir__ = _exports(__name__, _HOMES)
