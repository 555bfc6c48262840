"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weft.errors import WeftError
from weft.server.errors import api_error
from weft.server.protocol.tokens import DetokenizeBody, TokenizeBody
from weft.server.reading.conversation import prompt_of
from weft.server.reading.tools import functions_of
from weft.server.routes.bodies import beside, json_body, state_of
from weft.server.served import ServedModel
from weft.server.state import ServerState

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """The tokens of a text or a conversation."""
    data, size = await json_body(request)
    state = state_of(request)
    return await beside(request, size, lambda: JSONResponse(_tokenized(state, TokenizeBody.read(data))))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of tokens, with the special ones by their names."""
    data, size = await json_body(request)
    state = state_of(request)
    return await beside(request, size, lambda: JSONResponse(_detokenized(state, DetokenizeBody.read(data))))


def _tokenized(state: ServerState, body: TokenizeBody) -> dict[str, Any]:
    body.check_together()
    served = state.model(body.model)
    tokenizer = served.text.tokenizer_for("prompt")
    if body.messages is not None:
        functions_of(body.tools or ())
        prompt = prompt_of(served.text, body.messages, body)
        _check(served, prompt, "messages")
        tokens = list(tokenizer.encode(prompt, add_special_tokens=False))
    else:
        _check(served, body.prompt or "", "prompt")
        tokens = list(tokenizer.encode(body.prompt or "", add_special_tokens=body.add_special_tokens))
    found: dict[str, Any] = {"count": len(tokens), "max_model_len": served.max_model_len, "tokens": tokens}
    found["token_strs"] = [served.tokens.text(token) for token in tokens] if body.return_token_strs else None
    return found


def _detokenized(state: ServerState, body: DetokenizeBody) -> dict[str, Any]:
    served = state.model(body.model)
    try:
        served.text.check("tokens", body.tokens)
    except WeftError as error:
        raise api_error(error, ["tokens"]) from error
    return {"prompt": served.text.tokenizer_for("tokens").decode(body.tokens)}


def _check(served: ServedModel, text: str, field: str) -> None:
    """Raise `ApiError` for a text that no prompt could be: reading it takes a time that grows with its length."""
    try:
        served.text.check_text(text)
    except WeftError as error:
        raise api_error(error, [field]) from error
