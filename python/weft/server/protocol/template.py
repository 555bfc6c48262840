"""The fields of bodies with a conversation that are for the chat template."""

from __future__ import annotations

from typing import Any, Literal

from weft.server.errors import ApiError
from weft.server.protocol.body import Body, Few, Object

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class TemplateFields(Body):
    """What the template is told beside the messages."""

    tools: Few[Object] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Few[Object] | None = None

    @property
    def template_arguments(self) -> dict[str, Any]:
        """The template's variables."""
        arguments = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            arguments.setdefault("reasoning_effort", self.reasoning_effort)
            if self.reasoning_effort == "none":
                arguments.setdefault("enable_thinking", False)
        if self.documents is not None:
            arguments.setdefault("documents", self.documents)
        return arguments

    def check_goes_on(self) -> None:
        """Settle whether the prompt opens an answer or goes on with the last message. Raises `ApiError` for both."""
        if self.continue_final_message and "add_generation_prompt" not in self.model_fields_set:
            self.add_generation_prompt = False
        if self.continue_final_message and self.add_generation_prompt:
            raise ApiError(
                "continue_final_message goes on with the last message; leave out add_generation_prompt",
                param="add_generation_prompt",
            )
