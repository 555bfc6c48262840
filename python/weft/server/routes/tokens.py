"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weft.errors import WeftError
from weft.server.errors import api_error
from weft.server.protocol.tokens import DetokenizeBody, TokenizeBody
from weft.server.reading.conversation import rendered
from weft.server.routes.bodies import beside, json_body, state_of
from weft.server.served import ServedModel
from weft.server.state import ServerState
from weft.text import decode

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """The tokens of a text or a conversation."""
    data, size = await json_body(request)
    state = state_of(request)
    return await beside(state, size, lambda: JSONResponse(_tokenized(state, TokenizeBody.read(data))))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    data, size = await json_body(request)
    state = state_of(request)
    return await beside(state, size, lambda: JSONResponse(_detokenized(state, DetokenizeBody.read(data))))


def _tokenized(state: ServerState, body: TokenizeBody) -> dict[str, Any]:
    body.check_together()
    served = state.model(body.model)
    tokenizer = served.text.tokenizer_for("prompt")
    if body.messages is not None:
        prompt = rendered(
            served.text,
            body.messages,
            {
                "tools": body.tools,
                "chat_template_kwargs": body.chat_template_kwargs,
                "add_generation_prompt": body.add_generation_prompt and not body.continue_final_message,
                "continue_final_message": body.continue_final_message,
            },
        )
        _check(served, prompt)
        tokens = list(tokenizer.encode(prompt, add_special_tokens=False))
    else:
        _check(served, body.prompt or "")
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
    return {"prompt": decode(served.text.tokenizer_for("tokens"), body.tokens)}


def _check(served: ServedModel, text: str) -> None:
    """Raise `ApiError` for a text that no prompt could be: reading it takes a time that grows with its length."""
    try:
        served.text.check_text(text)
    except WeftError as error:
        raise api_error(error) from error
