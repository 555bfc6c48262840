"""Multi-head latent attention layers with random weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from support.activations import rounded
from weft.ops.formats import Activations
from weft.ops.latent import LatentQueries, LatentValues
from weft.ops.linear import Norm


@dataclass(frozen=True)
class Sizes:
    """The sizes in `weft.ops.latent`, and the weights' dtype. `query` is 0 if queries are not compressed."""

    heads: int
    query: int
    nope: int
    rotated: int
    latent: int
    value: int
    dtype: torch.dtype = torch.float32

    @property
    def width(self) -> int:
        """The number of elements of a row of the input."""
        queries = self.query or self.heads * (self.nope + self.rotated)
        return queries + self.latent + self.rotated

    def __str__(self) -> str:
        sizes = (self.heads, self.query, self.nope, self.rotated, self.latent, self.value)
        return "-".join(map(str, (*sizes, str(self.dtype).removeprefix("torch."))))


class LatentLayer:
    """Weights of these sizes, and the products in float64."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, generator = sizes, torch.Generator().manual_seed(5)

        def weight(*shape: int) -> Tensor:
            scaled: Tensor = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
            return scaled.to(sizes.dtype)

        heads, nope = sizes.heads, sizes.nope
        kv_up = weight(heads, nope + sizes.value, sizes.latent)
        self.k_up, self.v_up = kv_up[:, :nope], kv_up[:, nope:]
        self.q_up = weight(heads * (nope + sizes.rotated), sizes.query) if sizes.query else None
        # On the CPU a norm is float32, as activations are.
        self.q_norm = Norm(torch.rand(sizes.query, generator=generator) + 0.5, 1e-6) if sizes.query else None
        self.kv_norm = Norm(torch.rand(sizes.latent, generator=generator) + 0.5, 1e-5)

    def queries(self, activations: Activations | None = None) -> LatentQueries:
        return LatentQueries(
            self.q_up, self.k_up, self.q_norm, self.kv_norm, self.sizes.rotated, activations=activations
        )

    def values(self, activations: Activations | None = None) -> LatentValues:
        return LatentValues(self.v_up, activations=activations)

    def rows(self, count: int, seed: int = 0) -> Tensor:
        return torch.randn(count, self.sizes.width, generator=torch.Generator().manual_seed(seed))

    def attended(self, count: int, seed: int = 0) -> Tensor:
        width = self.sizes.heads * self.sizes.latent
        return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))

    def expected_queries(self, x: Tensor, activations: Activations = Activations.FLOAT32) -> Tensor:
        """Queries and key of rows `x`, in float64. Products round their input rows by `activations`."""
        sizes, x = self.sizes, x.double()
        key = sizes.latent + sizes.rotated
        q, latent, k_rotated = x.split((x.shape[1] - key, sizes.latent, sizes.rotated), 1)
        if self.q_up is not None:
            assert self.q_norm is not None
            q = rounded(normed(q, self.q_norm), activations) @ self.q_up.double().T
        q_nope, q_rotated = q.unflatten(1, (sizes.heads, -1)).split((sizes.nope, sizes.rotated), 2)
        absorbed = torch.einsum("nhd,hdr->nhr", rounded(q_nope, activations), self.k_up.double())
        queries = torch.cat((absorbed, q_rotated), 2).flatten(1)
        return torch.cat((queries, normed(latent, self.kv_norm), k_rotated), 1)

    def expected_values(self, attended: Tensor, activations: Activations = Activations.FLOAT32) -> Tensor:
        """The results of rows `attended`, in float64, with products as in `expected_queries`."""
        of_heads = rounded(attended, activations).double().unflatten(1, (self.sizes.heads, -1))
        return torch.einsum("nhr,hvr->nhv", of_heads, self.v_up.double()).flatten(1)


def normed(x: Tensor, norm: Norm) -> Tensor:
    return x * (x.square().mean(1, keepdim=True) + norm.eps).rsqrt() * norm.weight.double()
