"""Settings as frozen dataclasses that validate their values, the model catalogue, and the directories of models."""

from weft.config.catalog import CATALOG, PACKAGE_MODEL, CatalogModel
from weft.config.engine import (
    CacheConfig,
    Chunking,
    EngineConfig,
    ExecutionConfig,
    Graphs,
    GuideConfig,
    HostTasks,
    Logprobs,
    Policy,
    ResolvedConfig,
    SchedulerConfig,
    positions_ahead,
)
from weft.config.environ import cache_directory, is_debug, kernel_variant, named_commit
from weft.config.paths import (
    WEIGHTS,
    WEIGHTS_INDEX,
    cached_model_path,
    hub_directory,
    model_directory,
    model_name,
    package_model_path,
    weight_files,
)
from weft.config.speculation import MAX_DRAFT_TOKENS, DraftTokens, GuideDrafts, Lookahead, Speculation

__all__ = [
    "CATALOG",
    "MAX_DRAFT_TOKENS",
    "PACKAGE_MODEL",
    "WEIGHTS",
    "WEIGHTS_INDEX",
    "CacheConfig",
    "CatalogModel",
    "Chunking",
    "DraftTokens",
    "EngineConfig",
    "ExecutionConfig",
    "Graphs",
    "GuideConfig",
    "GuideDrafts",
    "HostTasks",
    "Logprobs",
    "Lookahead",
    "Policy",
    "ResolvedConfig",
    "SchedulerConfig",
    "Speculation",
    "cache_directory",
    "cached_model_path",
    "hub_directory",
    "is_debug",
    "kernel_variant",
    "model_directory",
    "model_name",
    "named_commit",
    "package_model_path",
    "positions_ahead",
    "weight_files",
]
