"""The dtypes of cached keys and values, and of rows that products read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from weft.errors import InputError
from weft.executor import Executor, KvCacheConfig
from weft.ops.formats import Activations


def test_dtypes_are_those_of_the_settings(make: Callable[..., Executor]) -> None:
    executor = make(activation_dtype="float32", kv_cache_config=KvCacheConfig(kv_cache_dtype="float16"))
    parts = executor.client.engine.parts
    assert parts.kv.dtype is torch.float16
    assert parts.model.config.rounding is Activations.FLOAT32
    parts = make().client.engine.parts
    assert parts.kv.dtype is torch.bfloat16
    assert parts.model.config.rounding is None


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="kv_cache_dtype is 'fp4'; it must be 'auto', 'float32'"):
        KvCacheConfig(kv_cache_dtype="fp4")  # type: ignore[arg-type]
