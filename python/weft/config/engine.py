"""The engine's settings. Each component has its own dataclass. `EngineConfig` combines them, and `ResolvedConfig` has
no defaults left to resolve."""

from __future__ import annotations

import math
import operator
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from weft import registry
from weft.core.names import ENGINE_HINTS, with_hints
from weft.core.values import Checked, Count, OneOf, ValueKind, number, whole
from weft.errors import InputError

ActivationDtype = Literal["auto", "float32", "bfloat16x2", "bfloat16", "int8"]
Graphs = Literal["one", "split", "none"]
HostTasks = Literal["callback", "polling"]
Policy = Literal["guaranteed_no_evict", "max_utilization", "static_batch"]
Chunking = Literal["first_come", "equal_progress"]
Logprobs = Literal["raw", "sampled", "normalized"]
KvCacheDtype = Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"]

DEFAULT_MAX_SEQ_LEN = 4096
DEFAULT_MAX_NUM_TOKENS = 2048
PREFILL_CHUNK_CPU, PREFILL_CHUNK_GPU = 512, 2048
MASK_TIME_LIMIT_S, UNTRUSTED_MASK_TIME_LIMIT_S = 2.0, 0.25
PROGRAM_BYTES = 192 << 20
"""Memory budget in bytes for a WebAssembly program with the default `WasmLimits`: twice its memory, plus the undo data
for rollbacks."""

_ABOVE_0, _BELOW_1 = math.ulp(0.0), math.nextafter(1.0, 0.0)


def _check_grammar(name: str, value: object) -> None:
    OneOf(registry.names("grammars"))(name, value)


def _check_windows(name: str, windows: object) -> None:
    sizes = windows if isinstance(windows, tuple) else (None,)
    if not all(type(size) is int and size >= 1 for size in sizes):
        raise InputError(
            f"{name} is {windows!r}; it must be a tuple of whole numbers, each at least 1, such as (4096,)"
        )


def _check_outputs(name: str, outputs: object) -> None:
    pairs = outputs if isinstance(outputs, tuple) else (None,)
    for pair in pairs:
        match pair:
            case (str(), bool()):
                continue
        raise InputError(
            f"{name} is {outputs!r}; it must be a tuple of pairs of a name and whether it is gathered of prompts too, "
            'such as (("TopKLogits", False),)'
        )
    names = [output for output, _ in pairs]
    if len(set(names)) < len(names):
        raise InputError(f"{name} is {outputs!r}; it names an output twice")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(Checked):
    """Settings of the scheduler: which requests run, and how many tokens a step processes."""

    max_batch: Count = 8
    """The number of slots, which is the maximum number of requests that decode at once. A beam search takes one slot
    per beam."""

    max_beam_width: Count = 1
    """The maximum number of beams per request. More than 1 excludes speculation."""

    max_seq_len: Annotated[int, whole(2)] | None = None
    """The maximum number of tokens per request, prompt and answer together. Default: the model's number of positions,
    but at most 4096 unless `whole_context` is set."""

    whole_context: bool = False
    """Whether `max_seq_len` defaults to all of the model's positions."""

    max_num_tokens: Count | None = None
    """The maximum number of tokens per step, decode and prefill together. Default: 2048, or the tokens
    that a full batch decodes plus one page, whichever is larger."""

    prefill_chunk: Count | None = None
    """The maximum number of prompt tokens per forward pass, from one prompt or several. Default: 2048 on a GPU, 512
    on a CPU."""

    max_stall: Annotated[float, number(1.0, sys.float_info.max, "at least 1")] | None = 4.0
    """The maximum duration of a step that reads prompts while other requests decode, as a multiple of a step that only
    decodes. The engine measures both, and limits the prompt tokens of a step (at least 32). None, or without
    `chunked`: no such limit."""

    policy: Policy = "guaranteed_no_evict"
    """When a waiting request is admitted to a slot:

    - `"guaranteed_no_evict"`: when there are enough pages for its prompt and its longest possible answer.
    - `"max_utilization"`: when there are enough pages for its prompt. When pages run out, the latest request of the
      lowest priority is preempted: it frees its pages and continues later.
    - `"static_batch"`: together with others, when the previous batch has finished.
    """

    chunking: Chunking = "first_come"
    """Which prompts a step prefills when not all fit: one after another (`"first_come"`), or a part of each
    (`"equal_progress"`, which needs `chunked`)."""

    chunked: bool = True
    """Whether a prompt may be prefilled in chunks. If not, it waits for a step that has room for all of it. A prompt
    longer than a step is chunked anyway."""

    max_idle_s: Annotated[float, number(_ABOVE_0, sys.float_info.max, "above 0 seconds")] = 180.0
    """A preempted request that is not readmitted within this many seconds ends with "timeout". One that yielded its
    slot to another client (`shares_slots`) may wait longer."""

    shares_slots: bool = False
    """Whether clients share the slots equally (`docs/serving.md`). A client that runs nothing when all slots are
    taken gets its share from clients that hold more. Their preempted requests continue later."""

    tunes_batch: bool = False
    """Whether the batch is tuned: fewer requests decode at once if the mean lengths of recent requests suggest it."""

    tunes_tokens: bool = False
    """Whether the token limit of a step is tuned: it is lowered if the mean lengths of recent requests suggest it."""

    tuning_window: Count = 128
    """The number of recent requests whose lengths the two tuning settings use."""


@dataclass(frozen=True, kw_only=True)
class CacheConfig(Checked):
    """Settings of the paged KV cache, and of prefix reuse after a request ends (`docs/kv-cache.md`).

    The number of pages is the smallest that those of `num_pages`, `kv_memory_fraction` and `kv_max_bytes` allow that
    are set.
    """

    page_size: Count = 16
    """Tokens per page."""

    num_pages: Annotated[int, whole(2, valid="at least 2 (page 0 is the padding's)")] | None = None
    """The number of pages, including page 0, which is used only for padding. Default: enough for a request of
    `max_seq_len` tokens in every slot, but at most what 90 % of a GPU's free memory or half of a CPU's holds. With
    `kv_memory_fraction` the default is no limit on a GPU, and twice that number on a CPU."""

    kv_memory_fraction: (
        Annotated[float, number(_ABOVE_0, _BELOW_1, "a number above 0 and below 1 (or None)")] | None
    ) = None
    """The maximum share of the memory that is free after loading the weights: the device's, or on a CPU the
    machine's."""

    kv_max_bytes: Annotated[int, whole(1, valid="at least 1 (or None)")] | None = None
    """The maximum size of all pages together, in bytes."""

    kv_cache_dtype: KvCacheDtype = "auto"
    """The dtype of cached keys and values, the drafter's too (`docs/kv-cache.md`). `"auto"` is bfloat16 on a CPU if the
    model's weights have 16 bits or fewer, and float32 if they have more; on a GPU it is the model's dtype. There only
    that one, `"fp8"` (E4M3, without scales) and `"int8"` (with a scale for each key and value of a head) are
    possible."""

    reuse: bool = True
    """Whether a prompt reuses the cached keys and values of an earlier text with the same prefix."""

    partial_reuse: bool = True
    """Whether the reused prefix may end in the middle of a page."""

    copy_on_partial_reuse: bool = True
    """Whether a partly reused page is copied. If not, the request takes the page itself out of the cache, if no other
    request holds it and no cached page continues it."""

    host_cache_bytes: Annotated[int, whole(0, valid="0 or more")] = 0
    """Bytes of host memory for cached pages that are evicted from the device. A prompt with that prefix copies them
    back."""

    onboard_blocks: bool = True
    """Whether pages are copied back from the host. It can't be False if `host_cache_bytes` is set."""

    secondary_offload_min_priority: Annotated[int, whole(0, 100, "0 to 100")] = 30
    """Evicted pages with a priority below this are dropped instead of moved to the host."""

    num_snapshots: Annotated[int, whole(0, valid="0 or more (or None)")] | None = None
    """The number of states that are kept for cached texts, of a model with recurrent layers. It reuses a prefix only up
    to a position whose state was kept (`docs/kv-cache.md`). Default: twice `max_batch`. 0 reuses nothing."""

    kv_event_buffer: Annotated[int, whole(0, valid="0 or more")] = 0
    """The maximum number of KV cache events that are buffered for `Engine.kv_events`. 0 records none."""

    attention_windows: Annotated[tuple[int, ...], _check_windows] = ()
    """The attention window of each layer, in tokens, including the token itself (`docs/windows.md`). A shorter tuple
    is repeated over the layers. The model's own windows apply too. A window of `max_seq_len` or more has no
    effect."""

    sink_tokens: Annotated[int, whole(0)] = 0
    """The number of attention sinks: the first tokens of a text, which stay in every window and count as part of
    it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.host_cache_bytes and not self.onboard_blocks:
            raise InputError(
                "onboard_blocks is False: what is on the host can't be read from there, and nothing would be kept in "
                f"the {self.host_cache_bytes} bytes of host_cache_bytes; leave onboard_blocks on, or host_cache_bytes 0"
            )
        if self.attention_windows and self.sink_tokens >= min(self.attention_windows):
            raise InputError(
                f"sink_tokens is {self.sink_tokens}; it must be below the smallest of attention_windows, "
                f"{min(self.attention_windows)}: the sinks are part of a window"
            )

    @property
    def is_sized_by_memory(self) -> bool:
        """Whether the amount of memory limits the number of pages."""
        return self.kv_memory_fraction is not None or self.kv_max_bytes is not None

    def pages_for(self, tokens: int, num_draft_tokens: int) -> int:
        """Return the pages needed for a text of `tokens` tokens, plus the positions that two iterations in flight may
        write beyond it."""
        return -(-(tokens + positions_ahead(num_draft_tokens)) // self.page_size)


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig(Checked):
    """Settings for how an iteration runs on the device, and which of its tensors requests may ask for."""

    activation_dtype: ActivationDtype = "auto"
    """How matrix products on a CPU round the rows that they read (`docs/precision.md`). Sums are float32. A matrix that
    allows no such rounding is multiplied as with `"auto"`, and routers of experts read rows in float32.

    - `"auto"`: as is fastest: `"int8"` for quantised weights other than FP8 on processors with AVX2, `"bfloat16"` for
      weights in bfloat16 on processors that multiply bfloat16 faster than float32, and `"float32"` for others.
    - `"float32"`: not at all.
    - `"bfloat16x2"`: to two parts in bfloat16, 17 bits in all, for weights in bfloat16. Needs a processor with AMX.
    - `"bfloat16"`: to bfloat16, for weights in bfloat16.
    - `"int8"`: to int8, with a scale for each 32 numbers of a row, for quantised weights other than FP8.
    """

    overlap: Literal["auto"] | bool = "auto"
    """Whether to launch an iteration before the host has read the results of the previous one, so that the device
    does not wait for the host. `"auto"`: only on a GPU, and not with split graphs, which don't allow it."""

    graphs: Graphs = "one"
    """How much is captured as CUDA graphs. The tokens are the same.

    - `"one"`: a single graph for the whole iteration. It is split only around the call of a logits processor on the
      host.
    - `"split"`: separate graphs for the target's and the drafter's parts, with the grammar's work on the host between
      them.
    - `"none"`: no graph; each iteration runs eagerly.
    """

    host_tasks: HostTasks = "callback"
    """How a graph calls the grammar on the host: by host nodes (`"callback"`), or by a thread that polls memory words
    which the device writes (`"polling"`). Polling has lower latency, but keeps a core busy. On a device that does not
    support polling, the engine's `config` says `"callback"`."""

    gather_generation_logits: bool = False
    """Whether requests may ask for the raw logits of their answers. This costs memory."""

    additional_outputs: Annotated[tuple[tuple[str, bool], ...], _check_outputs] = ()
    """Additional tensors that the model marks and requests may ask for. Each is a pair: its name, and whether it is
    also gathered for prompts."""

    logprobs: Logprobs = "raw"
    """The distribution that token log-probabilities are taken from. Beam search has its own.

    - `"raw"`: the model's own, before any sampling parameters.
    - `"sampled"`: over the whole vocabulary after bias, penalties, guide, temperature (1 for greedy requests) and
      min-p, but without top-k and top-p. As in TensorRT-LLM with `normalize_log_probs` False.
    - `"normalized"`: the same, but normalized over the `top_k` most likely tokens, for requests with a `top_k`. A
      greedy request has a `top_k` of 1. As in TensorRT-LLM with `normalize_log_probs` True.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # Split graphs are a baseline for measurements. On the CPU they give the same tokens with overlap, but no test
        # covers the two together.
        if self.overlap is True and self.graphs == "split":
            raise InputError(
                'overlap needs graphs="one" or "none": split graphs have the host between their parts'
            )

    def is_overlapped(self, device: str) -> bool:
        """Whether iterations overlap on a device of this type of torch's: `overlap` with "auto" resolved."""
        if self.overlap == "auto":
            return device == "cuda" and self.graphs != "split"
        return self.overlap


@dataclass(frozen=True, kw_only=True)
class GuideConfig(Checked):
    """Settings for guides, WebAssembly programs and stop words, and limits for their cost on the host."""

    grammar: Annotated[str, _check_grammar] = "auto"
    """The library that compiles guides, by its name in the registry. `"auto"` picks for each guide the library that
    enforces more of it (`docs/grammars.md`)."""

    untrusted_guides: bool = False
    """Whether guides come from untrusted clients. They are then compiled under `CompileLimits.untrusted()`, after a
    trial in another process."""

    mask_time_limit_s: (
        Annotated[float, number(0, sys.float_info.max, "0 seconds (no limit) or more")] | None
    ) = None
    """Seconds that a guide may spend per token; 0 is no limit. A request above it ends with an error. The time covers
    filling masks, accepting and undoing tokens, and finding forced text. CPU time counts, and so does waiting beyond
    2 s. Default: 2, or 0.25 with `untrusted_guides`."""

    programs_ahead: Count | None = None
    """The number of WebAssembly programs that may start before their requests have slots. Default: the number of
    slots."""

    max_program_bytes: Count | None = None
    """The total memory budget of all programs in bytes. A program counts from its start until its request ends;
    further programs wait (`docs/wasm.md`). Default: 384 MiB for each slot and for each of `programs_ahead`."""

    max_words: Count = 1024
    """The maximum number of stop words per request, and also of bad words."""

    max_word_bytes: Count = 1 << 16
    """The maximum size of a request's stop words in bytes, and also of its bad words. A string counts its UTF-8
    bytes, and a token id counts 4."""


@with_hints(ENGINE_HINTS)
@dataclass(frozen=True, kw_only=True)
class EngineConfig(
    GuideConfig, ExecutionConfig, CacheConfig, SchedulerConfig
):  # fields of the last base come first
    """All settings of an engine, each with a default. None means that the default depends on the model, the device or
    other settings.

    A `Count` is a whole number of at least 1. Code that needs only one component's settings takes that component's
    class, which is a base of this one. Raises `InputError` for an invalid value.
    """

    def resolved(
        self,
        max_position_embeddings: int,
        num_draft_tokens: int,
        device: str = "cpu",
        has_states: bool = False,
    ) -> ResolvedConfig:
        """Return the settings with every default replaced by a number. They are for a model of
        `max_position_embeddings` positions and for `num_draft_tokens` drafts per iteration. `device` is torch's
        device type. `has_states`: whether the model has recurrent layers. Without them, or without reuse, there are no
        snapshots. With them, but without snapshots, nothing is reused."""
        length = self.max_seq_len
        if length is None:
            limit = max_position_embeddings
            length = limit if self.whole_context else min(limit, DEFAULT_MAX_SEQ_LEN)
        if length > max_position_embeddings:
            raise InputError(
                f"max_seq_len is {length}, but the model ends at {max_position_embeddings} positions; lower it, or "
                "leave it out"
            )
        decoded = self.max_batch * (num_draft_tokens + 1)
        lowest = decoded + self.page_size
        tokens = self.max_num_tokens or max(DEFAULT_MAX_NUM_TOKENS, lowest)
        if tokens < lowest:
            raise InputError(
                f"max_num_tokens is {tokens}; a full batch decodes {decoded} tokens, and a page of {self.page_size} "
                f"more must be left for prompts: it must be at least {lowest}"
            )
        chunk = self.prefill_chunk or (PREFILL_CHUNK_CPU if device == "cpu" else PREFILL_CHUNK_GPU)
        mask_limit = self.mask_time_limit_s
        if mask_limit is None:
            mask_limit = UNTRUSTED_MASK_TIME_LIMIT_S if self.untrusted_guides else MASK_TIME_LIMIT_S
        ahead = self.programs_ahead or self.max_batch
        num_snapshots = 2 * self.max_batch if self.num_snapshots is None else self.num_snapshots
        if not (has_states and self.reuse):
            num_snapshots = 0
        settings: dict[str, Any] = {
            **vars(self),
            "max_seq_len": length,
            "num_pages": self.num_pages or 1 + self.max_batch * self.pages_for(length, num_draft_tokens),
            "prefill_chunk": min(chunk, tokens),
            "max_num_tokens": tokens,
            "mask_time_limit_s": mask_limit,
            "programs_ahead": ahead,
            "num_snapshots": num_snapshots,
            "reuse": self.reuse and (num_snapshots > 0 or not has_states),
            # Twice, because a program may keep a copy for the other sequences of its request.
            "max_program_bytes": self.max_program_bytes or 2 * (self.max_batch + ahead) * PROGRAM_BYTES,
        }
        # Convert integers of other libraries, such as numpy's, to Python's int: the C code accepts no other type.
        plain: dict[str, Any] = {
            name: operator.index(value) if ValueKind.INTEGER.holds(value) else value
            for name, value in settings.items()
        }
        return ResolvedConfig(**plain)


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(EngineConfig):
    """The settings that an engine runs with. `EngineConfig.resolved` has replaced every default by a number."""

    max_seq_len: int
    max_num_tokens: int
    prefill_chunk: int
    num_pages: int
    num_snapshots: int
    mask_time_limit_s: float
    programs_ahead: int
    max_program_bytes: int


def positions_ahead(num_draft_tokens: int) -> int:
    """Return how many positions two iterations in flight may write beyond the last one that the host knows to be
    committed."""
    return 2 * (num_draft_tokens + 1) + num_draft_tokens
