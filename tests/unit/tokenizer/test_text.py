"""Text as tokens come: streams never take back what they showed, stop words are found once, words in every spelling."""

from __future__ import annotations

import random
import time
from itertools import product, takewhile
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from weft.config import package_model_path
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.tokenizer.files import load_tokenizer
from weft.tokenizer.spelling import Speller
from weft.tokenizer.stop_words import StopSequences, StopTexts, StopTokens
from weft.tokenizer.text import RunningText, decode
from weft.tokenizer.tokenizer import Tokenizer as WeftTokenizer

PIECES = ["▁", "▁a", "a", "b", "▁the", "é", "日"]


@pytest.fixture(scope="module")
def byte_level() -> Any:
    return load_tokenizer(package_model_path())


@pytest.fixture(scope="module")
def byte_fallback() -> Any:
    """As Llama 2 and Mistral have it: what has no piece is written as bytes."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    vocab |= {piece: len(vocab) + i for i, piece in enumerate(PIECES)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    made.add_special_tokens(["<s>", "</s>"])
    return WeftTokenizer(made, {"eos_token": "</s>", "bos_token": "<s>"})


def pieces(tokenizer: Any, text: str) -> list[int]:
    """One token for each character, as bytes where there is no piece."""
    found = []
    for character in text:
        known = tokenizer.backend_tokenizer.token_to_id(character)
        found += (
            [known]
            if known is not None
            else [tokenizer.backend_tokenizer.token_to_id(f"<0x{b:02X}>") for b in character.encode()]
        )
    return found


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_any_tokens_make_a_running_text(name: str, request: pytest.FixtureRequest) -> None:
    """Bytes that fit nothing among them: what was shown stays, and in the end is how the whole text begins."""
    tokenizer = request.getfixturevalue(name)
    rng = random.Random(0)
    backend = tokenizer.backend_tokenizer
    often = pieces(tokenizer, "日\n日") if name == "byte_fallback" else tokenizer.encode("日 a 日")
    often += [backend.token_to_id(f"<0x{b:02X}>") for b in (0xE6, 0x97, 0xA5)] * (name == "byte_fallback")
    shown_of_all = 0
    for _ in range(400):
        text, ids, shown = RunningText(tokenizer, ("zzz",)), [], ""
        for _ in range(30):
            ids.append(rng.choice([rng.randrange(len(tokenizer)), *often]))
            text.feed(ids[-1])
            whole = decode(tokenizer, ids)
            assert whole.startswith(text.text)
            assert text.text[: text.num_shown].startswith(shown)
            shown = text.text[: text.num_shown]
        shown_of_all += len(shown)
        assert whole.startswith(shown)
    assert shown_of_all > 400 * 15


def test_special_tokens_do_not_cost_the_space_after_them(byte_fallback: Any) -> None:
    text, ids = (
        RunningText(byte_fallback),
        [*map(byte_fallback.convert_tokens_to_ids, ("a", "<s>", "▁a", "b"))],
    )
    for token in ids:
        text.feed(token)
    assert text.text == decode(byte_fallback, ids) == "a ab"


def test_a_newline_written_as_a_byte_is_found_at_once(byte_fallback: Any) -> None:
    text = RunningText(byte_fallback, ("\n",))
    a, newline = pieces(byte_fallback, "a\n")
    assert [text.feed(t) for t in (a, a, newline)] == [None, None, "\n"]
    assert text.found_at == 2


def test_bytes_that_fit_together_are_shown_as_one_character(byte_fallback: Any) -> None:
    text = RunningText(byte_fallback)
    found = []
    for token in [*pieces(byte_fallback, "aåa"), *pieces(byte_fallback, "b")]:
        text.feed(token)
        found.append(text.text[: text.num_shown])
    assert found == ["a", "a", "a", "aåa", "aåab"]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_a_word_is_found_once_whatever_the_other_words(name: str, request: pytest.FixtureRequest) -> None:
    """One that was passed over, before `min_tokens`, does not come back because another word is longer."""
    tokenizer = request.getfixturevalue(name)
    encode = tokenizer.encode if name == "byte_level" else lambda text: pieces(tokenizer, text)
    tokens = [t for character in "abåabb" for t in encode(character)]
    for words in (("ab",), ("ab", "q" * 30), ("q" * 30, "ab", "zzzz")):
        text = RunningText(tokenizer, words)
        found = [(len(text.text), text.found_at) for token in tokens if text.feed(token) == "ab"]
        assert found == [(2, 0), (5, 3)]


def test_of_two_words_the_first_in_the_text_is_found(byte_level: Any) -> None:
    token = next(
        i
        for i in range(len(byte_level))
        if len(t := decode(byte_level, [i])) > 3 and t.isalpha() and t[0] != t[1]
    )
    name = decode(byte_level, [token])
    text = RunningText(byte_level, (name[1:], name[:2]))
    assert text.feed(token) == name[:2]


class OneByOne:
    """The text of tokens as they come, watched for each word by itself."""

    def __init__(self, tokenizer: Any, words: tuple[str, ...]) -> None:
        self.tokenizer, self.words = tokenizer, words
        self.running = RunningText(tokenizer)
        self.text, self.found_at, self.searched = "", 0, ""

    def feed(self, token: int) -> str | None:
        """Of the words that end behind what was searched before, the one that begins first, of those the shortest."""
        self.running.feed(token)
        self.text = self.running.text
        if self.searched.startswith(self.text):
            return None
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self.searched, self.text, strict=False))
        known, self.searched = sum(1 for _ in same), self.text
        places = [
            (place, word)
            for word in self.words
            for place in range(max(known - len(word) + 1, 0), len(self.text))
            if self.text.startswith(word, place)
        ]
        if not places:
            return None
        self.found_at, word = min(places)
        return word

    @property
    def num_shown(self) -> int:
        settled = self.running.num_shown
        for length in range(min(max(map(len, self.words)) - 1, settled), 0, -1):
            if any(word.startswith(self.text[settled - length : settled]) for word in self.words):
                return settled - length
        return settled


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_many_words_are_found_as_one_by_one(name: str, request: pytest.FixtureRequest) -> None:
    """Words that overlap, stand within one another, and end within characters that change behind them."""
    tokenizer = request.getfixturevalue(name)
    rng = random.Random(1)
    letters = "ab日é"
    often = (
        [*pieces(tokenizer, "ab日é\nå" * 2)] if name == "byte_fallback" else tokenizer.encode("ab 日é ab å")
    )
    num_found = 0
    for _ in range(300):
        words = tuple("".join(rng.choices(letters, k=rng.randint(1, 5))) for _ in range(rng.randint(1, 8)))
        text, naive = RunningText(tokenizer, words), OneByOne(tokenizer, words)
        for _ in range(25):
            token = rng.choice([rng.randrange(len(tokenizer)), *often])
            found = text.feed(token)
            assert found == naive.feed(token)
            if found is not None:
                num_found += 1
                assert text.found_at == naive.found_at
            assert (text.text, text.num_shown) == (naive.text, naive.num_shown)
    assert num_found > 400


def test_many_sequences_are_found_as_one_by_one() -> None:
    rng = random.Random(2)
    num_found = 0
    for _ in range(300):
        sequences = [[rng.randrange(3) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 6))]
        watcher: Any = StopTokens(sequences)
        taken: list[int] = []
        for _ in range(40):
            taken.append(rng.randrange(3))
            if rng.random() < 0.1:
                watcher.fork().feed(0)  # goes its own way
                watcher = watcher.fork()
            found = next((s for s in sequences if taken[-len(s) :] == s), None)
            assert watcher.feed(taken[-1]) == (None if found is None else str(found))
            num_found += found is not None
    assert num_found > 2000


def test_the_number_of_words_costs_nothing_later(byte_level: Any) -> None:
    """Neither each token, nor another watcher of the same words."""
    tokens = [random.Random(3).randrange(len(byte_level)) for _ in range(1000)]

    def cpu_s(count: int) -> float:
        words = StopTexts([f"zq{i}z" for i in range(count)])
        best = 1e9
        for _ in range(3):
            text = StopTokens(
                StopSequences([(5, 6, 7, i) for i in range(count)]), RunningText(byte_level, words)
            )
            start = time.thread_time()
            for token in tokens:
                text.feed(token)
            best = min(best, time.thread_time() - start)
        return best

    assert cpu_s(30_000) < 3 * cpu_s(3)


def spelled(tokens: list[bytes], word: bytes) -> set[tuple[int, ...]]:
    """Every way to join tokens to the word, by trying all."""
    ids = [i for i, token in enumerate(tokens) if token]
    return {
        found
        for length in range(1, len(word) + 1)
        for found in product(ids, repeat=length)
        if b"".join(tokens[i] for i in found) == word
    }


def test_a_word_is_spelled_in_every_way_the_shortest_first(byte_level: Any) -> None:
    tokens = [b"", b"a", b"b", b"ab", b"ba", b"aba", b" ", b" a", b" ab", b"c", b"a"]
    speller = Speller(byte_level, tokens)
    spaced = {s for s in spelled(tokens, b" abab") if tokens[s[0]] != b" "}
    assert speller.others("abab", 1000) == spelled(tokens, b"abab") | spaced
    few = speller.others("abab", 3)
    assert sorted(map(len, few)) == sorted(
        length for s in (spelled(tokens, b"abab"), spaced) for length in sorted(map(len, s))[:3]
    )
    assert speller.others("abx") == set()


def test_long_words_are_spelled_in_no_time(byte_level: Any) -> None:
    vocabulary = Vocabulary.from_huggingface(byte_level)
    found = Speller(byte_level, vocabulary.tokens).others("unbelievable " * 30)
    assert 32 <= len(found) <= 64
    letters = [bytes([i]) for i in range(128)] + [b"aa", b"aaa"]
    assert len(Speller(byte_level, letters).others("a" * 60)) == 32


def test_usual_spellings_come_first_where_there_is_little_room(byte_level: Any) -> None:
    vocabulary = Vocabulary.from_huggingface(byte_level)
    speller = Speller(byte_level, vocabulary.tokens)
    usual = speller.usual("unknown") | {(5, 6)}
    least = sum(len(tokens) + 1 for tokens in usual)
    words: list[Any] = ["unknown", [5, 6]]
    assert speller.bad_words(words, least) == usual
    too_many = speller.bad_words([*words, *(f"unknown {i}" for i in range(1000))], least)
    assert usual < too_many and len(too_many) <= len(usual) + 2  # it is too much already
    more = speller.bad_words(words, least + 20)
    assert usual < more
    assert sum(len(tokens) + 1 for tokens in more) <= least + 20
    for tokens in more - {(5, 6)}:
        assert decode(byte_level, tokens).strip() == "unknown"
