"""The body of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from weft.server.errors import ApiError
from weft.server.protocol import other_names
from weft.server.protocol.generation import SamplingFields

MAX_PROMPTS = 1024


def _prompt(value: Any) -> Any:
    """A text, token ids, or a list of either: looked at by hand, since a body has room for millions of entries."""
    if isinstance(value, str) or is_ids(value):
        return value
    if isinstance(value, list) and all(
        isinstance(one, str) or (one and is_ids(one)) for one in value[: MAX_PROMPTS + 1]
    ):
        return value
    raise ValueError("must be a text, a list of token ids, or a list of either")


def is_ids(value: Any) -> bool:
    """Whether it is a list of token ids, one at least."""
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


class CompletionBody(SamplingFields):
    """OpenAI's completion request, with vLLM's fields. `prompt` is one or several, texts or token ids.

    With weft's `token_details`, and `logprobs`, a choice has `token_details`: the tokens of its answer as a chat's
    `logprobs.content` has them."""

    prompt: Annotated[Any, BeforeValidator(_prompt)]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    token_details: bool = False
    add_special_tokens: bool = True

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.COMPLETIONS

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one at least."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not given:
            raise ApiError("prompt is an empty list; give one prompt at least", param="prompt")
        if len(given) > MAX_PROMPTS and not isinstance(given[0], int):
            raise ApiError(f"there are {len(given)} prompts; {MAX_PROMPTS} at most", param="prompt")
        return [given] if isinstance(given[0], int) else list(given)

    def check_together(self) -> None:
        """Raise `ApiError` for fields that contradict each other."""
        super().check_together()
        if self.max_tokens == 0 and not self.echo:
            raise ApiError("max_tokens is 0; without echo an answer has 1 token at least", param="max_tokens")
        if self.token_details and self.logprobs is None:
            raise ApiError("token_details needs logprobs, such as 0", param="token_details")
        if self.echo and self.stream and self.logprobs is not None:
            raise ApiError(
                "log-probabilities of the prompt are not streamed; leave out stream", param="stream"
            )
