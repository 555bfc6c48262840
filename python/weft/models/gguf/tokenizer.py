"""Converts byte-level BPE tokenizers between GGUF's metadata and the files of a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.core.files import read_json
from weft.errors import TokenizerError
from weft.models.gguf.fields import Metadata
from weft.models.gguf.splitting import SPLITTING, splitting_name

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""GGUF's token types, in this order: an ordinary token, a special token, a user's added token, an embedding row without
a token."""

_NAMED = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def tokenizer_json(fields: Metadata) -> dict[str, Any]:
    """Make the contents of tokenizer.json. Raises `TokenizerError` unless the tokenizer is byte-level BPE with a
    pre-tokenizer from `SPLITTING`."""
    kind = fields.need("tokenizer.ggml.model", str)
    splitting = fields.get("tokenizer.ggml.pre", str, "gpt-2")
    if kind != "gpt2" or splitting not in SPLITTING:
        raise TokenizerError(
            f"{fields.where}: its tokenizer is {kind!r} with the splitting {splitting!r}; 'gpt2' (byte-level BPE) can "
            f"be converted, with {', '.join(map(repr, SPLITTING))}"
        )
    tokens, types = _tokens(fields), fields.listed("tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise TokenizerError(f"{fields.where}: has {len(tokens)} tokens, and types of {len(types)}")
    bytewise = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(i, tokens[i], kind) for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": SPLITTING[splitting],
        "post_processor": _beginning(fields, tokens),
        "decoder": bytewise,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens) if types[i] != UNUSED},
            "merges": _merges(fields),
        },
    }


def _tokens(fields: Metadata) -> list[str]:
    return fields.listed("tokenizer.ggml.tokens", str)


def _merges(fields: Metadata) -> list[list[str]]:
    """The BPE merges in order, each a pair of tokens."""
    pairs = [merge.split(" ") for merge in fields.listed("tokenizer.ggml.merges", str)]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise TokenizerError(
            f"{fields.where}: a merge of its tokenizer is {' '.join(wrong)!r}, which is no pair"
        )
    return pairs


def _token_id(fields: Metadata, name: str, tokens: list[str]) -> int | None:
    """The id of a special token, or None. Raises `TokenizerError` if the id is outside of the vocabulary."""
    number: int | None = fields.get(f"tokenizer.ggml.{name}_token_id", int)
    if number is not None and not 0 <= number < len(tokens):
        raise TokenizerError(f"{fields.where}: its {name} token is {number}; it has {len(tokens)} tokens")
    return number


def tokenizer_config_json(fields: Metadata) -> dict[str, Any]:
    """Make the contents of tokenizer_config.json: the special tokens by name, and the chat template."""
    tokens = _tokens(fields)
    numbers = {name: _token_id(fields, key, tokens) for name, key in _NAMED.items()}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields.need("llama.context_length", int),
        **{name: tokens[number] for name, number in numbers.items() if number is not None},
    }
    template = fields.get("tokenizer.chat_template", str)
    return config if template is None else {**config, "chat_template": template}


def add_tokenizer(writer: Any, directory: Path, vocab_size: int) -> None:
    """Add a directory's tokenizer to a `gguf.GGUFWriter`. Raises `TokenizerError` for the same tokenizers as
    `tokenizer_json`."""
    spelled, config = (read_json(directory / name) for name in ("tokenizer.json", "tokenizer_config.json"))
    model, splitting = spelled.get("model", {}), splitting_name(spelled.get("pre_tokenizer"))
    if model.get("type") != "BPE" or model.get("byte_fallback") or splitting is None:
        raise TokenizerError(
            f"{directory}: its tokenizer is no byte-level BPE, or cuts text in a way that weft has no GGUF name for"
        )
    tokens, types = _listed(spelled, vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    for name, key in _NAMED.items():
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if text in tokens:
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", tokens.index(text))
    writer.add_add_bos_token(spelled.get("post_processor") is not None)
    if isinstance(config.get("chat_template"), str):
        writer.add_chat_template(config["chat_template"])


def _listed(spelled: dict[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    """List a tokenizer.json's tokens and their types by id. Ids without a token get placeholder names. Raises
    `TokenizerError` if an id is outside of the model's vocabulary."""
    listed = [(text, number, NORMAL) for text, number in spelled["model"]["vocab"].items()]
    for added in spelled.get("added_tokens", []):
        listed.append((added["content"], added["id"], CONTROL if added.get("special") else USER_DEFINED))
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for text, number, kind in listed:
        if not 0 <= number < vocab_size:
            raise TokenizerError(
                f"the tokenizer's token {text!r} has the id {number}, but the model has {vocab_size} tokens; give "
                "the tokenizer of this model"
            )
        tokens[number], types[number] = text, kind
    return tokens, types


def _added(number: int, text: str, kind: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **flags, "special": kind == CONTROL}


def _beginning(fields: Metadata, tokens: list[str]) -> dict[str, Any] | None:
    """Make the post-processor that adds the BOS token before a text. None if the GGUF file asks for no BOS token."""
    number = _token_id(fields, "bos", tokens)
    if not fields.get("tokenizer.ggml.add_bos_token", bool, False) or number is None:
        return None
    text = tokens[number]
    first = {"SpecialToken": {"id": text, "type_id": 0}}
    sequence = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [first, sequence[0]],
        "pair": [first, *sequence],
        "special_tokens": {text: {"id": text, "ids": [number], "tokens": [text]}},
    }
