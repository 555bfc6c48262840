"""Byte-level BPE tokenizers: a GGUF file's as the files of a model directory, and a directory's as GGUF's metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.errors import TokenizerError
from weft.files import read_json
from weft.models.gguf.fields import Metadata
from weft.models.gguf.splitting import SPLITTING, splitting_name

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""GGUF's types of tokens: of the text; special; added, and part of the text; a row of the embedding without a token."""

_NAMED = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def tokenizer_json(fields: Metadata) -> dict[str, Any]:
    """The contents of tokenizer.json. Raises `TokenizerError` for what is no byte-level BPE, or cuts text in a way that
    weft has no name for."""
    kind, splitting = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or splitting not in SPLITTING:
        raise TokenizerError(
            f"{fields.where}: its tokenizer is {kind!r} with the splitting {splitting!r}; 'gpt2' (byte-level BPE) can "
            f"be converted, with {', '.join(map(repr, SPLITTING))}"
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
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
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config_json(fields: Metadata) -> dict[str, Any]:
    """The contents of tokenizer_config.json: the special tokens by name, and the chat template."""
    tokens = fields["tokenizer.ggml.tokens"]
    numbers = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in _NAMED.items()}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        **{name: tokens[number] for name, number in numbers.items() if number is not None},
    }
    template = fields.get("tokenizer.chat_template")
    return config if template is None else {**config, "chat_template": template}


def add_tokenizer(writer: Any, directory: Path, vocab_size: int) -> None:
    """Add a directory's tokenizer to what a `gguf.GGUFWriter` writes. Raises `TokenizerError` as the other way does."""
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
    """Every token of a tokenizer.json with its type, a name for each row of the embedding that has none."""
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for text, number in spelled["model"]["vocab"].items():
        tokens[number], types[number] = text, NORMAL
    for added in spelled.get("added_tokens", []):
        kind = CONTROL if added.get("special") else USER_DEFINED
        tokens[added["id"]], types[added["id"]] = added["content"], kind
    return tokens, types


def _added(number: int, text: str, kind: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **flags, "special": kind == CONTROL}


def _beginning(fields: Metadata, tokens: list[str]) -> dict[str, Any] | None:
    """What puts the token of the beginning before a text, where the file wants that."""
    number = fields.get("tokenizer.ggml.bos_token_id")
    if not fields.get("tokenizer.ggml.add_bos_token", False) or number is None:
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
