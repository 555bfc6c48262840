"""Converts tokenizers between GGUF's metadata and the files of a model directory: byte-level BPE in both directions,
and SentencePiece's BPE from GGUF."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from weft.core.files import read_json
from weft.errors import TokenizerError
from weft.models.gguf.metadata import Metadata
from weft.models.gguf.splitting import DEFAULT, SPLITTING, splitting_name
from weft.tokenizer import sentence_pieces

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""GGUF's token types, in this order: an ordinary token, that of unknown characters, a special token, a user's added
token, an embedding row without a token, a byte."""

BYTE_LEVEL, PIECES = "gpt2", "llama"
"""The values of `tokenizer.ggml.model` that weft reads: byte-level BPE, and SentencePiece's BPE."""

SPLITTING_KEY = "tokenizer.ggml.pre"

_NAMED = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
_ENDS = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
}
"""Special tokens that end an answer. Many files name only one of a model's ends."""
_SPECIAL = _ENDS | {
    "<start_of_turn>",
    "<|im_start|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|start|>",
}
"""Special tokens of chats, also where a file does not mark them as such."""
_RSTRIP = ("phi-3", "phi3")
"""Models whose special tokens swallow the white space after them. Only the names of the models say so."""
_NO_RSTRIP = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_json(fields: Metadata) -> dict[str, Any]:
    """Make the contents of tokenizer.json. Raises `TokenizerError` for tokenizers that weft does not read, and for
    contents that contradict each other."""
    kind = fields.need("tokenizer.ggml.model", str)
    tokens = _tokens(fields)
    types = _types(fields, tokens)
    if len(types) != len(tokens):
        raise TokenizerError(f"{fields.where}: has {len(tokens)} tokens, and types of {len(types)}")
    twice, count = Counter(tokens).most_common(1)[0] if tokens else ("", 0)
    if count != 1:
        raise TokenizerError(f"{fields.where}: its tokenizer has the token {twice!r} {count} times")
    if kind == PIECES:
        return _of_pieces(fields, tokens, types)
    splitting = fields.get(SPLITTING_KEY, str, "gpt-2" if fields.architecture == "gpt2" else DEFAULT)
    if kind != BYTE_LEVEL or splitting not in SPLITTING:
        raise TokenizerError(
            f"{fields.where}: its tokenizer is {kind!r} with the splitting {splitting!r}; weft reads {PIECES!r} "
            f"(SentencePiece) and {BYTE_LEVEL!r} (byte-level BPE) with {', '.join(map(repr, SPLITTING))}. Put the "
            "model's tokenizer.json and tokenizer_config.json beside the file"
        )
    rules = SPLITTING[splitting]
    vocab = {token: i for i, token in enumerate(tokens) if types[i] != UNUSED}
    bytewise = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(i, tokens[i], kind) for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": rules.normalizer,
        "pre_tokenizer": rules.pre_tokenizer,
        "post_processor": _around(fields, tokens, rules.begins),
        "decoder": bytewise,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rules.ignore_merges,
            "vocab": vocab,
            "merges": _merges(fields, vocab.keys()),
        },
    }


def names_no_splitting(fields: Metadata) -> bool:
    """Whether a file has a byte-level tokenizer, and does not say how that splits text. Files from before May 2024 do
    not. They have the tokens of their model, and text becomes others than in its training."""
    is_bytewise = fields.get("tokenizer.ggml.model", str) == BYTE_LEVEL
    return is_bytewise and SPLITTING_KEY not in fields and fields.architecture != "gpt2"


def _of_pieces(fields: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """The contents of tokenizer.json for SentencePiece's BPE: the pieces' scores give the order of merges."""
    scores = fields.listed("tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise TokenizerError(f"{fields.where}: has {len(tokens)} tokens, and scores of {len(scores)}")
    unknown = _token_id(fields, "unknown", tokens)
    unknown = 0 if unknown is None else unknown
    if len({score for score, kind in zip(scores, types, strict=True) if kind == NORMAL}) < 2:
        raise TokenizerError(
            f"{fields.where}: the tokens of its tokenizer have no scores, so texts can't be split. Put the model's "
            "tokenizer.json and tokenizer_config.json beside the file"
        )
    pieces = [
        # A file has the spaces of added tokens as they are in texts.
        SimpleNamespace(
            piece=token.replace(" ", sentence_pieces.SPACE) if kind == USER_DEFINED else token,
            score=score,
            type=kind,
        )
        for token, score, kind in zip(tokens, scores, types, strict=True)
    ]
    model = SimpleNamespace(
        pieces=pieces,
        trainer_spec=SimpleNamespace(
            model_type=sentence_pieces.BPE,
            treat_whitespace_as_suffix=False,
            unk_id=unknown,
            byte_fallback=BYTE in types,
        ),
        normalizer_spec=SimpleNamespace(
            add_dummy_prefix=fields.get("tokenizer.ggml.add_space_prefix", bool, True),
            remove_extra_whitespaces=fields.get("tokenizer.ggml.remove_extra_whitespaces", bool, False),
            precompiled_charsmap=b"",
        ),
    )
    try:
        # The programs that GGUF is for put a space after special tokens, too.
        backend = sentence_pieces.built(fields.where, model, {"legacy": True})
    except TokenizerError:
        raise
    except Exception as error:  # tokenizers raises nothing more specific
        raise TokenizerError(f"{fields.where}: its tokenizer can't be converted: {error}") from error
    spelled: dict[str, Any] = json.loads(backend.to_str())
    spelled["post_processor"] = _around(fields, tokens, True)
    name = fields.get("general.name", str, "").lower()
    if any(each in name for each in _RSTRIP):
        for added in spelled["added_tokens"]:
            added["rstrip"] = added["special"] and added["content"] not in _NO_RSTRIP
    return spelled


def _tokens(fields: Metadata) -> list[str]:
    return fields.listed("tokenizer.ggml.tokens", str)


def _merges(fields: Metadata, tokens: Set[str]) -> list[list[str]]:
    """The BPE merges in order, each a pair of `tokens` that makes another one."""
    pairs = [merge.split(" ") for merge in fields.listed("tokenizer.ggml.merges", str)]
    wrong = next((pair for pair in pairs if len(pair) != 2 or not {*pair, "".join(pair)} <= tokens), None)
    if wrong is not None:
        raise TokenizerError(
            f"{fields.where}: a merge of its tokenizer is {' '.join(wrong)!r}, which is no pair of tokens"
        )
    return pairs


def _token_id(fields: Metadata, name: str, tokens: list[str]) -> int | None:
    """The id of a special token, or None. Raises `TokenizerError` if the id is outside of the vocabulary."""
    number: int | None = fields.get(f"tokenizer.ggml.{name}_token_id", int)
    if number is not None and not 0 <= number < len(tokens):
        raise TokenizerError(f"{fields.where}: its {name} token is {number}; it has {len(tokens)} tokens")
    return number


def tokenizer_config_json(fields: Metadata) -> dict[str, Any]:
    """Make the contents of tokenizer_config.json: the special tokens by name, and the chat templates."""
    tokens = _tokens(fields)
    numbers = {name: _token_id(fields, key, tokens) for name, key in _NAMED.items()}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields.size("context_length"),
        **{name: tokens[number] for name, number in numbers.items() if number is not None},
    }
    template = fields.get("tokenizer.chat_template", str)
    if template is None:
        return config
    key = "tokenizer.chat_templates"
    names = fields.listed(key, str) if fields.is_listed(key) else []
    if not names:
        return {**config, "chat_template": template}
    templates = {"default": template} | {
        name: fields.need(f"tokenizer.chat_template.{name}", str) for name in names if name != "default"
    }
    listed = [{"name": name, "template": text} for name, text in templates.items()]
    return {**config, "chat_template": listed}


def _types(fields: Metadata, tokens: Sequence[str]) -> list[int]:
    """The types of tokens. Some files mark a chat's special tokens as text, such as Gemma's <end_of_turn>; they are
    known by name."""
    types = fields.listed("tokenizer.ggml.token_type", int)
    return [
        CONTROL if token in _SPECIAL and kind in (NORMAL, USER_DEFINED) else kind
        for token, kind in zip(tokens, types, strict=False)
    ] + types[len(tokens) :]


def end_ids(fields: Metadata) -> list[int]:
    """The ids of tokens that end a text: those that the file names, and special tokens that are known as ends."""
    tokens = _tokens(fields)
    types = _types(fields, tokens)
    named = [_token_id(fields, name, tokens) for name in ("eos", "eot", "eom")]
    special = {
        token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=False)) if kind == CONTROL
    }
    ends = _ENDS
    if (
        "<|return|>" in special
    ):  # OpenAI's harmony, whose messages end with <|end|>, and whose answers have several
        ends = {"<|return|>", "<|call|>"}
    known = [i for token, i in special.items() if token in ends]
    return list(dict.fromkeys([i for i in named if i is not None] + known))


def add_tokenizer(writer: Any, directory: Path, vocab_size: int) -> None:
    """Add a directory's tokenizer to a `gguf.GGUFWriter`. Raises `TokenizerError` unless it is byte-level BPE with a
    pre-tokenizer from `SPLITTING`."""
    spelled, config = (read_json(directory / name) for name in ("tokenizer.json", "tokenizer_config.json"))
    model, splitting = spelled.get("model", {}), splitting_name(spelled)
    if model.get("type") != "BPE" or model.get("byte_fallback") or splitting is None:
        raise TokenizerError(
            f"{directory}: its tokenizer is no byte-level BPE, or cuts text in a way that weft has no GGUF name for"
        )
    tokens, types = _listed(spelled, vocab_size)
    writer.add_tokenizer_model(BYTE_LEVEL)
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


def _around(fields: Metadata, tokens: list[str], begins: bool) -> dict[str, Any] | None:
    """Make the post-processor that adds the BOS token before a text, and the EOS token after it. None if the file asks
    for neither. `begins`: whether there is a BOS token if the file does not say."""
    ids = {
        name: _token_id(fields, name, tokens)
        for name, default in (("bos", begins), ("eos", False))
        if fields.get(f"tokenizer.ggml.add_{name}_token", bool, default)
    }
    texts = {name: tokens[number] for name, number in ids.items() if number is not None}
    if not texts:
        return None
    first, last = (
        [{"SpecialToken": {"id": texts[name], "type_id": 0}}] if name in texts else []
        for name in ("bos", "eos")
    )
    sequence = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [*first, sequence[0], *last],
        "pair": [*first, *sequence, *last],
        "special_tokens": {
            text: {"id": text, "ids": [ids[name]], "tokens": [text]} for name, text in texts.items()
        },
    }
