"""weft: language-model decoding under a grammar and with speculation, inside one CUDA graph."""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from weft.config import EngineConfig, Speculation
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
    from weft.grammar.guide import Guide
    from weft.grammar.kinds.plugin import include_dir
    from weft.llm import LLM

__version__ = _version("weft")

__all__ = [
    "LLM",
    "CapacityError",
    "DriverError",
    "EngineConfig",
    "ExecutorError",
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
    "check",
    "free_hostfunc_user_data",
    "hostfunc",
    "hostfunc_handles",
    "include_dir",
    "launch_hostfunc",
]

_LAZY = {"LLM": "weft.llm", "Guide": "weft.grammar.guide", "include_dir": "weft.grammar.kinds.plugin"}


def __getattr__(name: str) -> Any:
    """Import what needs transformers or xgrammar on first use: `from weft import hostfunc` stays light."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")
