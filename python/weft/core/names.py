"""Hints for unknown names: weft's counterpart of another library's name, or weft's most similar name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

T = TypeVar("T")

# -- names of other libraries, with weft's names; also for fields of HTTP bodies

SAMPLING_NAMES = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_length": "max_tokens",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "num_answers": "n",
    "random_seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "stop_words": "stop",
    "stop_sequences": "stop",
    "stop_strings": "stop",
}
"""Sampling parameters of transformers, OpenAI, Anthropic, Ollama and llama.cpp."""

GUIDE_NAMES = {
    "json": "json_schema",
    "schema": "json_schema",
    "pattern": "regex",
    "grammar": "ebnf",
    "gbnf": "ebnf",
    "enum": "choice",
    "choices": "choice",
    "program": "wasm",
}
"""Kinds of guides in vLLM, SGLang and llama.cpp, and likely guesses."""

ENGINE_NAMES = {
    "max_model_len": "max_seq_len",
    "max_num_seqs": "max_batch",
    "max_batch_size": "max_batch",
    "block_size": "page_size",
    "num_blocks": "num_pages",
}
"""Engine settings of vLLM and TensorRT-LLM."""

# -- hints, by the unknown name


def _called(names: Mapping[str, str]) -> dict[str, str]:
    return {other: f"it is called {name}" for other, name in names.items()}


_AS_GUIDE = (
    "give a guide: generate(..., guide=Person) for a Python type, guide=Guide.json_schema(...) or another"
)

SAMPLING_HINTS = {
    **_called(SAMPLING_NAMES),
    "eos_token_id": "it is called stop_token_ids",
    "top_logprobs": "it is called logprobs",
    "do_sample": "temperature=0 is greedy, and anything above samples",
    "best_of": "ask for n answers and take the best by cumulative_logprob",
    "beam_width": "it is an option of a request: generate(..., beam_width=...)",
    "use_beam_search": "beams are an option of a request: generate(..., beam_width=...)",
    "length_penalty": "it is an option of a request: generate(..., beam_width=..., length_penalty=...)",
    "allowed_token_ids": "give a guide, or logit_bias",
    "ignore_eos": "give min_tokens the value of max_tokens",
    "prompt_logprobs": "generate(..., return_context_logits=True) gives the prompt's logits",
    "flat_logprobs": "leave it out; each token has a TokenLogprob",
    "skip_special_tokens": "output.text has no special tokens; llm.tokenizer.decode(output.token_ids) has them",
    "spaces_between_special_tokens": "leave it out; output.text has no special tokens",
    "detokenize": "leave it out; output.token_ids has the tokens",
    "include_stop_str_in_output": "leave it out; output.stopped_by is the stop text",
    "truncate_prompt_tokens": "cut the token ids of the prompt before generate",
    "output_kind": "stream and chat_stream give the new text, generate the whole",
    "logits_processors": "it is an option of a request: generate(..., logits_processor=function)",
    **dict.fromkeys(
        (
            "guided_decoding",
            "structured_outputs",
            "response_format",
            "guided_json",
            "guided_regex",
            "grammar",
        ),
        _AS_GUIDE,
    ),
}
"""Hints for parameters of `SamplingParams`."""

ENGINE_HINTS = _called(ENGINE_NAMES)
"""Hints for fields of `EngineConfig`."""

_ENGINE_FIELDS = ("max_batch", "max_seq_len", "num_pages", "page_size", "graphs", "overlap", "policy")

MODEL_HINTS = {
    **{
        other: f"it is {name} of engine=EngineConfig({name}=...)"
        for other, name in (*ENGINE_NAMES.items(), *zip(_ENGINE_FIELDS, _ENGINE_FIELDS, strict=True))
    },
    "speculative_config": "give speculation=Speculation.eagle3(...) or another",
    "tensor_parallel_size": "one device runs a model",
    "enable_lora": "there are no adapters; merge one into its model",
    "quantization": "the checkpoint says how it is quantised",
    "trust_remote_code": "no code of a checkpoint is run",
    "model_path": "it is called model",
    "enforce_eager": 'it is graphs="none" of engine=EngineConfig(graphs="none")',
    "gpu_memory_utilization": "engine=EngineConfig(kv_memory_fraction=...) is a share of the memory that is free after "
    "the weights are loaded",
    "seed": "it is a parameter of each request: SamplingParams(seed=...)",
    "enable_prefix_caching": "prefixes are cached; engine=EngineConfig(reuse=False) recomputes them",
    "enable_chunked_prefill": "it is chunked of engine=EngineConfig(chunked=...)",
    "max_num_batched_tokens": "it is max_num_tokens of engine=EngineConfig(max_num_tokens=...)",
    "num_gpu_blocks_override": "it is num_pages of engine=EngineConfig(num_pages=...)",
    "kv_cache_memory_bytes": "it is kv_max_bytes of engine=EngineConfig(kv_max_bytes=...)",
    "kv_cache_dtype": "it is kv_cache_dtype of engine=EngineConfig(kv_cache_dtype=...)",
    "structured_outputs_config": "engine=EngineConfig(grammar=...) names the grammar library",
    "guided_decoding_backend": "engine=EngineConfig(grammar=...) names the grammar library",
    "logits_processors": "it is an option of a request: generate(..., logits_processor=function)",
    "max_logprobs": "leave it out; SamplingParams(logprobs=) takes 0 to 20",
    "compilation_config": 'graphs are captured always; engine=EngineConfig(graphs="none") runs without',
    "tokenizer": "it is read from the model's directory",
    "hf_overrides": "edit config.json in the model's directory",
    **dict.fromkeys(("task", "runner"), "leave it out; weft generates text only"),
    **dict.fromkeys(
        ("revision", "download_dir"),
        "LLM loads nothing from the network; `weft models get ORG/NAME` downloads into the Hugging Face cache",
    ),
    **dict.fromkeys(
        ("disable_log_stats", "async_scheduling", "swap_space", "tokenizer_mode", "load_format"),
        "leave it out; weft has no such setting",
    ),
}
"""Hints for parameters of `LLM`."""

OPTION_HINTS = {
    **dict.fromkeys((*GUIDE_NAMES, *GUIDE_NAMES.values(), "output_type", "response_model"), _AS_GUIDE),
    "sampling_params": "it is called sampling",
    "guided_options_request": "it is called guide",
    "enable_thinking": "of a chat: chat_template_kwargs={'enable_thinking': ...}",
    "stream": "stream and chat_stream answer piece by piece",
    "tools": "chat takes tools; what an answer may call is Guide.tools(...)",
    "prompt": "the prompt, or a list of them, comes first, without a name",
    "use_tqdm": "leave it out; only a list of prompts has a progress bar, and only on a terminal",
    "lora_request": "there are no adapters; merge one into its model",
}
"""Hints for options of `LLM.generate`."""

OUTPUT_HINTS = {
    "request_id": "the outputs of a list are in the order of its prompts",
    "finished": "an Output is always complete; finish_reason says why it ended",
    "stop_reason": "it is called stopped_by",
    "metrics": "it is called stats",
    "num_cached_tokens": "it is stats.reused_tokens",
    "prompt_logprobs": "generate(..., return_context_logits=True) gives context_logits, the prompt's logits",
    "sequences": "it is called outputs",
    "tokens": "it is called token_ids",
    "lora_request": "there are no adapters; merge one into its model",
    "encoder_prompt": "models have no encoder",
    "choices": "it is called outputs",
}
"""Hints for attributes of `Output`, from vLLM, OpenAI and transformers."""

_TOP = "top maps the most likely token ids to their log-probabilities, and logprob is the token's"

LOGPROB_HINTS = {
    **dict.fromkeys(("items", "values", "keys", "get"), _TOP),
    "decoded_token": "llm.tokenizer.decode(token_id) gives the text",
    "rank": "top lists the most likely tokens in order",
}
"""Hints for attributes of `TokenLogprob`; in vLLM it is a dict."""

_POOLING = "weft generates text only; it has no embeddings, classifiers or rewards"

LLM_HINTS = {
    "beam_search": "it is an option of a request: generate(prompts, beam_width=4), with "
    "engine=EngineConfig(max_beam_width=4)",
    **dict.fromkeys(("encode", "embed", "classify", "score", "reward"), _POOLING),
    "get_tokenizer": "it is the attribute tokenizer",
    "llm_engine": "it is called engine",
    "get_default_sampling_params": "it is the attribute default_sampling_params",
    "get_metrics": "each Output has stats; weft serve has /metrics",
    "reset_prefix_cache": "cached prefixes are evicted for newer ones; cache_salt of a request separates them",
    "create_completion": "it is called generate",
    "create_chat_completion": "it is called chat",
    **dict.fromkeys(("sleep", "wake_up"), "close frees the model; make a new LLM later"),
    "shutdown": "it is called close",
}
"""Hints for attributes of `LLM`, from vLLM and llama-cpp-python."""

_GUIDES = "give generate a guide: Guide.json_schema(schema), Guide.regex, Guide.choice, Guide.ebnf and others"
_SERVER = "use weft.executor.Executor (docs/executor.md), or LLM from several threads, or weft serve"
_TEXT = "a prompt is a text or a list of token ids"
_GRAMMARS = (
    "LLM takes guides, and weft.grammar compiles them for your own decode loop (docs/from-xgrammar.md)"
)
_BEAMS = (
    "beams are an option of a request: generate(prompts, beam_width=4), with EngineConfig(max_beam_width=4)"
)

IMPORT_HINTS = {
    # vLLM
    "StructuredOutputsParams": _GUIDES,
    "GuidedDecodingParams": _GUIDES,
    "RequestOutput": "it is called Output",
    "CompletionOutput": "it is called Output; output.outputs holds one for each answer",
    "RequestOutputKind": "stream and chat_stream give the new text, generate the whole",
    "BeamSearchParams": _BEAMS,
    "TokensPrompt": _TEXT,
    "TextPrompt": _TEXT,
    "PromptType": _TEXT,
    "EngineArgs": "LLM takes these: LLM(model, engine=EngineConfig(...))",
    "AsyncEngineArgs": "LLM takes these: LLM(model, engine=EngineConfig(...))",
    "LLMEngine": _SERVER,
    "AsyncLLM": _SERVER,
    "AsyncLLMEngine": _SERVER,
    "PoolingParams": _POOLING,
    "PoolingOutput": _POOLING,
    "PoolingRequestOutput": _POOLING,
    "EmbeddingRequestOutput": _POOLING,
    "KVTransferConfig": "there is no transfer of pages between engines",
    "LoRARequest": "there are no adapters; merge one into its model",
    "SpeculativeConfig": "give LLM speculation=Speculation.eagle3(...) or another",
    "CompilationConfig": 'graphs are captured always; EngineConfig(graphs="none") runs without',
    "ModelRegistry": "a model is a file and a line in weft/registry.py (docs/adding-a-model.md)",
    # SGLang, TensorRT-LLM
    "Engine": "it is called LLM",
    "KvCacheConfig": "give LLM engine=EngineConfig(...); the Executor's is in weft.executor",
    "BuildConfig": "nothing is built; give LLM engine=EngineConfig(...)",
    # llama-cpp-python
    "Llama": "it is called LLM; a GGUF file becomes a model directory by: weft convert FILE.gguf DIR",
    "LlamaGrammar": "give generate guide=Guide.ebnf(text)",
    # transformers
    "AutoModelForCausalLM": "it is called LLM",
    "AutoTokenizer": "it is load_tokenizer(directory); an LLM has its tokenizer",
    "GenerationConfig": "it is called SamplingParams",
    # outlines
    "Generator": _GUIDES,
    # XGrammar and LLGuidance
    "Grammar": f"it is called Guide; {_GRAMMARS}",
    "GrammarCompiler": f"it is called GuideCompiler; {_GRAMMARS}",
    "CompiledGrammar": f"it is called CompiledGuide; {_GRAMMARS}",
    "GrammarMatcher": f"GuideCompiler(vocabulary).compile(guide).matcher() makes one; {_GRAMMARS}",
    "BatchGrammarMatcher": f"it is GuidedDecoder of weft.guided; {_GRAMMARS}",
    "TokenizerInfo": f"it is called Vocabulary; {_GRAMMARS}",
    "LLMatcher": _GRAMMARS,
    "LLTokenizer": _GRAMMARS,
}
"""Hints for classes that a program may import from `weft` or `weft.grammar`."""

COMPILER_HINTS = {
    "compile_json_schema": "it is compile(Guide.json_schema(schema))",
    "compile_builtin_json_grammar": "it is compile(Guide.json())",
    "compile_regex": "it is compile(Guide.regex(pattern))",
    "compile_grammar": "it is compile(Guide.ebnf(grammar))",
    "compile_lark": "it is compile(Guide.lark(grammar))",
    "compile_structural_tag": "it is compile(Guide.structural_tag(tag))",
    "clear_cache": "the cache holds cache_limit_bytes, and evicts the guides used least recently",
}
"""Hints for attributes of `GuideCompiler`, from XGrammar."""


def hint(name: str, known: Collection[str], hints: Mapping[str, str]) -> str:
    """The hint for an unknown name: its entry in `hints`, else the most similar `known` name, else all known
    names."""
    if name in hints:
        return hints[name]
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def refuse_other_library(package: str, name: str) -> None:
    """Raise an `ImportError` with a hint if another library's class is imported from `package`. An `AttributeError`
    would not do: `from PACKAGE import NAME` replaces its message."""
    if name in IMPORT_HINTS:
        raise ImportError(f"{package} has no {name}; {IMPORT_HINTS[name]}", name=name)


def with_hints(hints: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """A class decorator that adds a hint to the `TypeError` for an unknown argument of the constructor."""

    def decorate(cls: type[T]) -> type[T]:
        make: Any = cls.__init__
        known = [name for name in signature(make).parameters if name != "self"]

        @wraps(make)
        def init(self: T, *arguments: Any, **named: Any) -> None:
            for name in named:
                if name not in known:
                    raise TypeError(f"{cls.__name__} has no parameter {name!r}; {hint(name, known, hints)}")
            make(self, *arguments, **named)

        setattr(cls, "__init__", init)  # noqa: B010  # mypy rejects an assignment
        return cls

    return decorate


def with_attribute_hints(hints: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """A class decorator that adds a hint to the `AttributeError` for an unknown attribute."""

    def decorate(cls: type[T]) -> type[T]:
        def missing(self: T, name: str) -> None:
            if hasattr(cls, name):  # a property that raised an AttributeError: raise that again
                object.__getattribute__(self, name)
            known = f"; {hints[name]}" if name in hints else ""
            raise AttributeError(
                f"{cls.__name__!r} object has no attribute {name!r}{known}", name=name, obj=self
            )

        setattr(cls, "__getattr__", missing)  # noqa: B010  # mypy would accept any attribute of the class
        return cls

    return decorate
