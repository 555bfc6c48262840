"""The routes /tokenize and /detokenize, and their bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request
from pydantic import FailFast
from starlette.responses import JSONResponse, Response

from weft.errors import WeftError
from weft.server.errors import ApiError, api_error
from weft.server.models import ServedModel
from weft.server.protocol import other_names
from weft.server.protocol.body import Body, Few, Object
from weft.server.protocol.generation import TemplateFields
from weft.server.reading.chat import functions_of, prompt_of
from weft.server.state import ServerState, json_body, off_loop, state_of

router = APIRouter()


class TokenizeBody(TemplateFields):
    """The body of /tokenize: a string, or a conversation that the chat template renders."""

    model: str | None = None
    prompt: str | None = None
    messages: Few[Object] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.TOKENIZE

    def check_together(self) -> None:
        """Raise `ApiError` if fields contradict each other, or unless exactly one of `prompt` and `messages` is set."""
        if (self.prompt is None) == (self.messages is None):
            raise ApiError("give prompt or messages", param="prompt")
        self.settle_generation_prompt()


class DetokenizeBody(Body):
    """The body of /detokenize: token ids."""

    model: str | None = None
    tokens: Annotated[list[int], FailFast()]

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.DETOKENIZE


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Tokenize a string or a conversation."""
    data, size = await json_body(request)
    state = state_of(request)
    return await off_loop(request, size, lambda: JSONResponse(_tokenized(state, TokenizeBody.read(data))))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """Convert token ids to text. Special tokens appear as their names."""
    data, size = await json_body(request)
    state = state_of(request)
    return await off_loop(request, size, lambda: JSONResponse(_detokenized(state, DetokenizeBody.read(data))))


def _tokenized(state: ServerState, body: TokenizeBody) -> dict[str, Any]:
    body.check_together()
    served = state.model(body.model)
    tokenizer = served.text.tokenizer_for("prompt")
    if body.messages is not None:
        functions_of(body.tools or ())
        prompt = prompt_of(served.text, body.messages, body)
        _check(served, prompt, "messages")
        tokens = tokenizer.encode_chat(prompt)
    else:
        _check(served, body.prompt or "", "prompt")
        tokens = list(tokenizer.encode(body.prompt or "", add_special_tokens=body.add_special_tokens))
    texts = [served.tokens.text(token) for token in tokens] if body.return_token_strs else None
    return {
        "count": len(tokens),
        "max_model_len": served.max_model_len,
        "tokens": tokens,
        "token_strs": texts,
    }


def _detokenized(state: ServerState, body: DetokenizeBody) -> dict[str, Any]:
    served = state.model(body.model)
    try:
        served.text.check("tokens", body.tokens)
    except WeftError as error:
        raise api_error(error, ["tokens"]) from error
    return {"prompt": served.text.tokenizer_for("tokens").decode(body.tokens)}


def _check(served: ServedModel, text: str, field: str) -> None:
    """Raise `ApiError` for a text that is too long for any prompt, before spending time on tokenizing it."""
    try:
        served.text.check_text(text)
    except WeftError as error:
        raise api_error(error, [field]) from error
