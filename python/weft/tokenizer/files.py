"""Loads the tokenizer of a Hugging Face directory as data: without code from the directory, and without network.

The tokenizer.json is used as it is. Without one, weft converts SentencePiece models, tiktoken's files and Mistral's
tekken.json, and transformers converts other files. Other files add names of special tokens, missing tokens and chat
templates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from weft.core.files import read_json
from weft.errors import TokenizerError
from weft.tokenizer import byte_ranks, sentence_pieces
from weft.tokenizer.tokenizer import ChatTemplate, Tokenizer

_log = logging.getLogger(__name__)

TEKKEN = "tekken.json"
MODELS = ("tokenizer.model", "tiktoken.model", "*.tiktoken", "*.model.v[0-9]*")
"""Names of the files of SentencePiece and tiktoken."""
OTHERS = ("vocab.json", "spiece.model")
"""Files that transformers converts."""
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA = ("extra_special_tokens", "additional_special_tokens")


def has_tokenizer(path: Path) -> bool:
    """Whether a directory contains a tokenizer."""
    names = ("tokenizer.json", TEKKEN, *OTHERS)
    return any((path / name).is_file() for name in names) or _model_file(path) is not None


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the fast tokenizer of a Hugging Face directory. Raises `TokenizerError`.

    Code in the directory (`auto_map`) is never run, and no prompt asks for permission to run it.
    """
    path = Path(path)
    if not path.is_dir():
        raise TokenizerError(f"{path}: there is no such directory")
    if not has_tokenizer(path):
        raise TokenizerError(
            f"{path}: no tokenizer.json (nor tekken.json, tokenizer.model, *.tiktoken); copy the tokenizer there"
        )
    settings = _settings(path)
    is_fast = (path / "tokenizer.json").is_file()
    if is_fast:
        backend, defaults = _backend(path / "tokenizer.json")
        if (path / TEKKEN).is_file():
            byte_ranks.split_as_tekken(backend, path / TEKKEN)
    elif (path / TEKKEN).is_file() or _model_file(path) is not None:
        backend, defaults = _converted(path, settings)
    else:
        from weft.tokenizer.converted import convert

        return convert(path)
    settings = {**defaults, **settings}
    named = {
        name: _text(token) for name, token in settings.items() if name.endswith("_token") and _text(token)
    }
    listed = next((settings[name] for name in EXTRA if settings.get(name)), ())
    if isinstance(listed, dict):
        named |= {name: _text(token) for name, token in listed.items()}
        listed = ()
    extra = [_text(token) for token in listed]
    ordered = {name: named[name] for name in (*NAMED, *named) if name in named}
    backend.add_tokens(list(_lacking(backend, settings, [*ordered.values(), *extra])))
    if not is_fast:
        _check_numbers(path, backend, settings)
        _surround(backend, settings, ordered)
    reads_special = not settings.get("split_special_tokens")
    return Tokenizer(backend, ordered, extra, _templates(path, settings), reads_special_tokens=reads_special)


def _model_file(path: Path) -> Path | None:
    """The file of SentencePiece or tiktoken in a directory; None if there is none."""
    found = (file for name in MODELS for file in sorted(path.glob(name)) if file.is_file())
    return next(found, None)


def _converted(path: Path, settings: dict[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer of a directory with a tekken.json, or with a file of SentencePiece or tiktoken, and settings as in
    tokenizer_config.json, which has precedence."""
    model = _model_file(path)
    if (path / TEKKEN).is_file() or model is None:
        backend, defaults = byte_ranks.convert_tekken(path / TEKKEN)
        return backend, defaults | _of_mistral(path / TEKKEN)
    if byte_ranks.is_ranks(model):
        model_type = _object(path / "config.json").get("model_type") or ""
        return byte_ranks.convert_tiktoken(model, settings, model_type)
    backend, defaults = sentence_pieces.convert(model, settings)
    if not settings:  # Mistral's and Llama's programs put the begin token before a text
        defaults["add_bos_token"] = True
    return backend, defaults | (_of_mistral(model) if ".model.v" in model.name else {})


def _backend(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer of a tokenizer.json, without truncation and padding, and the padding token that it names (as a
    setting, or {})."""
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more specific
        raise TokenizerError(f"{path}: can't be read as a tokenizer: {error}") from error
    filler = {"pad_token": backend.padding["pad_token"]} if backend.padding else {}
    backend.no_truncation()
    backend.no_padding()
    return backend, filler


def _settings(path: Path) -> dict[str, Any]:
    """The contents of tokenizer_config.json, merged with special_tokens_map.json and added_tokens.json, which older
    directories have."""
    settings = _object(path / "tokenizer_config.json")
    if "added_tokens_decoder" in settings:
        return settings
    older = _object(path / "special_tokens_map.json")
    if not (path / "tokenizer.json").is_file():
        added = _object(path / "added_tokens.json")
        older |= (
            {"added_tokens_decoder": {str(i): {"content": name} for name, i in added.items()}}
            if added
            else {}
        )
    return {**settings, **older}


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_json(path)
    except ValueError as error:
        raise TokenizerError(str(error)) from error


def _lacking(
    backend: tokenizers.Tokenizer, settings: dict[str, Any], special: list[str]
) -> Iterator[AddedToken]:
    """Tokens to add to the tokenizer of a tokenizer.json.

    First come the tokens of `added_tokens_decoder` that the tokenizer lacks or describes differently, in the order of
    their ids. Then come special tokens that neither file has."""
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    names = {token.content for token in backend.get_added_tokens_decoder().values()}
    numbered = settings.get("added_tokens_decoder") or {}
    for _, given in sorted(numbered.items(), key=lambda item: int(item[0])):
        token = AddedToken(**given)
        if repr(token) not in known:
            token.special = token.special or token.content in special
            names.add(token.content)
            yield token
    for name in dict.fromkeys(special):
        if name not in names:
            yield AddedToken(name, special=True)


def _surround(backend: tokenizers.Tokenizer, settings: dict[str, Any], named: dict[str, str]) -> None:
    """Let a converted tokenizer put special tokens around texts, if the settings say which. Otherwise its own rule
    holds, as always with a tokenizer.json."""
    places = ("add_bos_token", "add_eos_token")
    if not any(name in settings for name in places):
        return
    before, after = (
        [named[token]] if settings.get(f"add_{token}") and token in named else []
        for token in ("bos_token", "eos_token")
    )
    ids = [(token, backend.token_to_id(token)) for token in {*before, *after}]
    backend.post_processor = processors.TemplateProcessing(single=[*before, "$A", *after], special_tokens=ids)


def _of_mistral(file: Path) -> dict[str, Any]:
    """Settings for a tokenizer of Mistral's programs: a text never has special tokens, and the package mistral-common
    makes the chat template."""
    settings: dict[str, Any] = {"split_special_tokens": True}
    try:
        from mistral_common.integrations.chat_templates.chat_templates import (
            convert_tokenizer_to_chat_template,
        )

        settings["chat_template"] = convert_tokenizer_to_chat_template(file)
    except ModuleNotFoundError:
        _log.warning("%s has no chat template; with pip install mistral-common, weft makes one", file)
    except Exception as error:  # a version that the installed package does not know
        _log.warning("%s: mistral-common makes no chat template: %s", file, error)
    return settings


def _check_numbers(path: Path, backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
    """Raise `TokenizerError` if an added token did not get its id."""
    for number, given in (settings.get("added_tokens_decoder") or {}).items():
        name = _text(given)
        found = backend.token_to_id(name)
        if found != int(number):
            raise TokenizerError(
                f"{path}: {name!r} is token {number} in tokenizer_config.json (or added_tokens.json), but would be "
                f"{found}; save the tokenizer with a tokenizer.json (transformers' AutoTokenizer and save_pretrained)"
            )


def _text(token: Any) -> str:
    """The text of a token. Files write a token as a string, or as an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _templates(path: Path, settings: dict[str, Any]) -> ChatTemplate | None:
    """The chat templates. Template files take precedence over tokenizer_config.json."""
    found = {
        file.stem: file.read_text(encoding="utf-8") for file in path.glob("additional_chat_templates/*.jinja")
    }
    if (path / "chat_template.jinja").is_file():
        found = {"default": (path / "chat_template.jinja").read_text(encoding="utf-8"), **found}
    if found:
        return found["default"] if list(found) == ["default"] else found
    given = settings.get("chat_template") or _object(path / "chat_template.json").get("chat_template")
    if isinstance(given, list):
        return {entry["name"]: entry["template"] for entry in given}
    return given if isinstance(given, str | dict) else None
