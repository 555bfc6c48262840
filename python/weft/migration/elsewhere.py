"""Imports of TensorRT-LLM: what is to be written instead, and what belongs to its other parts."""

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
    """Whether a module is TensorRT-LLM's."""
    return path.split(".")[0] == "tensorrt_llm"


def is_executor(path: str) -> bool:
    """Whether a module is the Executor API's, on either side, or a submodule of it."""
    return any(path == root or path.startswith(f"{root}.") for root in (load().module, OURS))


def is_on_the_way(path: str) -> bool:
    """Whether a module of TensorRT-LLM's is one that holds the Executor API's."""
    return load().module.startswith(f"{path}.")


def within(path: str) -> str:
    """What of the Executor API's module the path leads to: "" for itself, "kv_cache" for its submodule."""
    for root in (load().module, OURS):
        if path == root:
            return ""
        if path.startswith(f"{root}."):
            return path.removeprefix(f"{root}.")
    raise ValueError(path)


def instead_of_import(path: str, alias: str | None) -> str:
    """What to write instead of `import path as alias`."""
    if is_executor(path):
        inner = within(path)
        return f"import {OURS}{'.' + inner if inner else ''}" + (f" as {alias}" if alias else "")
    name = f"{alias or path}.{load().module.removeprefix(path + '.')}"
    return f"import {OURS}, and write {OURS} for {name}"


def why_unused(path: str) -> str:
    """That nothing is taken from an import through which the Executor API could be reached."""
    return f"nothing of the Executor API is reached through {path}, so that there is nothing for it; leave it out"


def why_elsewhere(path: str, name: str) -> str:
    """That a name is of another part of TensorRT-LLM, and what weft has for it."""
    full = f"{path}.{name}" if name else path
    if path.startswith(_LLM_MODULES[1:]) or (path == _LLM_MODULES[0] and name in _LLM):
        instead = f"write {_LLM[name]}" if name in _LLM else "see weft.LLM"
        return (
            f"{full} is of the LLM API, which weft.executor does not replace; {instead}, which has names of its own "
            "(docs/llm.md)"
        )
    return f"{full} is no part of the Executor API, which is all that weft.executor replaces"
