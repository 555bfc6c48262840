"""One line of a program at a time: what the checker follows, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weft.errors import InputError
from weft.migration import FindingKind, calls, check_source
from weft.migration.verdict import OTHERWISE, judge

THEIRS = "import tensorrt_llm.bindings.executor as trtllm\n"
CONFIG = "config = trtllm.ExecutorConfig(enable_chunked_context=False)\n"
RUNNING = "executor = trtllm.Executor('m', trtllm.ModelType.DECODER_ONLY, config)\n"


def names(text: str) -> list[str]:
    """What is said of a program after its import: "Class.name" in order."""
    return [one.name for one in check_source(THEIRS + text) if one.kind is not FindingKind.IMPORT]


FOLLOWED = {
    "an assignment": "a = trtllm.Request([1], 2)\nb = a\nb.beams = 3",
    "a walrus": "if (a := trtllm.Request([1], 2)):\n    a.beams",
    "both branches": "x = trtllm.Request([1], 2) if y else trtllm.Request([2], 2)\nx.beams",
    "a list": "[one.beams for one in [trtllm.Request([1], 2)]]",
    "what is appended": "a = []\na.append(trtllm.Request([1], 2))\na[0].beams",
    "a tuple": "a, b = trtllm.Request([1], 2), 3\na.beams",
    "an annotation": "def f(a: 'trtllm.Request'):\n    a.beams",
    "an optional annotation": "def f(a: trtllm.Request | None = None):\n    a.beams",
    "a list by annotation": "def f(a: list[trtllm.Request]):\n    a[0].beams",
    "what a function gives": "def f():\n    return trtllm.Request([1], 2)\nf().beams",
    "a function that comes later": "def g():\n    f().beams\ndef f():\n    return trtllm.Request([1], 2)",
    "what an object holds": (
        "class A:\n    def ask(self):\n        self.a.beams\n    def __init__(self):\n"
        "        self.a = trtllm.Request([1], 2)"
    ),
    "a method of the program's own": (
        "class A:\n    def make(self):\n        return trtllm.Request([1], 2)\n    def ask(self):\n"
        "        self.make().beams"
    ),
    "a name in a function": "a = trtllm.Request([1], 2)\ndef f():\n    a.beams",
    "a copy": "import copy\na = trtllm.Request([1], 2)\ncopy.deepcopy(a).beams",
    "a dict of arguments": "trtllm.Request(**{'input_token_ids': [1], 'max_tokens': 2, 'beams': 3})",
    "a dict that is filled": "a = {'max_tokens': 2}\na['beams'] = 3\ntrtllm.Request([1], **a)",
    "a dict that is updated": "a = dict(max_tokens=2)\na.update(beams=3)\ntrtllm.Request([1], **a)",
    "a loop with numbers": "for at, one in enumerate([trtllm.Request([1], 2)]):\n    one.beams",
    "an import in a function": (
        "def f():\n    from tensorrt_llm.bindings.executor import Request as R\n    R([1], 2).beams"
    ),
    "import_module": (
        "import importlib\nt = importlib.import_module('tensorrt_llm.bindings.executor')\nt.Request([1], 2).beams"
    ),
    "getattr": "getattr(trtllm.Request([1], 2), 'beams')",
    "a try": (
        "try:\n    import weft.executor as e\nexcept ImportError:\n    import tensorrt_llm.bindings.executor as e\n"
        "e.Request([1], 2).beams"
    ),
    "a match": "match y:\n    case 1:\n        trtllm.Request([1], 2).beams",
    "a lambda": "f = lambda: trtllm.Request([1], 2).beams",
    "an f-string": "f'{trtllm.Request([1], 2).beams}'",
    "a decorator and a default": "def f(a=trtllm.Request([1], 2, beams=3)):\n    pass",
    "a keyword": "trtllm.Request([1], 2, beams=3)",
}


@pytest.mark.parametrize("text", FOLLOWED.values(), ids=list(FOLLOWED))
def test_names_are_followed(text: str) -> None:
    assert names(text) == ["Request.beams"]


ALONE = {
    "what is something else": "a = trtllm.Request([1], 2)\na = 3\na.beams",
    "what may be something else": "a = trtllm.Request([1], 2) if y else trtllm.OutputConfig()\na.beams",
    "a parameter": "a = trtllm.Request([1], 2)\ndef f(a):\n    a.beams",
    "a name of a class": "class A:\n    a = trtllm.Request([1], 2)\n    def f(self):\n        a.beams",
    "what is asked for": "getattr(trtllm.Request([1], 2), 'beams', None)\nhasattr(trtllm.Request, 'beams')",
    "arguments that can't be told": "trtllm.Request(*a, **b)",
    "a name of everything": "trtllm.Request.__name__, trtllm.Request([1], 2).__class__",
    "a default": "trtllm.Request([1], 2, lora_config=None, num_return_sequences=1)",
    "a default by a name": "a = None\ntrtllm.Request([1], 2, lora_config=a)",
    "a member that is a default": (
        "trtllm.Request([1], 2, type=trtllm.RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION)"
    ),
    "a member's name": "trtllm.FinishReason.LENGTH.name, trtllm.FinishReason['LENGTH'].value",
    "a default that is assigned": "a = trtllm.Request([1], 2)\na.lora_config = None",
    "reading what is refused": "print(trtllm.Request([1], 2).lora_config)",
    "an error": "trtllm.Response(1, 'no', 3)",
    "another package": "import other\nother.Request(beams=2).beams",
}


@pytest.mark.parametrize("text", ALONE.values(), ids=list(ALONE))
def test_what_is_no_matter(text: str) -> None:
    assert not names(text)


AWAITED = {
    "await_responses()": "Result.beams",
    "await_responses(timedelta(seconds=1))": "Result.beams",
    "await_responses(number, timedelta(seconds=1))": "Result.beams",
    "await_responses(3)": "Result.beams",
}


@pytest.mark.parametrize("call", AWAITED)
def test_responses_are_followed(call: str) -> None:
    asked = "number = executor.enqueue_request(trtllm.Request([1], 2))\n"
    text = f"from datetime import timedelta\n{CONFIG}{RUNNING}{asked}for one in executor.{call}:\n    one.result.beams"
    assert names(text) == ["Result.beams"]


def test_responses_of_several_requests_are_followed() -> None:
    asked = "numbers = executor.enqueue_requests([])\n"
    loop = "for each in executor.await_responses(numbers):\n    for one in each:\n        one.result.beams"
    assert names(CONFIG + RUNNING + asked + loop) == ["Result.beams"]
    assert names(CONFIG + RUNNING + loop.replace("(numbers)", "([1, 2])")) == ["Result.beams"]


def test_of_what_is_not_sure_only_names_of_theirs_are_judged() -> None:
    """What an unknown number, or list of numbers, gives may be a list."""
    asked = f"{CONFIG}{RUNNING}for one in executor.await_responses(unknown):\n    "
    assert not names(asked + "one.append(1)")
    assert not names(asked + "one.result.output_token_ids")


def test_a_place_is_where_the_value_stands() -> None:
    (found,) = (
        one
        for one in check_source(f"{THEIRS}x = trtllm.Request([1],\n    2, beams=3)")
        if "beams" in one.text
    )
    assert (found.line, found.column) == (3, 8)
    assert str(found).startswith(
        "<text>:3:8: unknown: neither TensorRT-LLM nor weft.executor has Request.beams"
    )


def test_values_by_position_have_their_names() -> None:
    """`gpu_weights_percent` is the sixteenth of ExecutorConfig."""
    given = "1, s, k, False, True, 1, 1, b, 1, 1, None, None, None, None, False, 0.5"
    text = f"import tensorrt_llm.bindings.executor as t\nt.ExecutorConfig({given})"
    assert [one.name for one in check_source(text)][1:] == ["ExecutorConfig.gpu_weights_percent"]
    assert names("trtllm.Request([1], 2, True)") == ["Request"]


@pytest.fixture
def differences(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """weft means something else by three names, and has another default of one."""
    for name in ("Request.end_id", "Result.log_probs", "Executor.shutdown"):
        monkeypatch.setitem(OTHERWISE, name, "just so")
    judge.cache_clear()
    default = {"ExecutorConfig.enable_chunked_context": "left out it is True, in TensorRT-LLM False"}
    monkeypatch.setattr(calls, "other_default", lambda cls, name: default.get(f"{cls}.{name}"))
    yield
    monkeypatch.undo()
    judge.cache_clear()


@pytest.mark.usefixtures("differences")
def test_other_meanings_are_said_where_a_program_meets_them() -> None:
    """A field where it is given, not where it is read; a result's where it is read; a default where it is left out."""
    asked = "a = trtllm.Request([1], 2, end_id=3, streaming=True)\na.end_id = 4\nprint(a.end_id)\n"
    took = "executor.await_responses()[0].result.log_probs\nexecutor.shutdown()"
    found = check_source(THEIRS + CONFIG + RUNNING + asked + took)[1:]
    assert {one.kind for one in found} == {FindingKind.OTHERWISE}
    assert [(one.line, one.name) for one in found] == [
        (4, "Request.end_id"),
        (5, "Request.end_id"),
        (7, "Result.log_probs"),
        (8, "Executor.shutdown"),
    ]
    assert all(one.text.endswith(": just so") for one in found)
    (left,) = check_source(f"{THEIRS}trtllm.ExecutorConfig(2)")[1:]
    assert (left.kind, left.name) == (FindingKind.OTHERWISE, "ExecutorConfig.enable_chunked_context")
    assert left.text.endswith("give enable_chunked_context=False for the same")
    assert not check_source("import weft.executor as trtllm\ntrtllm.ExecutorConfig(2)")


FORMS = {
    "'m', trtllm.ModelType.DECODER_ONLY, config": [],
    "model_path='m', model_type=trtllm.ModelType.DECODER_ONLY, executor_config=config": [],
    "open('m', 'rb').read(), '{}', trtllm.ModelType.DECODER_ONLY, config": [],
    "Path('m').read_bytes(), '{}', trtllm.ModelType.DECODER_ONLY, config, {}": [],
    "engine_buffer=b, json_config_str=j, model_type=trtllm.ModelType.DECODER_ONLY, executor_config=config": [],
    "'e', 'd', trtllm.ModelType.DECODER_ONLY, config": ["encoder_model_path", "decoder_model_path"],
    "Path('e'), Path('d'), trtllm.ModelType.DECODER_ONLY, config": [
        "encoder_model_path",
        "decoder_model_path",
    ],
}


@pytest.mark.parametrize("given", FORMS)
def test_forms_of_the_executor_are_told_apart(given: str) -> None:
    text = f"from pathlib import Path\n{CONFIG}trtllm.Executor({given})"
    assert sorted(names(text)) == sorted(f"Executor.{one}" for one in FORMS[given])


def test_some_values_of_a_refused_field_are_served() -> None:
    for value in ("None", "[]", "[0]"):
        assert not names(f"trtllm.ParallelConfig(device_ids={value})")
    assert names("trtllm.ParallelConfig(device_ids=[1])") == ["ParallelConfig.device_ids"]
    assert names("a = trtllm.ParallelConfig()\na.device_ids = [0, 1]") == ["ParallelConfig.device_ids"]


def test_an_import_says_what_to_write() -> None:
    said = {
        "import tensorrt_llm.bindings.executor": "import weft.executor",
        "import tensorrt_llm.bindings.executor as t": "import weft.executor as t",
        "from tensorrt_llm.bindings import executor": "from weft import executor",
        "from tensorrt_llm.bindings import executor as t": "from weft import executor as t",
        "from tensorrt_llm.bindings.executor import Request as R, Result": (
            "from weft.executor import Request as R, Result"
        ),
        "import tensorrt_llm.bindings as t\nt.executor.Request": (
            "import weft.executor, and write weft.executor for t.executor"
        ),
        "import tensorrt_llm\ntensorrt_llm.bindings.executor.Request": (
            "import weft.executor, and write weft.executor for tensorrt_llm.bindings.executor"
        ),
    }
    for text, instead in said.items():
        (found,) = check_source(text)
        assert (found.kind, found.text) == (FindingKind.IMPORT, f"write: {instead}"), text
    for text in ("import tensorrt_llm", "import tensorrt_llm.bindings"):
        (found,) = check_source(text)
        assert found.kind is FindingKind.ELSEWHERE and "leave it out" in found.text


def test_an_older_name_leads_to_the_newest() -> None:
    (found,) = (one for one in check_source(f"{THEIRS}trtllm.Request([1], max_new_tokens=2)")[1:])
    assert found.kind is FindingKind.OLDER and "the newest is max_tokens" in found.text


def test_an_older_name_of_what_is_refused_says_so() -> None:
    found = check_source(f"{THEIRS}trtllm.MropeConfig(mrope_rotary_sin_cos=1)")[1:]
    assert {one.kind for one in found} <= {FindingKind.OLDER, FindingKind.LACKING}
    found = check_source(f"{THEIRS}trtllm.Request([1], speculative_decoding_config=1)")[1:]
    assert [one.name for one in found] == ["Request.speculative_decoding_config"]
    assert "the newest is external_draft_tokens_config" in found[0].text


def test_long_chains_are_read_once() -> None:
    """Each call of a chain once, and not again for the one behind it."""
    assert not check_source("x = a" + ".replace('&', b(c))" * 60)


@pytest.mark.parametrize(
    "text", ["def f(:", "\0", "x = '", "a" + ".a" * 100_000], ids=["syntax", "a zero", "an end", "deep"]
)
def test_what_is_no_python_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="<text>"):
        check_source(text)
