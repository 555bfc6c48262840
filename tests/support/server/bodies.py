"""The body types of the routes, with the smallest valid body of each."""

from __future__ import annotations

from typing import Any

from support.server.asking import MESSAGES
from weft.server.protocol.body import Body
from weft.server.protocol.generation import ChatBody, CompletionBody
from weft.server.protocol.messages import CountTokensBody, MessagesBody
from weft.server.protocol.responses import ResponsesBody
from weft.server.routes.controllers import TagsBody
from weft.server.routes.tokens import DetokenizeBody, TokenizeBody

ASKED: dict[type[Body], dict[str, Any]] = {
    ChatBody: {"messages": MESSAGES},
    CompletionBody: {"prompt": "x"},
    ResponsesBody: {"input": "x"},
    MessagesBody: {"messages": MESSAGES, "max_tokens": 5},
    CountTokensBody: {"messages": MESSAGES},
    TokenizeBody: {"prompt": "x"},
    DetokenizeBody: {"tokens": [1]},
    TagsBody: {"module_id": "x", "tags": []},
}
