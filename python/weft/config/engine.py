"""The settings of an engine: small dataclasses by owner, `EngineConfig` with all of them, and `ResolvedConfig`."""

from __future__ import annotations

import math
import operator
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from weft import registry
from weft.core.names import ENGINE_HINTS, with_hints
from weft.core.values import Checked, Count, Kind, OneOf, number, whole
from weft.errors import InputError

Graphs = Literal["one", "split", "none"]
HostTasks = Literal["callback", "polling"]
Policy = Literal["guaranteed_no_evict", "max_utilization", "static_batch"]
Chunking = Literal["first_come", "equal_progress"]
Logprobs = Literal["raw", "sampled", "normalized"]

DEFAULT_MAX_SEQ_LEN = 4096
DEFAULT_MAX_NUM_TOKENS = 2048
PREFILL_CHUNK_CPU, PREFILL_CHUNK_GPU = 512, 2048
MASK_TIME_LIMIT_S, UNTRUSTED_MASK_TIME_LIMIT_S = 2.0, 0.25
PROGRAM_BYTES = 192 << 20
"""Bytes of a program with the default `WasmLimits`: its memory twice, and the state that takes tokens back."""

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
    """Which requests run, and how many tokens a step has."""

    max_batch: Count = 8
    """Requests that decode at once: the number of slots. A beam search takes one slot for each of its beams."""

    max_beam_width: Count = 1
    """Beams of a request at most. More than 1 excludes speculation."""

    max_seq_len: Annotated[int, whole(2)] | None = None
    """Tokens of a request at most, prompt and answer together. Default: as many as the model has positions, at most
    4096 unless `whole_context`."""

    whole_context: bool = False
    """Whether the default of `max_seq_len` is all of the model's positions."""

    max_num_tokens: Count | None = None
    """Tokens of a step at most, those that it decodes and those of prompts that it reads. Default: 2048, or the tokens
    that a full batch decodes and one page more, if that is more."""

    prefill_chunk: Count | None = None
    """Prompt tokens that one forward reads at most, of one prompt or of several. Default: 2048 on a GPU, 512 on a
    CPU."""

    policy: Policy = "guaranteed_no_evict"
    """When a waiting request is admitted:

    - `"guaranteed_no_evict"`: when there are pages for its whole answer.
    - `"max_utilization"`: when there are pages for its prompt. When pages run out, the last and least important request
      gives its own back and continues later.
    - `"static_batch"`: together with others, when the batch before it has ended.
    """

    chunking: Chunking = "first_come"
    """Which prompts a step reads when not all fit: the oldest (`"first_come"`), or a part of each
    (`"equal_progress"`)."""

    chunked: bool = True
    """Whether a prompt may be read in parts. If not, one step reads it whole, as soon as a step has room; a prompt
    longer than a step is read in parts anyway."""

    max_idle_s: Annotated[float, number(_ABOVE_0, sys.float_info.max, "above 0 seconds")] = 180.0
    """A preempted request that is not admitted again for this long ends with "timeout"."""

    shares_slots: bool = False
    """Whether clients share the slots equally (`docs/serving.md`). A client that runs nothing and finds all slots taken
    gets its share of them from clients that have more; their requests continue later."""

    tunes_batch: bool = False
    """Whether fewer requests decode at once when the mean lengths of recent requests recommend it."""

    tunes_tokens: bool = False
    """Whether a step has fewer tokens when the mean lengths of recent requests recommend it."""

    tuning_window: Count = 128
    """The number of recent requests whose lengths count."""


@dataclass(frozen=True, kw_only=True)
class CacheConfig(Checked):
    """The pages that hold keys and values, and what becomes of them after a request (`docs/kv-cache.md`).

    The smallest of `num_pages`, `kv_memory_fraction` and `kv_max_bytes` decides how many pages there are.
    """

    page_size: Count = 16
    """Tokens of a page."""

    num_pages: Annotated[int, whole(2, valid="at least 2 (page 0 is the padding's)")] | None = None
    """Pages, with page 0, which only pads. Default: enough for every slot."""

    kv_memory_fraction: (
        Annotated[float, number(_ABOVE_0, _BELOW_1, "a number above 0 and below 1 (or None)")] | None
    ) = None
    """The share of the memory that is free on the device once the weights are loaded."""

    kv_max_bytes: Annotated[int, whole(1, valid="at least 1 (or None)")] | None = None
    """Bytes of all pages at most."""

    reuse: bool = True
    """Whether a prompt takes over the keys and values of an earlier text that begins like it."""

    partial_reuse: bool = True
    """Whether the common beginning may end in the middle of a page."""

    copy_on_partial_reuse: bool = True
    """Whether such a page is copied. If not, the page itself leaves the cache for the request, provided that no request
    holds it and no cached page continues it."""

    host_cache_bytes: Annotated[int, whole(0, valid="0 or more")] = 0
    """Bytes of the host's memory for cached pages that leave the device. A prompt that begins with them finds them, and
    they are copied back."""

    onboard_blocks: bool = True
    """Whether pages are copied back from the host. Can't be False with `host_cache_bytes`."""

    secondary_offload_min_priority: Annotated[int, whole(0, 100, "0 to 100")] = 30
    """Pages of a lower priority than this are dropped instead of moved to the host."""

    kv_event_buffer: Annotated[int, whole(0, valid="0 or more")] = 0
    """How many events of cached pages wait at most for `Engine.kv_events`. 0: none are recorded."""

    attention_windows: Annotated[tuple[int, ...], _check_windows] = ()
    """For each layer in order, how many tokens each token attends to, itself included (`docs/windows.md`). A shorter
    tuple is repeated. Windows of the model itself hold too. A window of `max_seq_len` or more limits nothing."""

    sink_tokens: Annotated[int, whole(0)] = 0
    """The first tokens of a text that stay in every window and count as part of it."""

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
        """Pages for a text of `tokens` and for the positions that two iterations in flight write beyond it."""
        return -(-(tokens + positions_ahead(num_draft_tokens)) // self.page_size)


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig(Checked):
    """How an iteration runs on the device, and which of its tensors requests may ask for."""

    overlap: Literal["auto"] | bool = "auto"
    """Whether an iteration is launched before the host has read the one before it, so that the device does not wait for
    the host. `"auto"`: on a GPU."""

    graphs: Graphs = "one"
    """What is captured: `"one"` graph for a whole iteration; the parts of the target and of the drafter apart, with the
    grammar's work on the host between them (`"split"`); or nothing, so that each iteration is issued eagerly
    (`"none"`). The tokens are the same."""

    host_tasks: HostTasks = "callback"
    """How a graph calls the grammar when the model waits for it: by host nodes (`"callback"`), or by a thread that
    polls words which the device writes (`"polling"`). Polling answers sooner and keeps a core busy. On a device that
    can't poll, the engine's `config` says `"callback"`."""

    gather_generation_logits: bool = False
    """Whether requests may ask for the raw logits of their answers, which need memory."""

    additional_outputs: Annotated[tuple[tuple[str, bool], ...], _check_outputs] = ()
    """Tensors that the model marks and requests may ask for: pairs of a name and whether the tensor is gathered of
    prompts too."""

    logprobs: Logprobs = "raw"
    """The distribution that the log-probabilities of tokens are from. Beams have their own.

    - `"raw"`: the model's, before all sampling rules.
    - `"sampled"`: the whole vocabulary under bias, penalties, guide, temperature (1 for greedy requests) and min-p, but
      without top-k and top-p. TensorRT-LLM's with `normalize_log_probs` False.
    - `"normalized"`: the same within the `top_k` likeliest tokens, for requests with a `top_k`; a greedy request has a
      `top_k` of 1. TensorRT-LLM's with `normalize_log_probs` True.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap is True and self.graphs == "split":
            raise InputError(
                'overlap needs graphs="one" or "none": split graphs have the host between their parts'
            )


@dataclass(frozen=True, kw_only=True)
class GuideConfig(Checked):
    """Guides, programs and words, and what they may cost the host."""

    grammar: Annotated[str, _check_grammar] = "auto"
    """The library that compiles guides, by its name in the registry. `"auto"`: for each guide the one that enforces
    more of it (`docs/grammars.md`)."""

    untrusted_guides: bool = False
    """Whether guides come from clients that are not trusted. They are then compiled under `CompileLimits.untrusted()`,
    and tried in another process first."""

    mask_time_limit_s: (
        Annotated[float, number(0, sys.float_info.max, "0 seconds (no limit) or more")] | None
    ) = None
    """Seconds that a guide may take for one token, or its request ends with an error; 0 is no limit. Masks, accepted
    tokens, tokens taken back and forced text count together. Processor time counts, and waiting beyond 2 s. Default: 2,
    or 0.25 with `untrusted_guides`."""

    programs_ahead: Count | None = None
    """WebAssembly programs that may start before their requests have slots. Default: as many as there are slots."""

    max_program_bytes: Count | None = None
    """Bytes that all programs may hold together, from their start until their requests end; others wait
    (`docs/wasm.md`). Default: 384 MiB for each slot and for each of `programs_ahead`."""

    max_words: Count = 1024
    """Stop words of a request at most, and bad words too."""

    max_word_bytes: Count = 1 << 16
    """Bytes of a request's stop words at most, and of its bad words: of a text in UTF-8, and 4 for each token id."""


@with_hints(ENGINE_HINTS)
@dataclass(frozen=True, kw_only=True)
class EngineConfig(
    GuideConfig, ExecutionConfig, CacheConfig, SchedulerConfig
):  # fields of the last come first
    """The settings of an engine, each with a default. None stands for a default that depends on the model or device.

    A `Count` is a whole number, at least 1. A function that needs some of the settings takes the part that has them.
    Raises `InputError` for a value that does not fit.
    """

    def resolved(
        self, max_position_embeddings: int, num_draft_tokens: int, device: str = "cpu"
    ) -> ResolvedConfig:
        """The same settings with a number for every default, for a model of `max_position_embeddings` positions and
        `num_draft_tokens` drafts in an iteration; `device` is the kind of device, as torch names it."""
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
        settings: dict[str, Any] = {
            **vars(self),
            "max_seq_len": length,
            "num_pages": self.num_pages or 1 + self.max_batch * self.pages_for(length, num_draft_tokens),
            "prefill_chunk": min(chunk, tokens),
            "max_num_tokens": tokens,
            "mask_time_limit_s": mask_limit,
            "programs_ahead": ahead,
            # Twice, since a program may keep a copy for the other sequences of its request.
            "max_program_bytes": self.max_program_bytes or 2 * (self.max_batch + ahead) * PROGRAM_BYTES,
        }
        # Integers of other libraries, such as numpy's, become Python's, which C code asks for.
        plain: dict[str, Any] = {
            name: operator.index(value) if Kind.INTEGER.holds(value) else value
            for name, value in settings.items()
        }
        return ResolvedConfig(**plain)


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(EngineConfig):
    """The settings that an engine runs with: `EngineConfig.resolved` has replaced every default by a number."""

    max_seq_len: int
    max_num_tokens: int
    prefill_chunk: int
    num_pages: int
    mask_time_limit_s: float
    programs_ahead: int
    max_program_bytes: int


def positions_ahead(num_draft_tokens: int) -> int:
    """Positions that two iterations in flight may write beyond those that the host knows to be committed."""
    return 2 * (num_draft_tokens + 1) + num_draft_tokens
