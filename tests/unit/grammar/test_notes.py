"""Notes of what is not enforced: bounded whatever a schema is, and no word of it but to whoever brought it."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.grammar.grammars import small_vocabulary
from weft.errors import GuideError
from weft.grammar import Guide, GuideCompiler
from weft.grammar.auto import AutoBackend
from weft.grammar.notes import MAX_NOTE, MAX_NOTES, MAX_PART, MAX_PARTS, Notes, Place, where
from weft.grammar.schema.structure import subschemas

LONGEST = MAX_NOTE + 2 * MAX_PART * MAX_PARTS


def place(*parts: str | int) -> Place | None:
    found: Place | None = None
    for part in parts:
        found = Place(found, part)
    return found


@pytest.mark.parametrize(
    ("parts", "pointer"),
    [
        ((), "#"),
        (("properties", "a", 0), "#/properties/a/0"),
        (("properties", "a/b~c"), "#/properties/a~1b~0c"),
        (("k" * 100,), "#/" + "k" * 32 + "…" + "k" * 15),
        (tuple(range(20)), "#/0/1/2/3/4/5/…/14/15/16/17/18/19"),
    ],
)
def test_places_are_pointers_of_bounded_length(parts: tuple[str | int, ...], pointer: str) -> None:
    assert where(place(*parts)) == pointer


def test_the_first_notes_are_kept_and_the_rest_is_counted() -> None:
    notes = Notes.of((place(i), "x" * 10_000) for i in range(1000))
    assert notes.count == 1000
    assert len(notes.texts()) == MAX_NOTES + 1 and notes.texts()[-1] == f"and {1000 - MAX_NOTES} more"
    assert all(len(line) <= LONGEST for line in notes.texts())
    assert Notes.of([(None, "one")]).texts() == ("#: one",)


def long_key(key: int, nodes: int) -> dict[str, Any]:
    inner = {f"p{i}": {"type": "array", "uniqueItems": True} for i in range(nodes)}
    return {"type": "object", "properties": {"k" * key: {"type": "object", "properties": inner}}}


def test_a_long_key_over_many_subschemas_gives_short_notes(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    text = json.dumps(long_key(30_000, 900))
    backend = AutoBackend(small_vocabulary())
    compiled = backend.compile(Guide.json_schema(text, strict=False))
    with pytest.raises(GuideError) as raised:
        backend.compile(Guide.json_schema(text))
    assert len(compiled.notes) == MAX_NOTES + 1 and sum(map(len, compiled.notes)) < 20_000
    assert len(str(raised.value)) < 40_000 and "uniqueItems is not enforced" in str(raised.value)
    captured = capfd.readouterr()
    assert (captured.out, captured.err, recwarn.list) == ("", "", [])


@pytest.mark.slow
def test_a_long_key_over_many_subschemas_takes_little_memory() -> None:
    """In a process of its own: `tracemalloc.stop` may end one that has native threads."""
    program = """
import json, sys, tracemalloc
from support.grammar.grammars import small_vocabulary
from weft.grammar import Guide
from weft.grammar.auto import AutoBackend
backend = AutoBackend(small_vocabulary())
text = sys.stdin.read()
tracemalloc.start()
backend.compile(Guide.json_schema(text, strict=False))
print(tracemalloc.get_traced_memory()[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(long_key(30_000, 900)),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 < int(done.stdout) < 20 << 20


def test_time_grows_with_the_text() -> None:
    def seconds(depth: int) -> float:
        schema: Any = {"anyOf": [{"not": {}}] * (depth * 10)}
        for _ in range(depth):
            schema = {"items": schema}
        found = []
        for _ in range(3):
            start = time.thread_time()
            for _ in range(3):
                Notes.of((where, "") for where, _ in subschemas(schema))
            found.append(time.thread_time() - start)
        return min(found)

    gc.disable()  # its turns grow with what others left behind
    try:
        assert seconds(1600) < 12 * seconds(400)  # 4 times is linear, 16 times would be square
    finally:
        gc.enable()


def test_what_xgrammar_warns_of_goes_to_nobody_else(capfd: pytest.CaptureFixture[str]) -> None:
    schemas = [
        {"type": "string", "pattern": "^a$b"},
        {"type": "integer", "multipleOf": 3, "minimum": 4},
        {"type": "string", "format": "date", "maxLength": 4},
    ]
    library = AutoBackend(small_vocabulary()).libraries["xgrammar"]
    for schema in schemas:
        assert library.compile(Guide.json_schema(schema, strict=False)).notes
    assert capfd.readouterr() == ("", "")


def test_only_xgrammars_warnings_are_kept_from_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    from weft import _core

    _core.hush_xgrammar()
    library = ctypes.CDLL("libstdc++.so.6")
    write = (
        library._ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc
    )  # operator<<(ostream&, const char*)
    write.argtypes, write.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_void_p
    cerr = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZSt4cerr"))
    for text in (
        b"plain\n",
        b"[12:34:56] /a/b.cc:7: Warning: told\n",
        b"[12:34:56] /a/b.cc:7: Fatal\n",
        b"[\n",
    ):
        write(cerr, text)
    assert capfd.readouterr().err == "plain\n[12:34:56] /a/b.cc:7: Fatal\n[\n"


def test_no_warning_and_no_registry(recwarn: pytest.WarningsRecorder) -> None:
    with GuideCompiler(small_vocabulary()) as compiler:
        for i in range(3):
            schema = {"type": "array", "uniqueItems": True, "maxItems": i + 2}
            assert compiler.compile(Guide.json_schema(schema, strict=False)).notes
            with pytest.raises(GuideError, match="uniqueItems"):
                compiler.compile(Guide.json_schema(schema))
    assert not recwarn.list
