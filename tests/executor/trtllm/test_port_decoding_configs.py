"""Ported: the classes that say how tokens are drafted, chosen and guided read back what they were given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
import weft.executor as trtllm
from support.trtllm import SCHEMA, reads, xgrammar_config


def test_sampling_config() -> None:
    given: dict[str, Any] = {
        "top_k": 2,
        "top_p": 1.0,
        "top_p_min": 1.0,
        "top_p_reset_ids": 3,
        "top_p_decay": 1.0,
        "seed": 7,
        "temperature": 1.0,
        "min_tokens": 4,
        "beam_search_diversity_rate": 1.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.0,
        "length_penalty": 1.0,
        "early_stopping": 5,
        "num_return_sequences": 2,
    }
    reads(trtllm.SamplingConfig(1, **given), **given)
    reads(trtllm.SamplingConfig(1), beam_width=1, **dict.fromkeys(given))


def test_external_draft_tokens_config() -> None:
    tokens, logits = [1, 2, 3], torch.ones(3, 1)
    config = trtllm.ExternalDraftTokensConfig(tokens)
    reads(config, tokens=tokens, logits=None, acceptance_threshold=None)
    config = trtllm.ExternalDraftTokensConfig(tokens, logits, 1.0, False)
    reads(config, tokens=tokens, logits=logits, acceptance_threshold=1.0, fast_logits=False)


def test_speculative_decoding_config() -> None:
    """Two functions of upstream's have this name: of `SpeculativeDecodingConfig`, and of `DecodingConfig`."""
    reads(trtllm.SpeculativeDecodingConfig(True), fast_logits=True)
    reads(trtllm.SpeculativeDecodingConfig(fast_logits=True), fast_logits=True)

    choices = [[0, 0], [0, 1]]
    nothing = {"lookahead_decoding_config": None, "medusa_choices": None, "eagle_config": None}
    reads(trtllm.DecodingConfig(), decoding_mode=None, **nothing)

    config = trtllm.DecodingConfig()
    config.decoding_mode = trtllm.DecodingMode.TopKTopP()
    assert config.decoding_mode.isTopKandTopP()
    reads(config, **nothing)

    config = trtllm.DecodingConfig()
    config.lookahead_decoding_config = trtllm.LookaheadDecodingConfig(3, 5, 7)
    assert config.decoding_mode.isLookahead()
    looking = config.lookahead_decoding_config
    reads(looking, max_window_size=3, max_ngram_size=5, max_verification_set_size=7)
    reads(config, medusa_choices=None, eagle_config=None)

    config = trtllm.DecodingConfig()
    config.medusa_choices = choices
    assert config.decoding_mode.isMedusa()
    reads(config, **{**nothing, "medusa_choices": choices})

    config = trtllm.DecodingConfig()
    config.eagle_config = trtllm.EagleConfig(choices)
    assert config.decoding_mode.isEagle()
    reads(config, lookahead_decoding_config=None, medusa_choices=None)
    reads(config.eagle_config, eagle_choices=choices)


def test_lookahead_decoding_config() -> None:
    names = ("max_window_size", "max_ngram_size", "max_verification_set_size")
    for values in ((3, 5, 7), (5, 10, 3)):
        reads(trtllm.LookaheadDecodingConfig(*values), **dict(zip(names, values, strict=True)))
    given = dict(zip(names, (5, 3, 7), strict=True))
    reads(trtllm.LookaheadDecodingConfig(**given), **given)


def test_eagle_config() -> None:
    names = (
        "eagle_choices",
        "greedy_sampling",
        "posterior_threshold",
        "use_dynamic_tree",
        "dynamic_tree_max_topK",
    )
    rest = (None, False, None)
    for given in (
        ([[0, 0], [0, 1]], False, 0.5),
        ([[0, 0], [0, 1, 0]], True),
        (None, True, 0.5),
        (None, False, 0.5, True, 3),
    ):
        expected = (*given, *rest[len(given) - 2 :])
        reads(trtllm.EagleConfig(*given), **dict(zip(names, expected, strict=True)))
    by_name: dict[str, Any] = {
        "eagle_choices": [[0, 0], [0, 1], [0, 2]],
        "greedy_sampling": True,
        "posterior_threshold": 0.5,
    }
    reads(trtllm.EagleConfig(**by_name), **by_name)
    by_name |= {"eagle_choices": None, "use_dynamic_tree": True, "dynamic_tree_max_topK": 3}
    reads(trtllm.EagleConfig(**by_name), **by_name)


def test_decoding_mode() -> None:
    mode = trtllm.DecodingMode
    assert mode.Auto().isAuto()
    assert mode.TopK().isTopK()
    assert mode.TopP().isTopP()
    assert mode.TopKTopP().isTopKandTopP()
    assert mode.BeamSearch().isBeamSearch()
    assert mode.Medusa().isMedusa()
    assert mode.Lookahead().isLookahead()
    assert mode.ExplicitDraftTokens().isExplicitDraftTokens()
    assert mode.Eagle().isEagle()
    assert not mode.Eagle().isBeamSearch()


def test_logits_post_processor_config() -> None:
    reads(trtllm.LogitsPostProcessorConfig(), processor_map=None, processor_batched=None, replicate=True)
    given = {"processor_map": {"test_pp": None}, "processor_batched": None, "replicate": False}
    reads(trtllm.LogitsPostProcessorConfig(**given), **given)


def test_guided_decoding_params() -> None:
    kinds = trtllm.GuidedDecodingParams.GuideType
    reads(trtllm.GuidedDecodingParams(kinds.JSON), guide_type=kinds.JSON)
    guides = {
        kinds.JSON_SCHEMA: SCHEMA,
        kinds.REGEX: r"\d+",
        kinds.EBNF_GRAMMAR: "root ::= [0-9]+",
    }
    for kind, guide in guides.items():
        reads(trtllm.GuidedDecodingParams(kind, guide=guide), guide_type=kind, guide=guide)
    with pytest.raises(weft.InputError):
        trtllm.GuidedDecodingParams(kinds.JSON_SCHEMA)


def test_guided_decoding_config() -> None:
    given = xgrammar_config()
    reads(trtllm.GuidedDecodingConfig(**given), **given)
