"""Guides of requests: compiled with the request, or registered under a name."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from weft.errors import GuideError, InputError
from weft.executor.types import GuidedDecodingParams, GuideType
from weft.grammar.base import CompiledGuide
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide


class Guides:
    """Converts `GuidedDecodingParams` to guides, and keeps the registered ones. Without a `compiler`, every guide is
    refused with the message `refusal`."""

    def __init__(self, compiler: GuideCompiler | None, refusal: str = "") -> None:
        self._compiler = compiler
        self._refusal = refusal
        self._lock = threading.Lock()
        self._kept: dict[str, Future[CompiledGuide]] = {}

    def register(self, name: str, guide: Any) -> Future[CompiledGuide]:
        """Compile a guide and keep it as `name`, replacing an earlier one. If its text is invalid, the future fails
        with a `GuideError`. Raises `InputError` for an invalid name, for a handle, and if guides are refused."""
        if not isinstance(name, str) or not name:
            raise InputError(f"the guide's name is {name!r}; it must be a text that is not empty")
        compiler = self._need_compiler()
        made = self._read(guide) if isinstance(guide, GuidedDecodingParams) else Guide.of(guide)
        future = compiler.submit(made) if isinstance(made, Guide) else made
        with self._lock:
            self._kept[name] = future
        return future

    def forget(self, name: str) -> None:
        """Forget a guide. Requests that use it continue. Raises `InputError` for an unknown name."""
        with self._lock:
            if self._kept.pop(name, None) is None:
                raise InputError(self._unknown(name))

    def of(self, params: GuidedDecodingParams) -> Guide | Future[CompiledGuide]:
        """The guide of a request or, for a registered name, the future of its compilation. Raises `InputError` if
        guides are refused, and for an unknown name."""
        self._need_compiler()
        if params.guide_type is not GuideType.HANDLE:
            return self._read(params)
        name = params.guide or ""
        with self._lock:
            if name not in self._kept:
                raise InputError(self._unknown(name))
            return self._kept[name]

    def _read(self, params: GuidedDecodingParams) -> Guide | Future[CompiledGuide]:
        """The guide, or a failed future if its text is too long or can't be parsed."""
        try:
            self._need_compiler().check_size(params.guide or "")
            return params.unread_guide()
        except GuideError as error:
            failed: Future[CompiledGuide] = Future()
            failed.set_exception(error)
            return failed

    def _need_compiler(self) -> GuideCompiler:
        if self._compiler is None:
            raise InputError(self._refusal)
        return self._compiler

    def _unknown(self, name: str) -> str:
        known = ", ".join(sorted(self._kept)) or "none"
        return f"no guide is registered as {name!r} (registered: {known}); call register_guide first"
