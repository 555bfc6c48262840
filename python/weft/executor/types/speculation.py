"""How an executor drafts, and the drafts that a request brings along."""

from __future__ import annotations

from typing import Annotated, Literal

from weft.config import Speculation
from weft.executor.types.fields import Tokens, Wanted, refused
from weft.executor.types.settings import Settings

_HINT = (
    "a Speculation, as in SpeculativeConfig(weft.Speculation.eagle3(num_draft_tokens=3)); for no drafts leave out "
    "spec_dec_config"
)


class SpeculativeConfig(Settings):
    """How the executor drafts: `SpeculativeConfig(weft.Speculation.eagle3())`, or any other `Speculation`."""

    speculation: Annotated[Speculation, Wanted(_HINT)]
    fast_logits: Literal[False] = refused(False)


class ExternalDraftTokensConfig(Settings):
    """What the answer is expected to be, from its first token on. As long as the answer is that, it is drafted; where
    it differs, nothing is lost but time. Needs an executor with `Speculation.given()`.
    """

    tokens: Tokens
    logits: None = refused()
    acceptance_threshold: None = refused()
    fast_logits: None = refused()
