"""Hints for the names of other libraries: on import, and for attributes of an answer and of an LLM."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from inspect import signature

import pytest

import weft
from weft import LLM, Output, SamplingParams
from weft.client.options import RequestOptions
from weft.core.names import (
    COMPILER_HINTS,
    IMPORT_HINTS,
    LLM_HINTS,
    LOGPROB_HINTS,
    MODEL_HINTS,
    OPTION_HINTS,
    OUTPUT_HINTS,
    SAMPLING_HINTS,
    with_attribute_hints,
)
from weft.core.output import TokenLogprob
from weft.grammar import GuideCompiler


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("StructuredOutputsParams", r"Guide\.json_schema"),
        ("RequestOutput", "it is called Output"),
        ("BeamSearchParams", "beam_width=4"),
        ("AsyncLLM", r"weft\.executor\.Executor"),
        ("Llama", "it is called LLM; .* weft convert"),
        ("GrammarMatcher", r"compile\(guide\)\.matcher\(\)"),
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
    assert not set(IMPORT_HINTS) & set(weft.grammar.__all__)
    assert not set(LOGPROB_HINTS) & set(dir(TokenLogprob))
    assert not set(COMPILER_HINTS) & set(dir(GuideCompiler))
    assert not set(MODEL_HINTS) & set(signature(LLM).parameters)
    assert not set(SAMPLING_HINTS) & set(signature(SamplingParams).parameters)
    assert not set(OPTION_HINTS) & set(RequestOptions.__annotations__)


def test_an_attribute_of_another_library_says_what_to_use() -> None:
    output = Output([1, 2], [3], text="x")
    with pytest.raises(AttributeError, match=r"no attribute 'stop_reason'; it is called stopped_by$"):
        getattr(output, "stop_reason")  # noqa: B009
    with pytest.raises(AttributeError, match=r"^'Output' object has no attribute 'txt'$"):
        getattr(output, "txt")  # noqa: B009
    assert copy.deepcopy(output) == pickle.loads(pickle.dumps(output)) == output
    with pytest.raises(AttributeError, match=r"^'LLM' object has no attribute 'beam_search'; .*beam_width=4"):
        getattr(LLM.__new__(LLM), "beam_search")  # noqa: B009


def test_a_vllm_loop_over_a_single_answer_says_what_an_output_is() -> None:
    output = Output([1, 2], [3], text="x")
    for use in (lambda: list(output), lambda: output[0]):  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="an Output is not a list: a single prompt or conversation gives"):
            use()


def test_a_vllm_programs_log_probabilities_say_what_an_entry_is() -> None:
    entry = TokenLogprob(-0.5, {3: -0.5, 7: -2.0})
    with pytest.raises(AttributeError, match="'TokenLogprob' object has no attribute 'values'; top maps"):
        getattr(entry, "values")  # noqa: B009
    with pytest.raises(TypeError, match="a TokenLogprob is not a dict; top maps"):
        entry[3]
    assert copy.deepcopy(entry) == pickle.loads(pickle.dumps(entry)) == entry


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: SamplingParams(prompt_logprobs=1), "return_context_logits"),  # type: ignore[call-arg]
        (lambda: SamplingParams(ignore_eos=True), "min_tokens"),  # type: ignore[call-arg]
        (lambda: LLM(compilation_config=0), 'graphs="none"'),  # type: ignore[call-arg]
        (lambda: LLM(enable_prefix_caching=True), "reuse=False"),  # type: ignore[call-arg]
    ],
)
def test_a_parameter_of_vllm_gets_no_wrong_guess(make: Callable[[], object], hint: str) -> None:
    with pytest.raises(TypeError, match=f"has no parameter .*{hint}"):
        make()


def test_names_of_xgrammar_say_what_to_call() -> None:
    with pytest.raises(ImportError, match=r"^weft\.grammar has no TokenizerInfo; it is called Vocabulary"):
        exec("from weft.grammar import TokenizerInfo")
    with pytest.raises(ImportError, match=r"^cannot import name 'Nothing' from 'weft\.grammar'"):
        exec("from weft.grammar import Nothing")
    with pytest.raises(AttributeError, match=r"'compile_regex'; it is compile\(Guide\.regex\(pattern\)\)"):
        getattr(GuideCompiler.__new__(GuideCompiler), "compile_regex")  # noqa: B009


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
