"""Converts vocabularies of byte sequences with ranks to tokenizers of the tokenizers library: tiktoken's files and
Mistral's tekken.json.

A tiktoken file has only the ranks. The pattern that splits a text, and the special tokens, are in the code of each
model, which weft never runs. `FAMILIES` has them.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from weft.core.files import read_json
from weft.errors import TokenizerError

Settings = dict[str, Any]
"""Settings as in tokenizer_config.json: {"eos_token": "</s>", ...}."""

_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = (rf"[{kind}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for kind in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
THREE_DIGITS = _WORDS + r"|\p{N}{1,3}" + _END
ONE_DIGIT = _WORDS + r"|\p{N}" + _END
KIMI = rf"[\p{{Han}}]+|{_BEFORE}{_UPPER}*{_LOWER}+{_SUFFIX}|{_BEFORE}{_UPPER}+{_LOWER}*{_SUFFIX}|\p{{N}}{{1,3}}{_END}"


@dataclass(frozen=True)
class Family:
    """The parts of a tokenizer that are in a model's code, and not in its tiktoken file.

    `pattern` splits a text into words. `special` are the special tokens after the ranks, by default: a directory that
    lists its added tokens has its own. There are `size` of them: others have the name `reserved`, with a number from
    `first_reserved` on in place of `{i}`, or the id in place of `{id}`. `prefix` are the tokens before each text.
    `is_composed`: texts are composed first (Unicode's NFC).
    """

    pattern: str
    names: Mapping[str, str]
    special: tuple[str, ...] = ()
    reserved: str = ""
    size: int = 0
    first_reserved: int = 0
    prefix: tuple[str, ...] = ()
    is_composed: bool = False

    def token(self, number: int, num_ranks: int) -> str:
        """The default name of the special token with the id `number`, where the ranks are 0 to `num_ranks` - 1."""
        place = number - num_ranks
        if place < len(self.special):
            return self.special[place]
        name = self.reserved or "<|reserved_token_{id}|>"
        return name.format(i=place - len(self.special) + self.first_reserved, id=number)


_LLAMA_3 = Family(
    THREE_DIGITS,
    {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
    (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|step_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    ),
    "<|reserved_special_token_{i}|>",
    size=256,
    first_reserved=2,
    prefix=("<|begin_of_text|>",),
)
_QWEN = Family(
    ONE_DIGIT,
    {"eos_token": "<|endoftext|>"},
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "<|extra_{i}|>",
    size=208,
    is_composed=True,
)
_HUNYUAN = Family(
    ONE_DIGIT,
    {"bos_token": "<|startoftext|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"},
    ("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"),
    "<|extra_{i}|>",
    size=210,
    is_composed=True,
)
_KIMI = Family(KIMI, {"bos_token": "[BOS]", "eos_token": "[EOS]"}, size=256)
_GLM = Family(THREE_DIGITS, {"eos_token": "<|endoftext|>"}, prefix=("[gMASK]", "<sop>"))
_PHI_3_SMALL = Family(
    THREE_DIGITS,
    {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    (
        "<|dummy_id_2|>",
        "<|endoftext|>",
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|dummy_id_0|>",
        "<|dummy_id_1|>",
        "<|end|>",
        *(f"<|dummy_id_{i}|>" for i in range(3, 12)),
        "<|endofprompt|>",
        *(f"<|dummy_id_{i}|>" for i in range(12, 87)),
    ),
    size=96,
)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA_3,
    "mllama": _LLAMA_3,
    "qwen": _QWEN,
    "hunyuan": _HUNYUAN,
    "hunyuan_v1_moe": _HUNYUAN,
    "hunyuan_v1_dense": _HUNYUAN,
    "kimi_k2": _KIMI,
    "kimi_k25": _KIMI,
    "kimi_linear": _KIMI,
    "chatglm": _GLM,
    "phi3small": _PHI_3_SMALL,
    "QWenTokenizer": _QWEN,
    "HYTokenizer": _HUNYUAN,
    "TikTokenTokenizer": _KIMI,
    "ChatGLM4Tokenizer": _GLM,
    "Phi3SmallTokenizer": _PHI_3_SMALL,
}
"""The families by `tokenizer_class` of tokenizer_config.json, or else by `model_type` of config.json."""


def is_ranks(file: Path) -> bool:
    """Whether a file has tiktoken's lines: base64, a space, and a rank."""
    with file.open("rb") as stream:
        line = stream.readline(4096).split()
    return len(line) == 2 and line[1].isdigit()


def convert_tiktoken(file: Path, settings: dict[str, Any], model_type: str) -> tuple[Tokenizer, Settings]:
    """Convert a tiktoken file. Returns the tokenizer and its settings.

    `settings` are those of tokenizer_config.json. Raises `TokenizerError` for a family that is not in `FAMILIES`: the
    file doesn't have the pattern that splits a text.
    """
    kind = settings.get("tokenizer_class")
    family = FAMILIES.get(kind or "") or FAMILIES.get(model_type)
    if family is None:
        raise TokenizerError(
            f"{file} is tiktoken's, which does not say how texts are split, and weft does not know it for the "
            f"tokenizer_class {kind!r} and model_type {model_type!r}; save the tokenizer with a tokenizer.json "
            f"(transformers' AutoTokenizer and save_pretrained). Known are {', '.join(FAMILIES)}"
        )
    ranks = _ranks(file)
    listed = {int(number): given for number, given in (settings.get("added_tokens_decoder") or {}).items()}
    end = max([len(ranks) + family.size, *(number + 1 for number in listed)])
    added = [
        AddedToken(**listed[number])
        if number in listed
        else AddedToken(family.token(number, len(ranks)), special=True, normalized=False)
        for number in range(len(ranks), end)
    ]
    backend = _byte_level(file, ranks, family.pattern, dict(enumerate(added, start=len(ranks))))
    if family.is_composed:
        backend.normalizer = normalizers.NFC()
    known = {token.content for token in added}
    if known.issuperset(family.prefix):
        ids = [(token, backend.token_to_id(token)) for token in family.prefix]
        backend.post_processor = processors.TemplateProcessing(
            single=[*family.prefix, "$A"], special_tokens=ids
        )
    return backend, {name: token for name, token in family.names.items() if token in known}


def convert_tekken(file: Path) -> tuple[Tokenizer, Settings]:
    """Convert a tekken.json. Returns the tokenizer and its settings. Raises `TokenizerError`."""
    try:
        data = read_json(file)
        config, entries = data["config"], data["vocab"]
        count = config["default_num_special_tokens"]
        names = _tekken_special(file, data, count)
        ranks = {
            b64decode(entry["token_bytes"]): count + rank
            for rank, entry in enumerate(entries[: config["default_vocab_size"] - count])
        }
        pattern = config["pattern"]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, TokenizerError):
            raise
        raise TokenizerError(f"{file}: can't be read as Tekken's vocabulary: {error!r}") from error
    special = {rank: AddedToken(name, special=True, normalized=False) for rank, name in enumerate(names)}
    backend = _byte_level(file, ranks, pattern, special)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return backend, {name: token for name, token in named.items() if token in names} | {"add_bos_token": True}


def split_as_tekken(backend: Tokenizer, file: Path) -> None:
    """Let a tokenizer split texts with the pattern of the tekken.json beside its tokenizer.json. Several of Mistral's
    models were published with another pattern in tokenizer.json, which gives other tokens."""
    pattern = read_json(file).get("config", {}).get("pattern")
    rule = json.loads(backend.pre_tokenizer.__getstate__()) if backend.pre_tokenizer is not None else {}
    first = (rule.get("pretokenizers") or [rule])[0]
    if first.get("type") == "Split" and pattern and first["pattern"] != {"Regex": pattern}:
        backend.pre_tokenizer = _words(file, pattern)


def _tekken_special(file: Path, data: dict[str, Any], count: int) -> list[str]:
    """The special tokens of a tekken.json, by rank. Files before version 11 don't list them."""
    listed = data.get("special_tokens")
    if listed is None:
        try:
            from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        except ModuleNotFoundError:
            raise TokenizerError(
                f"{file} does not list its special tokens, as Mistral's older files; to read it, "
                "pip install mistral-common"
            ) from None
        listed = Tekkenizer.DEPRECATED_SPECIAL_TOKENS
    names = {entry["rank"]: str(getattr(entry["token_str"], "value", entry["token_str"])) for entry in listed}
    return [names.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)]


def _ranks(file: Path) -> dict[bytes, int]:
    """The ids of the tokens of a tiktoken file. Raises `TokenizerError` for other contents, and unless the ranks are
    0, 1, ... in order."""
    ids: dict[bytes, int] = {}
    try:
        for number, line in enumerate(filter(None, file.read_bytes().splitlines())):
            token, rank = line.split()
            if int(rank) != number:
                raise TokenizerError(f"{file}: tiktoken's ranks must be 0, 1, 2, ..., without gaps")
            ids.setdefault(b64decode(token, validate=True), len(ids))  # Hunyuan's file repeats tokens
    except ValueError as error:
        if isinstance(error, TokenizerError):
            raise
        raise TokenizerError(f"{file}: can't be read as tiktoken's base64 and ranks: {error}") from error
    return ids


def _byte_level(
    file: Path, ranks: Mapping[bytes, int], pattern: str, added: Mapping[int, AddedToken]
) -> Tokenizer:
    """A byte-level tokenizer. `ranks` are ids, and the order of merges. `added` are the other tokens by id. Raises
    `TokenizerError` if two tokens have the same name."""
    alphabet = byte_characters()
    texts = {token: "".join(alphabet[byte] for byte in token) for token in ranks}
    vocab = {texts[token]: rank for token, rank in ranks.items()}
    # Ids after the ranks are given in order. Names in the vocabulary would be found in plain text, too.
    last = max(ranks.values(), default=-1)
    vocab |= {token.content: number for number, token in added.items() if number < last}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=_merges(ranks, texts), ignore_merges=True))
    backend.pre_tokenizer = _words(file, pattern)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(list(added.values()))
    wrong = next((n for n, token in added.items() if backend.token_to_id(token.content) != n), None)
    if wrong is not None:
        raise TokenizerError(
            f"{file}: two tokens are called {added[wrong].content!r}, one of them is {wrong}"
        )
    return backend


def _words(file: Path, pattern: str) -> pre_tokenizers.PreTokenizer:
    """The rule that splits a text into words, and writes their bytes as characters."""
    try:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    except Exception as error:  # tokenizers raises no more precise type
        raise TokenizerError(f"{file}: the pattern that splits texts can't be read: {error}") from error
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _merges(ranks: Mapping[bytes, int], texts: Mapping[bytes, str]) -> list[tuple[str, str]]:
    """All pairs of tokens that join to a token, by its rank: tiktoken joins the pair with the smallest rank first."""
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        splits = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges += [(texts[a], texts[b]) for a, b in splits if a in texts and b in texts]
    return merges


def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary. Printable characters stand for themselves,
    and characters from U+0100 on for the other bytes."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in kept else next(others)) for byte in range(256)]
