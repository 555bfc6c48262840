"""The bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import FailFast

from weft.server.errors import ApiError
from weft.server.protocol.base import Body, Few, Object


class TokenizeBody(Body):
    """A text, or a conversation under the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Few[Object] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Few[Object] | None = None
    return_token_strs: bool = False

    def check_together(self) -> None:
        """Raise `ApiError` unless it is one of the two."""
        if (self.prompt is None) == (self.messages is None):
            raise ApiError("give prompt or messages", param="prompt")


class DetokenizeBody(Body):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[int], FailFast()]
