"""A fast tokenizer with its special tokens and chat template. Its methods are named as in transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, overload

import tokenizers

from weft.errors import InputError
from weft.tokenizer.formats import marker_tokens

ChatTemplate = str | dict[str, str]
"""A Jinja template, or several by name: "default", and "tool_use" for conversations with tools."""


class Tokenizer:
    """Converts text to token ids and back with a `tokenizers.Tokenizer`, which is `backend_tokenizer`.

    `special_tokens_map` names special tokens: `{"eos_token": "</s>", ...}`. They are also attributes (`eos_token`,
    `bos_token`, `unk_token`, `pad_token`, `sep_token`, `cls_token`, `mask_token`; None if absent), as are their ids
    (`eos_token_id`, ...). `extra_special_tokens` have no name. `chat_template` may be assigned.

    With `reads_special_tokens`, as with most models, a text that has the name of a special token is encoded as that
    token. Without, as in Mistral's own programs, only a chat template writes special tokens (`encode_chat`).

    `marker_ids` are the tokens that mark reasoning and calls (`weft.tokenizer.formats`). Answers have their names as
    text, even if they are special tokens.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens_map: Mapping[str, str] | None = None,
        extra_special_tokens: Sequence[str] = (),
        chat_template: ChatTemplate | None = None,
        *,
        reads_special_tokens: bool = True,
    ) -> None:
        self.backend_tokenizer = backend
        self.reads_special_tokens = reads_special_tokens
        backend.encode_special_tokens = not reads_special_tokens
        self.special_tokens_map = dict(special_tokens_map or {})
        self.extra_special_tokens = tuple(extra_special_tokens)
        self.chat_template = chat_template
        named = map(backend.token_to_id, marker_tokens(chat_template))
        self.marker_ids = frozenset(token for token in named if token is not None)

    def __repr__(self) -> str:
        return f"Tokenizer({len(self)} tokens, end {self.eos_token!r}, chat template: {bool(self.chat_template)})"

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_token") and not name.startswith("_"):
            return self.special_tokens_map.get(name)
        if name.endswith("_token_id") and not name.startswith("_"):
            token = self.special_tokens_map.get(name.removesuffix("_id"))
            return None if token is None else self.backend_tokenizer.token_to_id(token)
        raise AttributeError(f"a Tokenizer has no {name!r}; backend_tokenizer is what it is made of")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. `add_special_tokens` adds the special tokens that the tokenizer puts around
        texts."""
        ids: list[int] = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    @cached_property
    def hidden_ids(self) -> frozenset[int]:
        """The ids of tokens that an answer's text leaves out: the special tokens but `marker_ids`."""
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special) - self.marker_ids

    def encode_chat(self, text: str) -> list[int]:
        """The token ids of a rendered conversation (`apply_chat_template` with `tokenize=False`)."""
        if self.reads_special_tokens:
            return self.encode(text, add_special_tokens=False)
        # A `ChatText` has the places of the special tokens that the template wrote.
        everywhere = [found.span() for found in self._special.finditer(text)]
        places = getattr(text, "special", everywhere)
        ids: list[int] = []
        at = 0
        for begin, end in places:
            ids += self.encode(text[at:begin], add_special_tokens=False) if at < begin else []
            ids.append(self._special_numbers[text[begin:end]])
            at = end
        return ids + (self.encode(text[at:], add_special_tokens=False) if at < len(text) else [])

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """Matches the names of special tokens; of several, the longest."""
        names = sorted(self._special_numbers, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")

    @cached_property
    def _special_numbers(self) -> dict[str, int]:
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return {token.content: i for i, token in added.items() if token.special}

    def decode(self, tokens: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of one or several token ids, without any clean-up of spaces."""
        ids = [tokens] if isinstance(tokens, int) else list(tokens)
        text: str = self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The id of a token by its name; None if there is no such token."""
        found: int | None = self.backend_tokenizer.token_to_id(token)
        return found

    def convert_ids_to_tokens(self, token: int) -> str | None:
        """The name of a token by its id; None if there is no such id."""
        found: str | None = self.backend_tokenizer.id_to_token(token)
        return found

    @property
    def all_special_tokens(self) -> list[str]:
        """The named special tokens, then those without a name."""
        return list(dict.fromkeys([*self.special_tokens_map.values(), *self.extra_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of `all_special_tokens`."""
        found = map(self.convert_tokens_to_ids, self.all_special_tokens)
        return [token for token in found if token is not None]

    @overload
    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, tokenize: Literal[False], **options: Any
    ) -> str: ...

    @overload
    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, tokenize: Literal[True] = ..., **options: Any
    ) -> list[int]: ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **arguments: Any,
    ) -> str | list[int]:
        """Render a conversation with the chat template or `chat_template`. Returns token ids, or text with
        `tokenize=False`.

        `arguments` are variables of the template, such as `documents`. `add_generation_prompt` appends the beginning of
        an answer. With `continue_final_message` the text ends inside the last message. Raises `InputError` if the
        template refuses the conversation.
        """
        from weft.tokenizer.chat_template import render  # jinja2 takes a while to import

        text = render(
            self.template(chat_template, has_tools=tools is not None),
            messages,
            {**self.special_tokens_map, **arguments},
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            special=None if self.reads_special_tokens else self._special,
        )
        return self.encode_chat(text) if tokenize else text

    def template(self, given: str | None = None, *, has_tools: bool = False) -> str:
        """The template for a conversation. `given` is a template, or the name of one of the tokenizer's templates.
        Default: the tokenizer's own. Raises `InputError` if there is none."""
        own = self.chat_template
        if not isinstance(own, dict):
            chosen = given or own
        elif given is not None:
            chosen = own.get(given, given)
        else:
            chosen = own.get("tool_use" if has_tools and "tool_use" in own else "default")
        if not chosen:
            names = f"none named default, but {', '.join(own)}" if isinstance(own, dict) else "none"
            raise InputError(f"the tokenizer's chat templates are: {names}; give chat_template, or a text")
        return chosen
