"""Any causal language model, by transformers' code over weft's pages.

The network is transformers'. Its attention goes to weft's pages (`calls.py`). Its matrix products, embeddings and norms
are weft's operations (`modules.py`). All other operations are torch's, and are captured as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from weft.models.base import Hidden, PagedKV, WeightSource
from weft.models.config import ModelConfig
from weft.models.generic.calls import Calls, current
from weft.models.generic.network import load_network, parse_config
from weft.models.generic.probe import check_logits
from weft.models.outputs import mark_output, mark_top_logits
from weft.ops.attention import Rows
from weft.ops.linear import Linear
from weft.ops.quantized import Matrix
from weft.ops.rows import copy_rows_, positions_of


class TransformersModel:
    """A transformers network as a `Model`. It marks the outputs that `Llama` marks.

    `Hidden.last` is the hidden state after the final norm, which is what the network's head takes."""

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        self.config = config
        self.network = network = load_network(config, weights)
        embedding = network.get_input_embeddings()
        self.embedding: Matrix | Linear = getattr(embedding, "table", embedding.weight)
        self.device = weights.device
        self._prefix: str = network.base_model_prefix
        self._decoder = getattr(network, self._prefix)
        self._rates: dict[int, Tensor] = {}
        self._decoded = _Decoded(self._decoder)
        blocks = blocks_of(self._decoder, config.num_layers)
        for i, block in enumerate(blocks):
            block.register_forward_pre_hook(partial(_enter, i), with_kwargs=True)
        blocks[-1].register_forward_hook(partial(_leave, len(blocks)))
        if self.device.type != "meta":
            check_logits(self, network, str(weights.directory))

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        return parse_config(data, where)

    def forward(
        self,
        tokens: Tensor,
        kv: PagedKV,
        rows: Rows,
        aux_layers: tuple[int, ...] = (),
        aux_out: Tensor | None = None,
    ) -> Hidden:
        flat = tokens.reshape(1, -1)
        width = self.config.hidden_size
        if aux_out is None:
            aux_shape = (*tokens.shape, len(aux_layers) * width)
            aux_out = torch.empty(aux_shape, dtype=self.config.dtype, device=tokens.device)
        places: defaultdict[int, list[Tensor]] = defaultdict(list)
        if aux_layers:
            for number, place in zip(aux_layers, aux_out.flatten(0, -2).split(width, 1), strict=True):
                places[number].append(place)
        with Calls(rows, kv, places, rows.live, flat.shape[1], rates=self._rates):
            positions = positions_of(rows, flat.shape[1])[None]
            x = self._decoder(input_ids=flat, position_ids=positions, use_cache=False).last_hidden_state[0]
        for place in places[self.config.num_layers + 1]:
            copy_rows_(place, x, rows.live)
        return Hidden(x.view(*tokens.shape, width), aux_out)

    def logits(
        self, hidden: Tensor, out: Tensor | None = None, is_normed: bool = False, live: Tensor | None = None
    ) -> Tensor:
        # The network's own code runs with the hidden states in the decoder's place: it knows scales and soft caps.
        self._decoded.hidden = hidden.reshape(1, -1, hidden.shape[-1])
        modules = self.network._modules
        modules[self._prefix] = self._decoded
        try:
            with Calls(live=live, count=self._decoded.hidden.shape[1]):
                ids = torch.zeros(self._decoded.hidden.shape[:2], dtype=torch.int64, device=hidden.device)
                logits = self.network(input_ids=ids, use_cache=False).logits
        finally:
            modules[self._prefix] = self._decoder
            self._decoded.hidden = None
        if out is None:
            out = logits.view(*hidden.shape[:-1], -1)
        else:
            copy_rows_(out.view(-1, out.shape[-1]), logits[0], live)
        mark_top_logits(out)
        return out


class _Decoded(nn.Module):
    """Stands in the place of a network's decoder and returns given hidden states. Has the decoder's attributes."""

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        self.hidden: Tensor | None = None
        self._replaced = [replaced]  # in a list, so that it does not become a submodule

    @property
    def decoder(self) -> nn.Module:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replaced[0], name)

    def forward(self, *args: object, **kwargs: object) -> Any:
        return _Output(last_hidden_state=self.hidden)


class _Output(BaseModelOutputWithPast):  # type: ignore[misc]
    """A decoder's output of which only the hidden state is there. Networks pass other fields on."""

    def __getattr__(self, name: str) -> None:
        return None


def blocks_of(decoder: nn.Module, count: int) -> nn.ModuleList:
    """The decoder layers of a network: its first list of `count` modules, or its first list. Layers of LongCat-Flash
    count twice in its config."""
    lists = [module for module in decoder.modules() if isinstance(module, nn.ModuleList)]
    return next((layers for layers in lists if len(layers) == count), lists[0])


def _enter(number: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _take(number, args[0] if args else kwargs["hidden_states"])


def _leave(number: int, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    _take(number, output[0] if isinstance(output, tuple) else output)


def _take(number: int, x: Tensor) -> None:
    """Copy the input of decoder layer `number` to where it is wanted."""
    calls = current()
    if calls is None:
        return
    if x.dim() > 3:  # Gemma 3n has several streams of hidden states, and its layers attend with the first
        x = x[0]
    rows = x.reshape(-1, x.shape[-1])
    mark_output(f"hidden_states.{number}", rows)
    for place in calls.places.get(number, ()):
        copy_rows_(place, rows, calls.live)
