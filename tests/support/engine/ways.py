"""Ways to schedule: what tokens come must not depend on them."""

from __future__ import annotations

from typing import Any

WAYS: dict[str, dict[str, Any]] = {
    "overlap": {"overlap": True},
    "overlap eager": {"overlap": True, "graphs": "none"},
    "split": {"graphs": "split"},
    "static": {"policy": "static_batch", "overlap": True},
    "few tokens": {"max_num_tokens": 64, "overlap": True},
    "equal progress": {"max_num_tokens": 64, "chunking": "equal_progress"},
    "whole prompts": {"chunked": False},
    "few pages": {"policy": "max_utilization", "num_pages": 28, "page_size": 8, "overlap": True},
    "few pages, in turn": {"policy": "max_utilization", "num_pages": 28, "page_size": 8},
    "few pages, split": {"policy": "max_utilization", "num_pages": 28, "page_size": 8, "graphs": "split"},
    "no prefixes": {"reuse": False, "overlap": True},
    "few pages, more on the host": {
        "policy": "max_utilization",
        "num_pages": 28,
        "page_size": 8,
        "overlap": True,
        "host_cache_bytes": 1 << 23,
    },
    "a few pages on the host": {
        "num_pages": 90,
        "page_size": 4,
        "host_cache_bytes": 1 << 16,
        "kv_event_buffer": 9,
    },
    "no copies": {"copy_on_partial_reuse": False, "page_size": 4},
}
