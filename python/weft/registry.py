"""Implementations that are chosen by name: a table `name -> "module:attribute"` for each kind, imported on use.

A new grammar library, kind of guide, drafter or model is one line here. No other module needs to import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weft.errors import InputError

GRAMMARS = {
    "auto": "weft.grammar.auto:AutoBackend",
    "xgrammar": "weft.grammar.xgrammar.backend:XGrammarBackend",
    "llguidance": "weft.grammar.llguidance.backend:LLGuidanceBackend",
}

# Kinds of guides that no grammar library compiles: a `function(guide, parts) -> CompiledGuide` each, where `parts` are
# the `CompileParts` of `weft.grammar.base`.
GUIDES = {
    "after": "weft.grammar.kinds.after:compile_after",
    "matcher": "weft.grammar.kinds.custom:compile_factory",
    "wasm": "weft.aici.guide:compile_wasm",
    "plugin": "weft.grammar.kinds.custom:compile_plugin",
    "recognizer": "weft.grammar.kinds.custom:compile_recognizer",
}

DRAFTERS = {
    "eagle3": "weft.spec.eagle3:Eagle3",
    "mtp": "weft.spec.mtp:Mtp",
    "draft_model": "weft.spec.draft_model:DraftModel",
    "ngram": "weft.spec.proposers:Ngram",
    "forced": "weft.spec.proposers:Forced",
    "given": "weft.spec.proposers:Given",
    "lookahead": "weft.spec.proposers:LookaheadDrafter",
}

MODELS = {
    "LlamaForCausalLM": "weft.models.llama:Llama",
    "MistralForCausalLM": "weft.models.mistral:Mistral",
    "Qwen2ForCausalLM": "weft.models.qwen2:Qwen2",
    "Qwen3ForCausalLM": "weft.models.qwen3:Qwen3",
    "MiMoForCausalLM": "weft.models.mimo:MiMo",
}

TABLES = {
    "grammars": GRAMMARS,
    "guides": GUIDES,
    "drafters": DRAFTERS,
    "models": MODELS,
}


def names(kind: str) -> list[str]:
    """The names of one of `TABLES`, in order."""
    return list(TABLES[kind])


def load(kind: str, name: str) -> Any:
    """The class or function that a table has under `name`. Raises an `InputError` that lists the valid names."""
    table = TABLES[kind]
    if name not in table:
        raise InputError(f"{name!r} is not one of the {kind}: {', '.join(sorted(table))}")
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)
