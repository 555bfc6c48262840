"""What a wrong name was meant to be: other libraries call the same things otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

T = TypeVar("T")


def meant(name: str, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """The hint for a name that nobody knows: what it is called here, where it is a thing of another library's
    (`elsewhere`), or the name most like it; or all of them."""
    if name in elsewhere:
        return elsewhere[name]
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def explaining(elsewhere: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """A class whose constructor says of a name that it does not know which one was meant. It raises `TypeError`, as
    constructors do."""

    def explained(cls: type[T]) -> type[T]:
        made: Any = cls.__init__
        known = [name for name in signature(made).parameters if name != "self"]

        @wraps(made)
        def init(self: T, *arguments: Any, **named: Any) -> None:
            for name in named:
                if name not in known:
                    hint = meant(name, known, elsewhere)
                    raise TypeError(f"{cls.__name__} has no parameter {name!r}; {hint}")
            made(self, *arguments, **named)

        setattr(cls, "__init__", init)  # noqa: B010  # mypy forbids to assign it
        return cls

    return explained


GUIDE = "it is the guide of a request: generate(..., guide=Guide.json_schema(...)) and the like"
MAX_TOKENS = "it is called max_tokens"
STOP = "it is called stop"
SAMPLING_ELSEWHERE = {
    "max_new_tokens": MAX_TOKENS,
    "max_completion_tokens": MAX_TOKENS,
    "max_length": MAX_TOKENS,
    "min_new_tokens": "it is called min_tokens",
    "num_return_sequences": "it is called n",
    "num_answers": "it is called n",
    "random_seed": "it is called seed",
    "do_sample": "temperature=0 is greedy, and anything above samples",
    "stop_words": STOP,
    "stop_sequences": STOP,
    "stop_strings": STOP,
    "eos_token_id": "it is called stop_token_ids",
    "top_logprobs": "it is called logprobs",
    "best_of": "ask for n answers and take the best by cumulative_logprob",
    "beam_width": "it is an option of a request: generate(..., beam_width=...)",
    "use_beam_search": "beams are an option of a request: generate(..., beam_width=...)",
    "length_penalty": "it is an option of a request: generate(..., beam_width=..., length_penalty=...)",
    "allowed_token_ids": "give a guide, or logit_bias",
    **dict.fromkeys(
        (
            "guided_decoding",
            "structured_outputs",
            "response_format",
            "guided_json",
            "guided_regex",
            "grammar",
        ),
        GUIDE,
    ),
}
"""Parameters of vLLM, OpenAI, transformers and llama.cpp that are called otherwise, or are elsewhere."""

_OF_ENGINES = {
    "max_model_len": "max_seq_len",
    "max_num_seqs": "max_batch",
    "max_batch_size": "max_batch",
    "block_size": "page_size",
    "num_blocks": "num_pages",
}
_OWN = ("max_batch", "max_seq_len", "num_pages", "page_size", "graphs", "overlap", "policy")

ENGINE_ELSEWHERE = {name: f"it is called {own}" for name, own in _OF_ENGINES.items()}
"""The same of an engine's configuration."""
MODEL_ELSEWHERE = {
    **{
        name: f"it is {own} of engine=EngineConfig({own}=...)"
        for name, own in {**_OF_ENGINES, **dict(zip(_OWN, _OWN, strict=True))}.items()
    },
    "speculative_config": "give speculation=Speculation.eagle3(...) or another",
    "tensor_parallel_size": "one device runs a model",
    "enable_lora": "there are no adapters; merge one into its model",
    "quantization": "weights are float32, float16 or bfloat16",
    "trust_remote_code": "no code of a checkpoint is run",
    "model_path": "it is called model",
    "enforce_eager": 'it is graphs="none" of engine=EngineConfig(graphs="none")',
    "gpu_memory_utilization": "kv_memory_fraction of engine=EngineConfig(kv_memory_fraction=...) is a share of what "
    "is free once the weights are there",
    "seed": "it is a parameter of each request: SamplingParams(seed=...)",
    "enable_prefix_caching": "prefixes are cached always",
}
"""The same of a model that is loaded."""
