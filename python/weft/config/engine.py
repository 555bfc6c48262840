"""Sizes and policies of an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from weft import registry
from weft.errors import InputError

Graphs = Literal["one", "split", "none"]
HostTasks = Literal["callback", "polling"]
Policy = Literal["guaranteed_no_evict", "max_utilization", "static_batch"]
Chunking = Literal["first_come", "equal_progress"]
Logprobs = Literal["raw", "sampled", "normalized"]

PROGRAM_BYTES = 192 << 20
"""What a program with `WasmLimits`' defaults may hold: its memory twice, and what is kept to take tokens back."""


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of an engine.

    `max_batch` requests decode at once, each of at most `max_seq_len` tokens (prompt and answer; default: what the
    model can, at most 4096 unless `whole_context`). One that is searched by beams counts for as many requests as it
    has beams, which may be `max_beam_width`; above 1 that excludes speculation. Keys and values live in `num_pages`
    pages of `page_size` tokens (default: enough for every slot). One forward reads `prefill_chunk` tokens at most, of
    one prompt or of several (default: 2048 on a GPU, 512 on a CPU).

    A turn reads parts of prompts and decodes, `max_num_tokens` tokens at most (default: 2048, or what a full batch
    decodes and one page more). `policy` says who is admitted: `"guaranteed_no_evict"`, whoever has pages for all of
    its answer; `"max_utilization"`, whoever has pages for its prompt: when they run out, the last and least important
    request gives its own back and goes on later; `"static_batch"`, a batch when the one before it is done. `chunking`
    says who reads: `"first_come"`, or all in `"equal_progress"`; with `chunked` False a prompt is read in one turn,
    once there is room, unless it is longer than a turn. A request that was preempted and is not admitted again for
    `max_idle_s` seconds ends with "timeout". With `shares_slots` each client that has something to do has its part of
    the slots: one that runs nothing, and finds them taken, gets its part of those whose client has more, which go on
    later (`docs/serving.md`). With `tunes_batch` and `tunes_tokens` fewer requests decode at once, and
    an iteration has fewer tokens, where the mean lengths of the last `tuning_window` requests say so.

    With `overlap` an iteration is launched before the host has read the one before it, so that the device does not
    wait for the host; `"auto"` does so on a GPU. A prompt that begins as an earlier text did takes its keys and values
    (`reuse`), also in the middle of a page (`partial_reuse`), whose beginning is copied (`copy_on_partial_reuse`).

    With `kv_memory_fraction`, above 0 and below 1, there are pages for that share of what is free on the device once
    the weights are there; with `kv_max_bytes`, for so many bytes at most; the least of these and of `num_pages` counts
    (`docs/kv-cache.md`). `host_cache_bytes` of the host's memory keep cached pages that must leave the device, if their
    priority is `secondary_offload_min_priority` or more (0 to 100); a prompt that begins with them finds them, and they
    are copied back (`onboard_blocks`, which can't be off where there are any). The last `kv_event_buffer` events of
    cached pages can be taken from `Engine.kv_events` (0: there are none).

    `attention_windows` limit how far back layers see: a token attends to as many at most, itself among them. There is
    one for each layer, in their order; a shorter tuple is repeated. Windows of the model's own hold besides. The first
    `sink_tokens` tokens stay in every window, and are part of it. A window of `max_seq_len` or more is none
    (`docs/windows.md`).

    `graphs` says what is captured: `"one"` graph for a whole iteration; `"split"`, the target's and the drafter's
    parts apart, with the grammar's work on the host between them; or `"none"`, every iteration issued eagerly. The
    tokens are the same. `host_tasks` says how a graph calls the grammar where the model waits for it: by `"callback"`,
    that is by host nodes; or by `"polling"`, a thread of weft's that looks at words which the device writes, and which
    answers sooner, for a core that is busy meanwhile. A device that can't do it has callbacks, which the engine's
    `config` then says. `gather_generation_logits` keeps memory for the raw logits of answers, and `additional_outputs`
    for tensors that the model marks: a name each, with whether it is gathered of prompts too. Requests may be searched
    with up to `max_beam_width` beams.

    `logprobs` says whose the log-probabilities of tokens are that requests ask for: `"raw"`, the model's, before all
    that sampling does; `"sampled"`, those of the whole vocabulary under all of it but top-k and top-p: bias, penalties,
    guide, temperature (of greedy requests: 1) and min-p; `"normalized"`, the same within the `top_k` likeliest, where a
    request has a `top_k`, or is greedy, which is a `top_k` of 1. They are TensorRT-LLM's with `normalize_log_probs`
    False and True. Beams have their own.

    `grammar` names the library that compiles guides, one of the registry's; `"auto"` takes the one that enforces more
    of the guide at hand (`docs/grammars.md`). A guide that takes longer than `mask_time_limit_s` seconds within one
    token (0: no limit), for masks, tokens that it takes and takes back, and forced text together, ends its request
    with an error; processor time counts, and of waiting what is over 2 s. None is 2 s, or 0.25 s with
    `untrusted_guides`. With these guides come from strangers: they are compiled under `CompileLimits.untrusted()`,
    and tried in another process before.

    A request may have `max_words` stop words, and as many bad words; each list holds `max_word_bytes` bytes at most:
    texts in UTF-8, a token id counting for four.

    WebAssembly programs start before their requests have slots: `programs_ahead` of them at most (default: as many as
    slots). Those that have started, and whose requests have not ended, may hold `max_program_bytes` together (default:
    384 MiB for each slot and each of those); others wait (`docs/wasm.md`).
    """

    max_batch: int = 8
    max_beam_width: int = 1
    max_seq_len: int | None = None
    whole_context: bool = False
    page_size: int = 16
    num_pages: int | None = None
    prefill_chunk: int | None = None
    max_num_tokens: int | None = None
    policy: Policy = "guaranteed_no_evict"
    chunking: Chunking = "first_come"
    chunked: bool = True
    max_idle_s: float = 180.0
    shares_slots: bool = False
    tunes_batch: bool = False
    tunes_tokens: bool = False
    tuning_window: int = 128
    overlap: bool | Literal["auto"] = "auto"
    reuse: bool = True
    partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    kv_memory_fraction: float | None = None
    kv_max_bytes: int | None = None
    host_cache_bytes: int = 0
    onboard_blocks: bool = True
    secondary_offload_min_priority: int = 30
    kv_event_buffer: int = 0
    attention_windows: tuple[int, ...] = ()
    sink_tokens: int = 0
    graphs: Graphs = "one"
    host_tasks: HostTasks = "callback"
    gather_generation_logits: bool = False
    additional_outputs: tuple[tuple[str, bool], ...] = ()
    logprobs: Logprobs = "raw"
    mask_time_limit_s: float | None = None
    untrusted_guides: bool = False
    max_program_bytes: int | None = None
    programs_ahead: int | None = None
    grammar: str = "auto"
    max_words: int = 1024
    max_word_bytes: int = 1 << 16

    def __post_init__(self) -> None:
        for name in (
            "max_batch",
            "max_beam_width",
            "max_seq_len",
            "page_size",
            "num_pages",
            "prefill_chunk",
            "max_num_tokens",
            "max_words",
            "max_word_bytes",
            "tuning_window",
            "max_program_bytes",
            "programs_ahead",
            "kv_max_bytes",
            "host_cache_bytes",
            "secondary_offload_min_priority",
            "kv_event_buffer",
        ):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise InputError(f"{name} is {value!r}; it must be a whole number")
        for name in (
            "max_batch",
            "max_beam_width",
            "page_size",
            "prefill_chunk",
            "max_words",
            "max_word_bytes",
            "tuning_window",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        for name, names in {**CHOICES, "grammar": tuple(registry.names("grammars"))}.items():
            if getattr(self, name) not in names:
                *others, last = (f'"{each}"' if isinstance(each, str) else repr(each) for each in names)
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; it must be {', '.join(others)} or {last}"
                )
        for name in ("max_program_bytes", "programs_ahead"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        self._check_cache()
        check_outputs(self.additional_outputs)
        check_windows(self.attention_windows, self.sink_tokens)
        if self.overlap is True and self.graphs == "split":
            raise InputError(
                'overlap needs graphs="one" or "none": split graphs have the host between their parts'
            )
        if not (math.isfinite(self.max_idle_s) and self.max_idle_s > 0):
            raise InputError(f"max_idle_s is {self.max_idle_s}; it must be above 0 seconds")
        limit = self.mask_time_limit_s
        if limit is not None and not (math.isfinite(limit) and limit >= 0):
            raise InputError(f"mask_time_limit_s is {limit}; it must be 0 seconds (no limit) or more")
        if self.max_seq_len is not None and self.max_seq_len < 2:
            raise InputError(f"max_seq_len is {self.max_seq_len}; it must be at least 2")
        if self.num_pages is not None and self.num_pages < 2:
            raise InputError(
                f"num_pages is {self.num_pages}; it must be at least 2 (page 0 is the padding's)"
            )

    def _check_cache(self) -> None:
        fraction = self.kv_memory_fraction
        if fraction is not None and not (is_number(fraction) and 0 < fraction < 1):
            raise InputError(
                f"kv_memory_fraction is {fraction!r}; it must be a number above 0 and below 1 (or None)"
            )
        for name, most in (
            ("host_cache_bytes", None),
            ("kv_event_buffer", None),
            ("secondary_offload_min_priority", 100),
        ):
            value = getattr(self, name)
            if value is None or value < 0 or (most is not None and value > most):
                raise InputError(f"{name} is {value}; it must be 0 {'or more' if most is None else 'to 100'}")
        if self.kv_max_bytes is not None and self.kv_max_bytes < 1:
            raise InputError(f"kv_max_bytes is {self.kv_max_bytes}; it must be at least 1 (or None)")
        if self.host_cache_bytes and not self.onboard_blocks:
            raise InputError(
                "onboard_blocks is False: what is on the host can't be read from there, and nothing would be kept in "
                f"the {self.host_cache_bytes} bytes of host_cache_bytes; leave onboard_blocks on, or host_cache_bytes 0"
            )

    @property
    def is_sized_by_memory(self) -> bool:
        """Whether memory has a say in how many pages there are."""
        return self.kv_memory_fraction is not None or self.kv_max_bytes is not None

    def resolved(
        self, max_position_embeddings: int, num_draft_tokens: int, device: str = "cpu"
    ) -> EngineConfig:
        """The same config with every default replaced by a number; `device` is the kind of device, as torch has it."""
        limit = max_position_embeddings
        most = limit if self.whole_context else min(limit, 4096)
        length = self.max_seq_len if self.max_seq_len is not None else most
        if length > limit:
            raise InputError(
                f"max_seq_len is {length}, but the model ends at {limit} positions; lower it, or leave it out"
            )
        pages = self.num_pages
        if pages is None:
            pages = 1 + self.max_batch * self.pages_for(length, num_draft_tokens)
        least = self.max_batch * (num_draft_tokens + 1) + self.page_size
        tokens = self.max_num_tokens if self.max_num_tokens is not None else max(2048, least)
        if tokens < least:
            raise InputError(
                f"max_num_tokens is {tokens}; a full batch decodes {least - self.page_size} tokens, and a page of "
                f"{self.page_size} more must be left for prompts: it must be at least {least}"
            )
        mask_limit = self.mask_time_limit_s
        if mask_limit is None:
            mask_limit = UNTRUSTED_MASK_TIME_LIMIT_S if self.untrusted_guides else MASK_TIME_LIMIT_S
        chunk = self.prefill_chunk or (PREFILL_CHUNK_CPU if device == "cpu" else PREFILL_CHUNK_GPU)
        ahead = self.programs_ahead if self.programs_ahead is not None else self.max_batch
        programs = self.max_program_bytes
        if programs is None:  # each may keep a copy for its siblings
            programs = 2 * (self.max_batch + ahead) * PROGRAM_BYTES
        return replace(
            self,
            max_seq_len=length,
            num_pages=pages,
            prefill_chunk=min(chunk, tokens),
            max_num_tokens=tokens,
            mask_time_limit_s=mask_limit,
            programs_ahead=ahead,
            max_program_bytes=programs,
        )

    def pages_for(self, tokens: int, num_draft_tokens: int) -> int:
        """Pages that hold `tokens` and what two iterations in flight may write beyond them."""
        return -(-(tokens + positions_ahead(num_draft_tokens)) // self.page_size)


PREFILL_CHUNK_CPU, PREFILL_CHUNK_GPU = 512, 2048

MASK_TIME_LIMIT_S, UNTRUSTED_MASK_TIME_LIMIT_S = 2.0, 0.25

CHOICES: dict[str, tuple[object, ...]] = {
    "graphs": ("one", "split", "none"),
    "whole_context": (True, False),
    "host_tasks": ("callback", "polling"),
    "policy": ("guaranteed_no_evict", "max_utilization", "static_batch"),
    "chunking": ("first_come", "equal_progress"),
    "chunked": (True, False),
    "shares_slots": (True, False),
    "tunes_batch": (True, False),
    "tunes_tokens": (True, False),
    "overlap": ("auto", True, False),
    "reuse": (True, False),
    "partial_reuse": (True, False),
    "copy_on_partial_reuse": (True, False),
    "onboard_blocks": (True, False),
    "gather_generation_logits": (True, False),
    "logprobs": ("raw", "sampled", "normalized"),
    "untrusted_guides": (True, False),
}
"""What the settings of an `EngineConfig` that name something may be."""


def is_number(value: object) -> bool:
    """Whether it is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_windows(windows: object, sinks: object) -> None:
    """Raise `InputError` unless these are windows, a tuple of whole numbers from 1, and as many sinks as all have room
    for."""
    sizes = windows if isinstance(windows, tuple) else (None,)
    if not all(type(size) is int and size >= 1 for size in sizes):
        raise InputError(
            f"attention_windows is {windows!r}; it must be a tuple of whole numbers, each at least 1, such as (4096,)"
        )
    if type(sinks) is not int or sinks < 0:
        raise InputError(f"sink_tokens is {sinks!r}; it must be a whole number, at least 0")
    if sizes and sinks >= min(sizes):
        raise InputError(
            f"sink_tokens is {sinks}; it must be below the smallest of attention_windows, {min(sizes)}: the sinks are "
            "part of a window"
        )


def check_outputs(outputs: object) -> None:
    """Raise `InputError` unless these are pairs of a name, each another, and a truth value."""
    pairs = outputs if isinstance(outputs, tuple) else (None,)
    for pair in pairs:
        match pair:
            case (str(), bool()):
                continue
        raise InputError(
            f"additional_outputs is {outputs!r}; it must be a tuple of pairs of a name and whether it is gathered of "
            'prompts too, such as (("TopKLogits", False),)'
        )
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise InputError(f"additional_outputs is {outputs!r}; it names an output twice")


def positions_ahead(num_draft_tokens: int) -> int:
    """Positions that two iterations in flight may write beyond what the host knows to be committed."""
    return 2 * (num_draft_tokens + 1) + num_draft_tokens
