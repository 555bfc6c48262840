"""Settings: frozen dataclasses that say what is wrong with a value when it is given, and where models are."""

from weft.config.engine import (
    Chunking,
    EngineConfig,
    Graphs,
    HostTasks,
    Policy,
    positions_ahead,
)
from weft.config.environ import is_debug, named_commit
from weft.config.paths import PACKAGE_MODEL, model_directory, package_model_path
from weft.config.speculation import MAX_DRAFT_TOKENS, DraftTokens, GuideDrafts, Speculation

__all__ = [
    "MAX_DRAFT_TOKENS",
    "PACKAGE_MODEL",
    "Chunking",
    "DraftTokens",
    "EngineConfig",
    "Graphs",
    "GuideDrafts",
    "HostTasks",
    "Policy",
    "Speculation",
    "is_debug",
    "model_directory",
    "named_commit",
    "package_model_path",
    "positions_ahead",
]
