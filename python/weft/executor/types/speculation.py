"""How an executor drafts, and the drafts that a request brings along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.config import Speculation
from weft.errors import InputError
from weft.executor.types.checked import Checked
from weft.executor.types.fields import parse_tokens, refused, required

_EXACT = "drafts are verified exactly, by the token that the target samples; give the tokens alone"


def _parse_speculation(name: str, value: Any) -> Speculation:
    if not isinstance(value, Speculation):
        raise InputError(
            f"{name} is {value!r}; it must be a Speculation, as in "
            "SpeculativeConfig(weft.Speculation.eagle3(num_draft_tokens=3)); for no drafts leave out spec_dec_config"
        )
    return value


@dataclass(eq=False)
class SpeculativeConfig(Checked):
    """How the executor drafts: `SpeculativeConfig(weft.Speculation.eagle3())`, or any other `Speculation`."""

    speculation: Speculation = field(metadata=required(_parse_speculation))
    fast_logits: bool = refused("drafter and target run in one engine, which sends no logits", default=False)


@dataclass(eq=False)
class ExternalDraftTokensConfig(Checked):
    """What the answer is expected to be, from its first token on. As long as the answer is that, it is drafted; where
    it differs, nothing is lost but time. Needs an executor with `Speculation.given()`.
    """

    tokens: Sequence[int] = field(metadata=required(parse_tokens))
    logits: None = refused(_EXACT)
    acceptance_threshold: float | None = refused(_EXACT)
    fast_logits: bool | None = refused(_EXACT)
