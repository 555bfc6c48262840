"""Ways to serve: a drafter, and the settings of an executor that change when tokens come, never which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.questions import MAX_SEQ_LEN
from soak.workload import CONFIG
from support.engine.drafters import BEHIND_GIVEN, DRAFTERS
from weft import Speculation
from weft.executor import (
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    ExecutorConfig,
    GuidedDecodingConfig,
    KvCacheConfig,
    SchedulerConfig,
)

UTILIZATION = CapacitySchedulerPolicy.MAX_UTILIZATION
STATIC = CapacitySchedulerPolicy.STATIC_BATCH


@dataclass(frozen=True)
class Way:
    """A drafter with `num_drafts` drafts and the settings that are not the default.

    `pages` bounds the cache, so that requests are preempted under MAX_UTILIZATION; what must go from it, `host_bytes`
    of the host's memory keep. `schedule` is the CPU runtime's. With `takes_any` one client takes everybody's responses.
    """

    drafter: str = "none"
    num_drafts: int = 3
    policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    equal_progress: bool = False
    page_size: int = 16
    pages: int | None = None
    host_bytes: int = 0
    reuse: bool = True
    copies: bool = True
    schedule: str = "inline"
    takes_any: bool = False
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def terms(self) -> dict[str, bool]:
        """What requests may ask for: drafts that they bring along, generation logits."""
        gives_logits = dict(self.settings).get("gather_generation_logits", False)
        return {"takes_given": "given" in self.drafter, "gives_logits": gives_logits}

    def config(self, drafters: Path) -> ExecutorConfig:
        """The executor's settings; `drafters` is where random ones were saved."""
        chunking = ContextChunkingPolicy.EQUAL_PROGRESS if self.equal_progress else None
        return ExecutorConfig(
            max_seq_len=MAX_SEQ_LEN,
            iter_stats_max_iterations=1_000_000,
            scheduler_config=SchedulerConfig(self.policy, chunking),
            kv_cache_config=KvCacheConfig(
                enable_block_reuse=self.reuse,
                copy_on_partial_reuse=self.copies,
                max_tokens=None if self.pages is None else self.pages * self.page_size,
                tokens_per_block=self.page_size,
                host_cache_size=self.host_bytes,
            ),
            speculation=self.speculation(drafters),
            guided_decoding_config=GuidedDecodingConfig(
                backend=GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR
            ),
            logits_post_processor_config=CONFIG,
            normalize_log_probs=False,
            **({"max_batch_size": 6, "overlap": True, "enable_chunked_context": True} | dict(self.settings)),
        )

    def speculation(self, drafters: Path) -> Speculation:
        """The drafter, with its random weights in `drafters`."""
        if self.drafter == "none":
            return Speculation.none()
        if self.drafter in BEHIND_GIVEN:
            return BEHIND_GIVEN[self.drafter](self.num_drafts)
        return DRAFTERS[self.drafter](drafters, self.num_drafts)


def way(drafter: str = "none", num_drafts: int = 3, **given: Any) -> Way:
    """A way; what `Way` has no field for are settings of `ExecutorConfig`."""
    fields = {name: given.pop(name) for name in list(given) if name in Way.__dataclass_fields__}
    return Way(drafter, num_drafts, settings=tuple(given.items()), **fields)


# The few pages of some hold 160 tokens. The longest needs 156, and with more pages chance says who is preempted.
WAYS = {
    "plain": way(max_batch_size=8, gather_generation_logits=True),
    "plain, few pages": way(policy=UTILIZATION, page_size=8, pages=20, takes_any=True),
    "eagle3, few tokens": way("eagle3", max_num_tokens=64),
    "eagle3 unguided, split, few pages": way(
        "eagle3-unguided", 2, policy=UTILIZATION, page_size=8, pages=20, graphs="split", overlap=False
    ),
    "eagle3, threads": way("eagle3", schedule="threads", max_batch_size=3, gather_generation_logits=True),
    "mtp, eager, equal progress": way("mtp", graphs="none", equal_progress=True, max_num_tokens=64),
    "draft model, static": way("draft_model", 2, policy=STATIC, max_batch_size=4),
    "n-grams, few pages, no copies": way(
        "ngram", 4, policy=UTILIZATION, page_size=4, pages=40, copies=False, takes_any=True
    ),
    "n-grams unguided, whole prompts, short queue": way(
        "ngram-unguided", enable_chunked_context=False, max_queue_size=8, overlap=False
    ),
    "lookahead": way("lookahead", 2, max_batch_size=4),
    "forced, alone": way("forced", max_batch_size=1, gather_generation_logits=True),
    "forced and eagle3, no prefixes": way("forced+eagle3", 5, reuse=False),
    "forced and n-grams, any order": way("forced+ngram", schedule="random", max_batch_size=3),
    "random eagle3, few pages, any order": way(
        "random eagle3",
        policy=UTILIZATION,
        page_size=8,
        pages=20,
        host_bytes=1 << 19,
        schedule="random",
        max_batch_size=4,
    ),
    "random mtp, split": way(
        "random mtp", graphs="split", overlap=False, takes_any=True, gather_generation_logits=True
    ),
    "random mtp chain": way("random mtp chain", 8, max_batch_size=4),
    "random draft model, few pages, in turn": way(
        "random draft_model", policy=UTILIZATION, page_size=8, pages=20, host_bytes=1 << 23, overlap=False
    ),
    "given": way("given", 8, max_batch_size=8),
    "given, n-grams, static": way(
        "given+ngram", policy=STATIC, graphs="none", max_batch_size=4, gather_generation_logits=True
    ),
    "given, eagle3, any order": way("given+eagle3", schedule="random", max_batch_size=3),
    "given, forced, eagle3, few pages": way(
        "given+forced+eagle3",
        policy=UTILIZATION,
        page_size=8,
        pages=20,
        equal_progress=True,
        max_num_tokens=64,
    ),
    "given, forced, n-grams, eager": way("given+forced+ngram", graphs="none", takes_any=True),
}
