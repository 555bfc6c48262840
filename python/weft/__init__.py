"""weft: language-model decoding under a grammar and with speculation, inside one CUDA graph."""

from __future__ import annotations

import logging as _logging
from typing import TYPE_CHECKING

from weft import errors as _errors
from weft.errors import *  # noqa: F403
from weft.lazy import exports as _exports

if TYPE_CHECKING:
    from weft.config import EngineConfig, Speculation, package_model_path
    from weft.core import Output, OutputStats, Piece, SamplingParams
    from weft.engine.features.flight_recorder import FlightRecorder
    from weft.grammar.guide import Guide
    from weft.grammar.kinds.custom import include_dir
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
    "EngineConfig",
    "FlightRecorder",
    "Guide",
    "Output",
    "OutputStats",
    "Piece",
    "SamplingParams",
    "Speculation",
    "Tokenizer",
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
__all__ += _errors.__all__

if not TYPE_CHECKING:
    # The same as above, imported when a name is first used: torch takes a second.
    _HOMES = {
        "weft.config": ("EngineConfig", "Speculation", "package_model_path"),
        "weft.core": ("Output", "OutputStats", "Piece", "SamplingParams"),
        "weft.engine.features.flight_recorder": ("FlightRecorder",),
        "weft.grammar.guide": ("Guide",),
        "weft.grammar.kinds.custom": ("include_dir",),
        "weft.llm": ("LLM",),
        "weft.models.outputs": ("mark_output",),
        "weft.runtime.hostfunc": (
            "check",
            "free_hostfunc_user_data",
            "hostfunc",
            "hostfunc_handles",
            "launch_hostfunc",
        ),
        "weft.tokenizer.files": ("load_tokenizer",),
        "weft.tokenizer.tokenizer": ("Tokenizer",),
        "weft.version": ("__version__",),
    }
    _get, __dir__ = _exports(__name__, _HOMES, __all__)

    def __getattr__(name: str) -> object:
        if name not in __all__ and name[0].isupper():  # not a module, whose import stays light
            from weft.core.names import refuse_other_library

            refuse_other_library(__name__, name)
        return _get(name)
