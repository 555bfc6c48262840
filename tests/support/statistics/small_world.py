"""A target model with eight tokens, drafters for it, and sampling parameters. It is so small that every output can
be counted."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from support.engine.random_model import random_model
from weft import Guide, SamplingParams
from weft.grammar import CompiledGuide, Vocabulary
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft.models.base import Model, PagedKV
from weft.models.config import ModelConfig
from weft.models.llama import Llama
from weft.models.random_weights import RandomWeights
from weft.spec.base import Drafter
from weft.spec.draft_model import DraftModel

END = 0
TOKENS = (b"", b"a", b"b", b"c", b"ab", b"ba", b"bc", b"ca")
VOCAB = len(TOKENS)
PROMPT = [3, 5, 2, 4, 6]
MAX_TOKENS = 4
"""The first token is not drafted by an iteration. After it, three drafts are verified at once."""

PAGE_SIZE = 4
CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    max_position_embeddings=64,
)

PATTERN = r"a(b|ba|ca?)*|(b|c)[ab]{0,3}c"


@dataclass(frozen=True)
class Case:
    """The parameters of a request in token ids, and whether `PATTERN` guides it."""

    sampling: SamplingParams
    bad_words: tuple[tuple[int, ...], ...] = ()
    guided: bool = False

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end the output."""
        return (END, *self.sampling.stop_token_ids)


def case(guided: bool = False, bad_words: tuple[tuple[int, ...], ...] = (), **sampling: object) -> Case:
    """Make a case from sampling parameters. The default temperature is 1."""
    given: dict[str, object] = {"temperature": 1.0, "max_tokens": MAX_TOKENS, **sampling}
    return Case(SamplingParams(**given), bad_words, guided)  # type: ignore[arg-type]


@functools.cache
def target() -> Model:
    return random_model(CONFIG, seed=5)


@functools.cache
def compiled() -> CompiledGuide:
    vocabulary = Vocabulary.from_tokens(TOKENS, end_ids=[END])
    return XGrammarBackend(vocabulary, threads=1).compile(Guide.regex(PATTERN))


@functools.cache
def allowed(text: bytes) -> frozenset[int]:
    """Return the tokens that `PATTERN` allows after a text. It is found by trying every text up to a sufficient
    length."""
    whole, beginnings = _language()
    tokens = {i for i, token in enumerate(TOKENS) if token and text + token in beginnings}
    return frozenset(tokens | {END} if text in whole else tokens)


@functools.cache
def _language() -> tuple[frozenset[bytes], frozenset[bytes]]:
    """The texts that `PATTERN` matches, and their prefixes, up to two letters longer than MAX_TOKENS tokens can
    spell."""
    longest = MAX_TOKENS * max(map(len, TOKENS)) + 2
    pattern = re.compile(PATTERN.encode())
    texts = (bytes(letters) for n in range(longest + 1) for letters in itertools.product(b"abc", repeat=n))
    whole = frozenset(text for text in texts if pattern.fullmatch(text))
    return whole, frozenset(text[:n] for text in whole for n in range(len(text) + 1))


class _NoisyHead(RandomWeights):
    """The target's weights, with noise on the last layer."""

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = super().take(name, *shape)
        if name == "lm_head.weight":
            tensor += 0.12 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
        return tensor


def good_draft_model(num_pages: int) -> Drafter:
    """Make a draft model from the target with noise, so that most of its drafts are accepted."""
    with torch.inference_mode():
        model = Llama(CONFIG, _NoisyHead(CONFIG, seed=5))
    return DraftModel(model, PagedKV.for_model(model, num_pages, PAGE_SIZE), VOCAB)
