"""Handles imports of TensorRT-LLM: their replacements, and names of parts other than the Executor API."""

from __future__ import annotations

from weft.migration.api import load

BINDINGS = "tensorrt_llm.bindings"
OURS = "weft.executor"

_LLM = {
    "LLM": "weft.LLM",
    "SamplingParams": "weft.SamplingParams",
    "GuidedDecodingParams": "weft.Guide",
    "RequestOutput": "weft.Output",
    "CompletionOutput": "weft.Output",
}
_LLM_MODULES = ("tensorrt_llm", "tensorrt_llm.llmapi", "tensorrt_llm.hlapi", "tensorrt_llm.sampling_params")


def is_theirs(path: str) -> bool:
    """Whether a module belongs to TensorRT-LLM."""
    return path.split(".")[0] == "tensorrt_llm"


def is_executor(path: str) -> bool:
    """Whether a module is the Executor API or one of its submodules, in weft or TensorRT-LLM."""
    return any(path == root or path.startswith(f"{root}.") for root in (load().module, OURS))


def is_on_the_way(path: str) -> bool:
    """Whether a module is a parent package of TensorRT-LLM's Executor API."""
    return load().module.startswith(f"{path}.")


def within(path: str) -> str:
    """Return a path relative to the Executor API's module: "" for the module itself, "kv_cache" for its submodule.
    Raises `ValueError` for a path outside of the module."""
    for root in (load().module, OURS):
        if path == root:
            return ""
        if path.startswith(f"{root}."):
            return path.removeprefix(f"{root}.")
    raise ValueError(path)


def instead_of_import(path: str, alias: str | None) -> str:
    """Return the text that replaces `import path as alias`."""
    if is_executor(path):
        inner = within(path)
        return f"import {OURS}{'.' + inner if inner else ''}" + (f" as {alias}" if alias else "")
    name = f"{alias or path}.{load().module.removeprefix(path + '.')}"
    return f"import {OURS}, and write {OURS} for {name}"


def why_unused(path: str) -> str:
    """Return the finding's text for an import of a parent package through which no name of the Executor API is used."""
    return f"nothing of the Executor API is reached through {path}, so that there is nothing for it; leave it out"


def why_elsewhere(path: str, name: str) -> str:
    """Return the finding's text for a name of another part of TensorRT-LLM. It names weft's counterpart."""
    full = f"{path}.{name}" if name else path
    if path.startswith(_LLM_MODULES[1:]) or (path == _LLM_MODULES[0] and name in _LLM):
        instead = f"write {_LLM[name]}" if name in _LLM else "see weft.LLM"
        return (
            f"{full} is of the LLM API, which weft.executor does not replace; {instead}, which has names of its own "
            "(docs/llm.md)"
        )
    return f"{full} is no part of the Executor API, which is all that weft.executor replaces"
