"""Guides of requests: compiled when asked for, or ahead and kept under a name."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from weft.errors import GuideError, InputError
from weft.executor.types import GuidedDecodingParams, GuideType
from weft.grammar.base import CompiledGuide
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide


class Guides:
    """What requests name by `GuidedDecodingParams`; `compiler` is None where none may be guided, for `refusal`."""

    def __init__(self, compiler: GuideCompiler | None, refusal: str = "") -> None:
        self._compiler = compiler
        self._refusal = refusal
        self._lock = threading.Lock()
        self._kept: dict[str, Future[CompiledGuide]] = {}

    def register(self, name: str, guide: Guide | GuidedDecodingParams) -> Future[CompiledGuide]:
        """Compile a guide and keep it as `name`, in the place of one that has the name. What is wrong with its text is
        the future's `GuideError`."""
        if not isinstance(name, str) or not name:
            raise InputError(f"the guide's name is {name!r}; it must be a text that is not empty")
        compiler = self._need_compiler()
        made = self._read(guide) if isinstance(guide, GuidedDecodingParams) else Guide.of(guide)
        future = compiler.submit(made) if isinstance(made, Guide) else made
        with self._lock:
            self._kept[name] = future
        return future

    def forget(self, name: str) -> None:
        """Keep it no longer. Requests that have it go on."""
        with self._lock:
            if self._kept.pop(name, None) is None:
                raise InputError(self._unknown(name))

    def of(self, params: GuidedDecodingParams) -> Guide | Future[CompiledGuide]:
        """The guide of a request, or what it waits for. Raises `InputError` where no request may be guided,
        and for a name that no guide has."""
        self._need_compiler()
        if params.guide_type is not GuideType.HANDLE:
            return self._read(params)
        name = params.guide or ""
        with self._lock:
            if name not in self._kept:
                raise InputError(self._unknown(name))
            return self._kept[name]

    def _read(self, params: GuidedDecodingParams) -> Guide | Future[CompiledGuide]:
        """The guide, or the failure to read its text."""
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
