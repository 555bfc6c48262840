"""Guides of requests: compiled when asked for, or ahead and kept under a name."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from weft.errors import GuideError, InputError
from weft.executor.types import GuidedDecodingParams, GuideType
from weft.grammar.base import NO_REQUEST, CompiledGuide, Opening
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide


class Guides:
    """What requests name by `GuidedDecodingParams`, compiled by `compiler` (None: none may be guided)."""

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
        future = (
            self._compile_params(guide)
            if isinstance(guide, GuidedDecodingParams)
            else self._compile(Guide.of(guide))
        )
        with self._lock:
            self._kept[name] = future
        return future

    def forget(self, name: str) -> None:
        """Keep it no longer. Requests that have it go on."""
        with self._lock:
            if self._kept.pop(name, None) is None:
                raise InputError(self._unknown(name))

    def future(
        self,
        params: GuidedDecodingParams,
        opening: Opening = NO_REQUEST,
        closes: bool = False,
        client: int | None = None,
    ) -> Future[CompiledGuide]:
        """The compiled guide of a request of `client`, for all of its sequences, or what it waits for. `closes`: its
        answer is to be whole at its limit."""
        compiler, compiled = self._need_compiler(), self._named(params, client)
        return compiler.open(compiler.submit_closing(compiled, client) if closes else compiled, opening)

    def _named(self, params: GuidedDecodingParams, client: int | None) -> Future[CompiledGuide]:
        if params.guide_type is not GuideType.HANDLE:
            return self._compile_params(params, client)
        name = params.guide or ""
        with self._lock:
            if name not in self._kept:
                raise InputError(self._unknown(name))
            return self._kept[name]

    def _compile_params(
        self, params: GuidedDecodingParams, client: int | None = None
    ) -> Future[CompiledGuide]:
        try:
            self._need_compiler().check_size(params.guide or "")
            guide = params.unread_guide()
        except GuideError as error:
            failed: Future[CompiledGuide] = Future()
            failed.set_exception(error)
            return failed
        return self._compile(guide, client)

    def _compile(self, guide: Guide, client: int | None = None) -> Future[CompiledGuide]:
        return self._need_compiler().submit(guide, client)

    def _need_compiler(self) -> GuideCompiler:
        if self._compiler is None:
            raise InputError(self._refusal)
        return self._compiler

    def _unknown(self, name: str) -> str:
        known = ", ".join(sorted(self._kept)) or "none"
        return f"no guide is registered as {name!r} (registered: {known}); call register_guide first"
