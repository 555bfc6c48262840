"""The Triton kernels' code, as the operations launch them, compiled without a GPU: of real models' shapes and 16 bits
nothing spills, and nothing is read too early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from support.kernels.interpreter import needs_triton
from support.kernels.launches import Code, Launch, launches
from support.kernels.routing import CHOICES
from support.kernels.sass import LETS_START, before_wait, instructions
from weft.models.memory import Pages
from weft.ops.activation import SWIGLU, Activation, Epilogue, Function
from weft.ops.attention import Window
from weft.ops.device_blocks import DeviceBlocks, Stored, num_bytes, stored_at
from weft.ops.formats import Format
from weft.ops.variants import NAMED, using

SHARED_MEMORY = 99 * 1024  # what the smallest GPU of these capabilities has for a program
KERNELS = {
    *("linear_kernel", "attend_few_kernel", "attend_kernel", "rotate_write_kernel", "activate_kernel"),
    *("embed_kernel", "norm_kernel", "add_norm_kernel", "join_norms_kernel", "take_kernel"),
}
LATENT_KERNELS = {"latent_queries_kernel", "latent_values_kernel"}
UP_KERNELS = {"latent_up_queries_kernel"}
EXPERTS_KERNELS = {"sort_kernel", "experts_kernel", "combine_kernel"}
ROUTING_KERNELS = {"choose_kernel"}
SHAPES = {
    # hidden, inner, heads, kv_heads, head_dim, norms of heads, biases
    "llama 8b": (4096, 14336, 32, 8, 128, False, False),
    "qwen 7b": (3584, 18944, 28, 4, 128, True, True),
    "135m": (576, 1536, 9, 3, 64, False, False),
    "odd": (320, 584, 6, 3, 80, True, True),
    "gemma": (2048, 8192, 8, 1, 256, True, False),
}

ATTENTION = {
    # pages, heads, rotated pairs and the first rotated dimension, soft cap, sink logits
    "gpt-oss 20b": (Pages(8, 64, 64, window=Window(128)), 64, 0, 0, 0.0, True),
    "gemma-2 9b": (Pages(8, 256, 256, window=Window(4096)), 16, 0, 0, 50.0, False),
    "deepseek v3": (Pages(1, 576, 512, values_in_keys=True), 128, 32, 512, 0.0, False),
    "deepseek v3 unrotated": (Pages(1, 576, 512, values_in_keys=True), 128, 0, 0, 0.0, False),
    "minicpm3": (Pages(40, 96, 64), 40, 0, 0, 0.0, False),
    "phi-2": (Pages(32, 80, 80), 32, 16, 0, 0.0, False),
    "qwen3-next": (Pages(2, 256, 256), 16, 32, 0, 0.0, False),
    "olmo-2 7b": (Pages(32, 128, 128), 32, 64, 0, 0.0, False),
    "olmo-2 32b": (Pages(8, 128, 128), 40, 64, 0, 0.0, False),
}
NORMS = {"qwen3-next": False, "olmo-2 7b": True, "olmo-2 32b": True}
"""Whether norms of heads are over all of them. Other models of `ATTENTION` have none."""
LATENT = {
    # heads, elements that are not rotated and that are, sizes of the latent, of a value and of a compressed query
    "deepseek v3": (128, 128, 64, 512, 128, 1536),
    "deepseek v2 lite": (16, 128, 64, 512, 128, 0),
    "glm 4.7 flash": (20, 192, 64, 512, 256, 768),
    "minicpm3": (40, 64, 32, 256, 64, 768),
}
EXPERTS = {
    # hidden, inner, experts, chosen, gates, biases
    "mixtral": (4096, 14336, 8, 2, True, False),
    "qwen 30b": (2048, 768, 128, 8, True, False),
    "gpt-oss 20b": (2880, 2880, 32, 4, True, True),
    "nemotron": (2688, 1856, 128, 6, False, False),
}

QUANTISED = (
    (Format.Q4_0, torch.bfloat16, 90),
    (Format.Q4_K, torch.bfloat16, 90),
    (Format.Q4_K, torch.float16, 80),
    (Format.Q4_K, torch.bfloat16, 100),
    (Format.Q5_K, torch.bfloat16, 80),
    (Format.Q6_K, torch.bfloat16, 90),
    (Format.IQ4_NL, torch.bfloat16, 80),
    (Format.MXFP4, torch.bfloat16, 100),
    (Format.INT4_128, torch.bfloat16, 90),
    (Format.INT8_128, torch.bfloat16, 100),
    (Format.FP8, torch.bfloat16, 90),
    (Format.FP8, torch.float16, 80),
    (Format.Q4_1, torch.float32, 90),
)
"""Each way to read quantised weights."""

pytestmark = [needs_triton, pytest.mark.slow]


def layer(shape: str, dtype: torch.dtype, rows: int, width: int) -> list[Callable[[], Any]]:
    """The operations of a layer over rows of `width` new tokens, and those around it."""
    from weft.ops import attention_triton, linear_triton, rows_triton

    hidden, inner, heads, kv_heads, dim, has_norms, has_bias = SHAPES[shape]
    count = rows * width

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    def linear(
        outputs: int,
        inputs: int,
        normed: bool,
        epilogue: Epilogue | None = None,
        live: torch.Tensor | None = None,
    ) -> Callable[[], None]:
        epilogue = epilogue or Epilogue()
        made = outputs // 2 if epilogue.gated else outputs
        bias, norm = (tensor(outputs) if has_bias else None), (tensor(inputs) if normed else None)
        residual = None if normed else tensor(count, made)
        return lambda: linear_triton.linear(
            tensor(count, inputs),
            tensor(outputs, inputs),
            bias,
            norm,
            1e-5,
            residual,
            epilogue,
            tensor(count, made),
            live=live,
        )

    def attend(
        window: int = 0, sinks: int = 0, settled: bool = True, counted: bool = True, ragged: bool = False
    ) -> None:
        wide = (heads + 2 * kv_heads) * dim
        norm = tensor(dim) if has_norms else None
        base = tensor(rows, dtype=torch.int64)
        layer = Pages(kv_heads, dim, dim).of(tensor(99, 16, 2 * kv_heads * dim))
        attention_triton.attend(
            tensor(count, wide), layer.keys, layer.values, tensor(rows, 512, dtype=torch.int32), base,
            base if counted else None, tensor(rows + 1, dtype=torch.int64) if ragged else None, width, 1, settled,
            1 if ragged else 0, 4, tensor(4096, dim // 2, 2, dtype=torch.float32), norm, norm, 1e-5, heads, dim**-0.5,
            0.0, None, window, sinks, tensor(count, heads * dim),
        )  # fmt: skip

    tokens = tensor(count, dtype=torch.int64)
    both, x, norm = tensor(count, 2 * hidden), tensor(count, hidden), tensor(hidden)
    live = tensor(1, dtype=torch.int64)
    gated, softcapped = Epilogue.of(SWIGLU, gated=True), Epilogue.of(scale=0.5, softcap=30.0)
    work: list[Callable[[], Any]] = [
        attend,
        lambda: attend(settled=False),
        lambda: attend(1000, 4),
        lambda: attend(counted=False),
        lambda: attend(counted=False, ragged=True),
        lambda: rows_triton.embed(tensor(999, hidden), tokens, x),
        lambda: rows_triton.norm(x, norm, 1e-5, x),
        lambda: rows_triton.norm(x, tensor(hidden, dtype=torch.float32), 1e-5, x),
        lambda: rows_triton.add_norm(x, x, norm, 1e-5, x),
        lambda: rows_triton.add_norm(x, x, norm, 1e-5, x, live),
        lambda: rows_triton.join_norms(tensor(999, hidden), tokens, norm, 1e-5, x, norm, 1e-5, both),
        lambda: rows_triton.take_rows(x.view(rows, width, -1), tokens[:rows], tensor(rows, hidden)),
        lambda: linear_triton.activate(tensor(count, 2 * inner), None, gated, tensor(count, inner)),
        lambda: linear_triton.activate(
            tensor(count, inner), tensor(count, inner), softcapped, tensor(count, inner)
        ),
        lambda: rows_triton.embed(tensor(999, hidden), tokens, x, live),
        lambda: rows_triton.norm(x, norm, 1e-5, x, live),
        lambda: rows_triton.join_norms(tensor(999, hidden), tokens, norm, 1e-5, x, norm, 1e-5, both, live),
        lambda: rows_triton.take_rows(x.view(rows, width, -1), tokens[:rows], tensor(rows, hidden), live),
        lambda: linear_triton.activate(tensor(count, 2 * inner), None, gated, tensor(count, inner), live),
    ]
    if count <= 16:
        work += [
            linear((heads + 2 * kv_heads) * dim, hidden, True),
            linear(hidden, heads * dim, False),
            linear(2 * inner, hidden, True, gated),
            linear(hidden, inner, False),
            linear(hidden, inner, False, live=live),
        ]
    return work


def launched(
    shape: str, dtype: torch.dtype, capability: int, sizes: tuple[tuple[int, int], ...] = ((2, 4), (2, 100))
) -> Iterator[Launch]:
    with launches((capability // 10, capability % 10)) as found:
        for rows, width in sizes:
            for operation in layer(shape, dtype, rows, width):
                operation()
    seen: set[str] = set()
    for launch in found:
        constants = {k: v for k, v in launch.arguments.items() if not isinstance(v, torch.Tensor)}
        key = f"{launch.name} {constants}"
        if key not in seen:
            seen.add(key)
            yield launch


@pytest.mark.parametrize(
    ("shape", "dtype", "capability"),
    [
        ("llama 8b", torch.bfloat16, 90),
        ("qwen 7b", torch.bfloat16, 90),
        ("135m", torch.float16, 80),
        ("odd", torch.bfloat16, 100),
        ("gemma", torch.bfloat16, 90),
        ("135m", torch.float32, 90),
        ("llama 8b", torch.float32, 80),
    ],
)
def test_kernels_compile(shape: str, dtype: torch.dtype, capability: int) -> None:
    found = list(launched(shape, dtype, capability))
    assert {launch.name for launch in found} == KERNELS
    for launch in found:
        code = launch.compile(capability)
        assert code.shared <= SHARED_MEMORY, f"{launch.name} takes {code.shared} bytes of shared memory"
        if dtype is not torch.float32:  # which no GPU multiplies fast anyway
            assert code.stack == code.spills == 0, (
                f"{launch.name}: {code.registers} registers, {code.spills} spills"
            )
        if launch.name in ("linear_kernel", "attend_few_kernel"):
            assert "LDGSTS" in code.instructions, f"{launch.name} does not load ahead"
        if capability >= 90 and launch.name != "activate_kernel":
            check_chain(launch, code)


@pytest.mark.parametrize(
    ("hidden", "inner", "dtype", "capability"),
    [
        (4096, 14336, torch.bfloat16, 90),
        (3840, 15360, torch.bfloat16, 100),
        (2304, 9216, torch.float16, 80),
        (320, 584, torch.float32, 90),
    ],
)
def test_products_with_other_inputs_and_outputs_compile(
    hidden: int, inner: int, dtype: torch.dtype, capability: int
) -> None:
    """The input is a sum with the norm of other rows; sums are activated, scaled and capped."""
    from weft.ops import linear_triton

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    with launches((capability // 10, capability % 10)) as found:
        x, norm, live = tensor(8, hidden), tensor(hidden, dtype=torch.float32), tensor(1, dtype=torch.int64)
        added = (tensor(8, hidden), norm, 1e-6, tensor(8, hidden))
        for epilogue in (
            Epilogue.of(Activation(Function.GELU_TANH), gated=True),
            Epilogue.of(Activation(Function.RELU_SQUARED), scale=0.5),
            Epilogue.of(softcap=30.0),
        ):
            out = tensor(8, inner)
            weight = tensor(2 * inner if epilogue.gated else inner, hidden)
            linear_triton.linear(x, weight, None, norm, 1e-6, None, epilogue, out)
            linear_triton.linear(x, weight, None, norm, 1e-6, None, epilogue, out, None, live, *added)
        linear_triton.linear(x, weight, None, None, 0.0, None, Epilogue(), out, None, None, *added)
    assert len(found) == 7
    for launch in found:
        code = launch.compile(capability)
        assert code.shared <= SHARED_MEMORY, f"it takes {code.shared} bytes of shared memory"
        if dtype is not torch.float32:
            assert code.stack == code.spills == 0, f"{code.registers} registers, {code.spills} spills"
        assert "LDGSTS" in code.instructions, "it does not load ahead"
        if capability >= 90:
            check_chain(launch, code)


CACHED_ATTENTION = (
    *(("gpt-oss 20b", torch.bfloat16, capability) for capability in (80, 90, 100)),
    *(("olmo-2 7b", torch.float16, capability) for capability in (80, 90, 100)),
    *(("deepseek v3", torch.bfloat16, capability) for capability in (80, 90, 100)),
)


@pytest.mark.parametrize("cached", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(("name", "dtype", "capability"), CACHED_ATTENTION)
def test_attention_over_other_caches_compiles(
    name: str, dtype: torch.dtype, capability: int, cached: torch.dtype
) -> None:
    check_attention(name, dtype, capability, cached)


@pytest.mark.parametrize(
    ("name", "dtype", "capability"),
    [
        ("gpt-oss 20b", torch.bfloat16, 90),
        ("gemma-2 9b", torch.float16, 80),
        ("deepseek v3", torch.bfloat16, 90),
        ("deepseek v3", torch.bfloat16, 100),
        ("deepseek v3", torch.bfloat16, 80),
        ("deepseek v3 unrotated", torch.bfloat16, 90),
        ("qwen3-next", torch.bfloat16, 90),
        ("qwen3-next", torch.float16, 80),
        ("olmo-2 7b", torch.bfloat16, 90),
        ("olmo-2 7b", torch.bfloat16, 80),
        ("olmo-2 32b", torch.bfloat16, 100),
        ("minicpm3", torch.bfloat16, 90),
        ("phi-2", torch.float16, 80),
        ("gpt-oss 20b", torch.float32, 100),
    ],
)
def test_attention_of_other_kinds_compiles(name: str, dtype: torch.dtype, capability: int) -> None:
    check_attention(name, dtype, capability, dtype)


def check_attention(name: str, dtype: torch.dtype, capability: int, cached: torch.dtype) -> None:
    from weft.ops import attention_triton

    pages, num_heads, num_pairs, first_rotated, softcap, has_sinks = ATTENTION[name]

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    with launches((capability // 10, capability % 10)) as found:
        keys, values, window, *_ = pages.of(tensor(99, 16, pages.size_in(cached), dtype=cached))
        wide = num_heads * pages.key_size + pages.width
        for rows, width in ((2, 4), (2, 100)):
            rotary = tensor(4096, num_pairs, 2, dtype=torch.float32) if num_pairs else None
            logits = tensor(num_heads, dtype=torch.float32) if has_sinks else None
            is_joint, norms, gate = NORMS.get(name, False), [None, None], None
            if name in NORMS:
                counts = (num_heads, pages.num_heads) if is_joint else (1, 1)
                norms = [tensor(count * pages.key_size, dtype=torch.float32) for count in counts]
            if name == "qwen3-next":
                gate = tensor(rows * width, 2 * num_heads * pages.value_size)[
                    :, : num_heads * pages.value_size
                ]
            attention_triton.attend(
                tensor(rows * width, wide), keys, values, tensor(rows, 512, dtype=torch.int32),
                tensor(rows, dtype=torch.int64), None, None, width, 0, True, 0, 0, rotary, *norms, 1e-6, num_heads,
                0.1, softcap, logits, window.size, window.sinks, tensor(rows * width, num_heads * pages.value_size),
                first_rotated, gate,
            )  # fmt: skip
    before = ["squares_kernel"] if NORMS.get(name, False) else []
    kernels = ["attend_few_kernel", *before, "rotate_write_kernel", "attend_kernel"]
    assert [launch.name for launch in found] == kernels
    for launch in found:
        code = launch.compile(capability)
        assert code.shared <= SHARED_MEMORY, f"{launch.name} takes {code.shared} bytes of shared memory"
        if dtype is not torch.float32:
            assert code.stack == code.spills == 0, (
                f"{launch.name}: {code.registers} registers, {code.spills} spills"
            )
        if capability >= 90:
            check_chain(launch, code)


@pytest.mark.parametrize("name", NAMED)
def test_variants_compile(name: str) -> None:
    """Each is what its settings say, in the shape that is measured."""
    with using(name):
        found = [
            launch for launch in launched("llama 8b", torch.bfloat16, 90, ((1, 4),)) if is_varied(launch)
        ]
        assert len(found) >= 4
        for launch in found:
            code = launch.compile(90)
            assert code.stack == code.spills == 0, f"{launch.name}: {code.registers} registers"
            if NAMED[name].chained:
                check_chain(launch, code)
            else:
                assert not {"PREEXIT", "ACQBULK"} & set(instructions(code.instructions))


@pytest.mark.parametrize("rows", [1, 8, 2048])
@pytest.mark.parametrize(
    ("shape", "dtype", "capability"),
    [
        ("mixtral", torch.bfloat16, 90),
        ("qwen 30b", torch.bfloat16, 90),
        ("qwen 30b", torch.float16, 80),
        ("gpt-oss 20b", torch.bfloat16, 100),
        ("gpt-oss 20b", torch.float32, 90),
        ("nemotron", torch.bfloat16, 80),
    ],
)
def test_experts_compile(shape: str, dtype: torch.dtype, capability: int, rows: int) -> None:
    from weft.ops import experts_triton

    hidden, inner, experts, chosen, gated, has_bias = EXPERTS[shape]
    outputs = 2 * inner if gated else inner

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    def bias(size: int) -> torch.Tensor | None:
        return tensor(experts, size, dtype=torch.float32) if has_bias else None

    with launches((capability // 10, capability % 10)) as found:
        for live, residual in ((None, None), (tensor(1, dtype=torch.int64), tensor(rows, hidden))):
            experts_triton.experts(
                tensor(rows, hidden), tensor(rows, chosen, dtype=torch.int64),
                tensor(rows, chosen, dtype=torch.float32), [tensor(experts, outputs, hidden)],
                [tensor(experts, hidden, inner)], bias(outputs), bias(hidden), gated, 1 if gated else 5, 1.702, 7.0,
                1.0, tensor(rows, hidden), live, residual,
            )  # fmt: skip
    few = rows * chosen <= experts_triton.FEW_CHOICES
    assert {launch.name for launch in found} == EXPERTS_KERNELS - ({"sort_kernel"} if few else set())
    for launch in found:
        code = launch.compile(capability)
        assert code.shared <= SHARED_MEMORY, f"{launch.name} takes {code.shared} bytes of shared memory"
        if dtype is not torch.float32:
            assert code.stack == code.spills == 0, (
                f"{launch.name}: {code.registers} registers, {code.spills} spills"
            )
        if launch.name == "experts_kernel":
            assert "LDGSTS" in code.instructions, "it does not load ahead"
        if capability >= 90:
            check_chain(launch, code)


def blocks(kind: Format, matrices: int, outputs: int, inputs: int) -> Stored:
    size = num_bytes(kind, matrices, outputs, inputs)
    memory = torch.empty(size, dtype=torch.uint8, device="cuda")
    return stored_at(memory, 0, kind, matrices, outputs, inputs)


@pytest.mark.parametrize(("kind", "dtype", "capability"), QUANTISED)
def test_products_of_quantised_weights_compile(kind: Format, dtype: torch.dtype, capability: int) -> None:
    """Those of a layer, with all that is fused; embeddings; and the widening for torch's matmul."""
    hidden, inner = (768, 1536) if dtype is torch.float32 else (4096, 14336)
    from weft.ops import blocks_triton, linear_triton, rows_triton

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    with launches((capability // 10, capability % 10)) as found:
        x, wide, norm = tensor(8, hidden), tensor(8, inner), tensor(hidden, dtype=torch.float32)
        live, gated = tensor(1, dtype=torch.int64), Epilogue.of(SWIGLU, gated=True)
        ups, down = blocks(kind, 1, 2 * inner, hidden), blocks(kind, 1, hidden, inner)
        added = (tensor(8, hidden), norm, 1e-6, tensor(8, hidden))
        linear_triton.linear(x, ups, tensor(2 * inner), norm, 1e-6, None, gated, wide)
        linear_triton.linear(x, ups, None, norm, 1e-6, None, gated, wide, None, live, *added)
        linear_triton.linear(wide, down, None, None, 0.0, x, Epilogue(), x, tensor(8, hidden), live)
        assert isinstance(down, DeviceBlocks)
        blocks_triton.widen(down, 0, tensor(hidden, inner))
        tokens = tensor(8, dtype=torch.int64)
        rows_triton.embed(ups, tokens, x, live)
        rows_triton.join_norms(ups, tokens, norm, 1e-6, x, norm, 1e-6, tensor(8, 2 * hidden), live)
    names = ["linear_kernel"] * 3 + ["widen_kernel", "embed_kernel", "join_norms_kernel"]
    assert [launch.name for launch in found] == names
    for launch in found:
        code = launch.compile(capability)
        assert code.shared <= SHARED_MEMORY, f"{launch.name} takes {code.shared} bytes of shared memory"
        if dtype is not torch.float32:
            assert code.stack == code.spills == 0, (
                f"{launch.name}: {code.registers} registers, {code.spills} spills"
            )
        if launch.name == "linear_kernel":
            assert "LDGSTS" in code.instructions, "it does not load ahead"
        if capability >= 90:
            check_chain(launch, code)


@pytest.mark.parametrize("rows", [8, 2048])
@pytest.mark.parametrize(
    ("kind", "shape", "dtype", "capability"),
    [
        (Format.Q4_K, "qwen 30b", torch.bfloat16, 90),
        (Format.Q4_K, "mixtral", torch.float16, 80),
        (Format.Q6_K, "mixtral", torch.bfloat16, 80),
        (Format.MXFP4, "gpt-oss 20b", torch.bfloat16, 90),
        (Format.MXFP4, "gpt-oss 20b", torch.bfloat16, 100),
        (Format.FP8, "qwen 30b", torch.bfloat16, 100),
    ],
)
def test_quantised_experts_compile(
    kind: Format, shape: str, dtype: torch.dtype, capability: int, rows: int
) -> None:
    from weft.ops import experts_triton

    hidden, inner, experts, chosen, *_ = EXPERTS[shape]

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    with launches((capability // 10, capability % 10)) as found:
        experts_triton.experts(
            tensor(rows, hidden), tensor(rows, chosen, dtype=torch.int64), tensor(rows, chosen, dtype=torch.float32),
            [blocks(kind, experts, 2 * inner, hidden)], [blocks(kind, experts, hidden, inner)], None, None, True, 1,
            1.0, 7.0, 0.0, tensor(rows, hidden),
        )  # fmt: skip
    products = [launch for launch in found if launch.name == "experts_kernel"]
    assert len(products) == 2
    for launch in products:
        code = launch.compile(capability)
        assert code.shared <= SHARED_MEMORY, f"it takes {code.shared} bytes of shared memory"
        assert code.stack == code.spills == 0, f"{code.registers} registers, {code.spills} spills"
        if capability >= 90:
            check_chain(launch, code)


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("name", CHOICES)
def test_routers_compile(name: str, capability: int) -> None:
    from weft.ops import routing_triton

    experts, choice, has_bias = CHOICES[name]

    def tensor(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    with launches((capability // 10, capability % 10)) as found:
        for hidden, norm, live in ((7168, tensor(7168), tensor(1, dtype=torch.int64)), (2048, None, None)):
            chosen = choice.top_k + choice.num_shared
            routing_triton.choose(
                tensor(8, experts + choice.shared_gate), tensor(experts, dtype=torch.float32) if has_bias else None,
                experts, choice.top_k, int(choice.scores), choice.renormalize, choice.scale, choice.num_groups,
                choice.num_top_groups, choice.group_top, choice.num_shared, choice.shared_gate, tensor(8, hidden), norm,
                1e-6, tensor(8, chosen, dtype=torch.int64), tensor(8, chosen, dtype=torch.float32),
                None if norm is None else tensor(8, hidden), live,
            )  # fmt: skip
    assert {launch.name for launch in found} == ROUTING_KERNELS
    for launch in found:
        code = launch.compile(capability)
        assert code.shared <= SHARED_MEMORY, f"{launch.name} takes {code.shared} bytes of shared memory"
        assert code.stack == code.spills == 0, (
            f"{launch.name}: {code.registers} registers, {code.spills} spills"
        )


@pytest.mark.parametrize("rows", [1, 16, 2048])
@pytest.mark.parametrize(
    ("shape", "dtype", "capability"),
    [
        ("deepseek v3", torch.bfloat16, 90),
        ("deepseek v3", torch.bfloat16, 80),
        ("glm 4.7 flash", torch.float16, 100),
        ("minicpm3", torch.bfloat16, 90),
        ("deepseek v2 lite", torch.float32, 80),
    ],
)
def test_latent_products_compile(shape: str, dtype: torch.dtype, capability: int, rows: int) -> None:
    from weft.ops import latent_triton

    heads, size, rotated, latent, value, query = LATENT[shape]
    kernels = LATENT_KERNELS | (UP_KERNELS if query and rows <= 16 else set())

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    with launches((capability // 10, capability % 10)) as found:
        for live in (None, tensor(1, dtype=torch.int64)):
            latent_triton.queries(
                tensor(rows, heads * (size + rotated)), tensor(rows, 1536 + latent + rotated)[:, 1536:],
                tensor(heads, size, latent), tensor(latent), 1e-6, rotated,
                tensor(rows, (heads + 1) * (latent + rotated)), live,
            )  # fmt: skip
            latent_triton.values(
                tensor(rows, heads * latent), tensor(heads, value, latent), tensor(rows, heads * value), live
            )
            if query and rows <= 16:
                x = tensor(rows, query + latent + rotated)
                latent_triton.up_queries(
                    x[:, :query], x[:, query:], tensor(heads * (size + rotated), query), tensor(query), 1e-6,
                    tensor(heads, size, latent), tensor(latent), 1e-6, rotated,
                    tensor(rows, (heads + 1) * (latent + rotated)), live,
                )  # fmt: skip
    assert {launch.name for launch in found} == kernels
    for launch in found:
        code = launch.compile(capability)
        assert code.shared <= SHARED_MEMORY, f"{launch.name} takes {code.shared} bytes of shared memory"
        if dtype is not torch.float32:
            assert code.stack == code.spills == 0, (
                f"{launch.name}: {code.registers} registers, {code.spills} spills"
            )
        inputs = {"latent_values_kernel": latent, "latent_queries_kernel": size}.get(launch.name, query)
        if inputs > launch.arguments["BK"]:  # in several steps
            assert "LDGSTS" in code.instructions, f"{launch.name} does not load ahead"
        if capability >= 90:
            check_chain(launch, code)


def is_varied(launch: Launch) -> bool:
    """Whether it is attention, or the product before or after the activation."""
    of = launch.arguments
    is_product = launch.name == "linear_kernel" and (of["GATED"] or of["K"] == SHAPES["llama 8b"][1])
    return launch.name == "attend_few_kernel" or bool(is_product)


def check_chain(launch: Launch, code: Code) -> None:
    """The kernel lets the next one start, then reads what nobody writes, then waits."""
    where = f"{launch.name} {dict(launch.options)}"
    assert LETS_START in instructions(code.instructions), where
    early = before_wait(code.instructions)
    if launch.name == "linear_kernel":
        check_early_weights(launch, early)
    elif launch.name == "attend_few_kernel":
        check_early_keys(launch.arguments["EARLY"], early)
    elif launch.name == "latent_up_queries_kernel":
        assert set(early) == {"CCTL.E.PF2"}, early
    else:
        assert early == [], where


def check_early_weights(launch: Launch, early: list[str]) -> None:
    """Of a product: the first tiles of weights, asynchronously, and requests for what follows them. Beside weights only
    the norm's are there before the wait, and the number of live rows, which is read around the L1 cache."""
    of = launch.arguments
    if of["Live"] is not None:
        early = early.copy()
        early.remove("LDG.E.64.STRONG.GPU")
    loads = [name for name in early if name.startswith("LDGSTS")]
    assert set(early) - set(loads) <= {"CCTL.E.PF2", "UBLKPF.L2"}, early
    per_share = -(-of["K"] // (of["BK"] * of["SHARES"])) * of["BK"]
    if of["AHEAD"] and (not of["EARLY"] or per_share > (of["STAGES"] - 1) * of["BK"]):
        assert ("UBLKPF.L2" if of["PIECES"] else "CCTL.E.PF2") in early
    if not of["EARLY"]:
        assert loads == []
    elif of["Norm"] is None and of["K"] % 8 == 0:
        tiles = of["BN"] * of["BK"] * of["W"].element_size() // (16 * 32 * launch.options["num_warps"])
        assert len(loads) == tiles * (of["STAGES"] - 1), early
    else:
        assert loads


def check_early_keys(how: int, early: list[str]) -> None:
    """Of attention: nothing, or around the L1 cache, which may hold what was there before."""
    assert all(
        name.startswith("LDG.E") and name.endswith("STRONG.GPU") for name in early if "PF2" not in name
    )
    if how == 0:
        assert early == []
    else:
        assert ("CCTL.E.PF2" in early) == (how == 1), early
        assert ("LDG.E.128.STRONG.GPU" in early) == (how == 2), early


def test_ragged_attention_has_a_tile_for_each_block_of_tokens() -> None:
    """Grids depend on the number of tokens and of rows, not on the product of rows and width. Short rows read no keys
    early, because the long rows' kernel may write them."""
    from weft.ops import attention_triton

    def tensor(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    num_tokens, num_rows, num_short, width = 2048, 72, 8, 2016
    with launches() as found:
        base = tensor(num_rows, dtype=torch.int64)
        layer = Pages(8, 128, 128).of(tensor(99, 16, 2048))
        attention_triton.attend(
            tensor(num_tokens, 48 * 128), layer.keys, layer.values, tensor(num_rows, 512, dtype=torch.int32), base,
            None, tensor(num_rows + 1, dtype=torch.int64), width, 0, True, num_short, 4,
            tensor(4096, 64, 2, dtype=torch.float32), None, None, 0.0, 32, 128**-0.5, 0.0, None, 0, 0,
            tensor(num_tokens, 4096),
        )  # fmt: skip
    num_long = num_rows - num_short
    assert [(launch.name, launch.grid) for launch in found] == [
        ("rotate_write_kernel", (num_tokens // 16 + num_long, 48)),
        ("attend_kernel", (num_tokens * 4 // 64 + num_long, 8)),
        ("attend_few_kernel", (num_short, 8, 16)),
    ]
    assert found[-1].arguments["EARLY"] == 1, "they prefetch to the L2 cache alone"


def test_kernels_cover_the_modules() -> None:
    from weft.ops import (
        attention_triton,
        blocks_triton,
        experts_triton,
        latent_triton,
        linear_triton,
        routing_triton,
        rows_triton,
    )

    modules = (
        *(attention_triton, blocks_triton, experts_triton, latent_triton, linear_triton, routing_triton),
        rows_triton,
    )
    kernels = {name for module in modules for name in vars(module) if name.endswith("_kernel")}
    assert kernels == KERNELS | EXPERTS_KERNELS | LATENT_KERNELS | UP_KERNELS | ROUTING_KERNELS | {
        "squares_kernel",
        "widen_kernel",
    }
