"""The bodies of /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import FailFast

from weft.server.errors import ApiError
from weft.server.protocol import other_names
from weft.server.protocol.body import Body, Few, Object
from weft.server.protocol.template import TemplateFields


class TokenizeBody(TemplateFields):
    """A text, or a conversation under the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Few[Object] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.TOKENIZE

    def check_together(self) -> None:
        """Raise `ApiError` unless it is one of the two, and for fields that contradict each other."""
        if (self.prompt is None) == (self.messages is None):
            raise ApiError("give prompt or messages", param="prompt")
        self.check_goes_on()


class DetokenizeBody(Body):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[int], FailFast()]

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.DETOKENIZE
