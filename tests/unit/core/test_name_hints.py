"""Hints for the names of other libraries: on import, and for attributes of an answer and of an LLM."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

import weft
from weft import LLM, Output
from weft.core.names import IMPORT_HINTS, LLM_HINTS, OUTPUT_HINTS, with_attribute_hints


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("StructuredOutputsParams", r"Guide\.json_schema"),
        ("RequestOutput", "it is called Output"),
        ("BeamSearchParams", "beam_width=4"),
        ("AsyncLLM", r"weft\.executor\.Executor"),
        ("Llama", "it is called LLM; .* weft convert"),
        ("GrammarMatcher", r"weft\.guided"),
    ],
)
def test_an_import_of_another_librarys_name_says_what_to_use(name: str, hint: str) -> None:
    with pytest.raises(ImportError, match=f"^weft has no {name}; .*{hint}"):
        exec(f"from weft import {name}")
    with pytest.raises(ImportError, match=hint):
        getattr(weft, name)


def test_a_traceback_ends_with_the_hint() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from weft import LLMEngine"], capture_output=True, text=True, timeout=60
    )
    assert run.stderr.splitlines()[-1].startswith("ImportError: weft has no LLMEngine; use weft.executor")


def test_other_names_have_pythons_errors() -> None:
    with pytest.raises(ImportError, match=r"^cannot import name 'Nothing' from 'weft'"):
        exec("from weft import Nothing")
    assert not hasattr(weft, "Nothing") and not hasattr(weft, "nothing")


def test_no_hint_hides_a_name() -> None:
    assert not set(IMPORT_HINTS) & set(weft.__all__)
    assert not set(OUTPUT_HINTS) & set(dir(Output))
    assert not set(LLM_HINTS) & set(dir(LLM))


def test_an_attribute_of_another_library_says_what_to_use() -> None:
    output = Output([1, 2], [3], text="x")
    with pytest.raises(AttributeError, match=r"no attribute 'stop_reason'; it is called stopped_by$"):
        getattr(output, "stop_reason")  # noqa: B009
    with pytest.raises(AttributeError, match=r"^'Output' object has no attribute 'txt'$"):
        getattr(output, "txt")  # noqa: B009
    assert copy.deepcopy(output) == pickle.loads(pickle.dumps(output)) == output
    with pytest.raises(AttributeError, match=r"^'LLM' object has no attribute 'beam_search'; .*beam_width=4"):
        getattr(LLM.__new__(LLM), "beam_search")  # noqa: B009


def test_an_attribute_error_in_a_property_stays_as_it_is() -> None:
    @with_attribute_hints({"other": "it is called broken"})
    class Holder:
        @property
        def broken(self) -> int:
            return int(None.missing)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = Holder().broken
    with pytest.raises(AttributeError, match="'Holder' object has no attribute 'other'; it is called broken"):
        getattr(Holder(), "other")  # noqa: B009
