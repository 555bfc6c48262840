"""The command line, as a user has it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from support.grammar.guides import NOT_UNIQUE, UNIQUE_ITEMS
from weft import LLM, EngineConfig, SamplingParams, Speculation, WeftError, _core, registry
from weft.cli import app
from weft.cli.inputs import choose_speculation, own_directory
from weft.cli.options import DEFAULT, Drafter, Guided
from weft.errors import GuideError, ModelError, RequestError
from weft.tiny.records import example


def test_generate_on_the_command_line(tmp_path: Path) -> None:
    record = example(random.Random(6), "heldout")
    schema, stats, trace = tmp_path / "schema.json", tmp_path / "stats.json", tmp_path / "trace.json"
    schema.write_text(json.dumps(record.schema))
    arguments = ["generate", "-", "--json-schema", str(schema), "--device", "cpu"]
    arguments += ["--stats-json", str(stats), "--trace", str(trace)]
    result = CliRunner().invoke(app, arguments, input=record.prompt)
    assert result.exit_code == 0, result.output
    jsonschema.validate(json.loads(result.output), record.schema)
    found = json.loads(stats.read_text())
    assert found["device"] == "cpu"
    assert found["speculation"] == "eagle3"
    assert found["num_draft_tokens"] == 3
    assert found["guided_valid"] is True
    ((answer,),) = [prompt["outputs"] for prompt in found["prompts"]]
    assert answer["finish_reason"] == "stop" and answer["text"] + "\n" == result.output
    assert found["prompts"][0]["name"] == "standard input"
    assert found["graph_replays"] == found["iterations"] > 0
    assert found["acceptance_length"] > 1
    assert found["output_tokens"] > found["iterations"]
    events = json.loads(trace.read_text())["traceEvents"]
    names = " ".join(e["name"] for e in events)
    for word in ("target_forward", "fetch", "commit", "extend", "draft_forward"):
        assert word in names
    assert len({e["tid"] for e in events}) >= 2


def test_statistics_name_the_dtypes_that_are_chosen(tmp_path: Path) -> None:
    stats, found = tmp_path / "stats.json", []
    for options in (
        ["--dtype", "bfloat16"],
        ["--dtype", "float32"],
        ["--activations", "float32", "--kv-cache-dtype", "fp8"],
    ):
        arguments = ["generate", "Text", "--device", "cpu", "--max-tokens", "1", "--stats-json", str(stats)]
        result = CliRunner().invoke(app, [*arguments, *options])
        assert result.exit_code == 0, result.output
        written = json.loads(stats.read_text())
        found.append((written["activation_dtype"], written["kv_cache_dtype"]))
    fast = "bfloat16" if _core.has_fast_bfloat16() else "float32"
    assert found == [(fast, "bfloat16"), ("float32", "float32"), ("float32", "fp8")]


@pytest.mark.parametrize("activations", ["float32", "bfloat16"])
def test_activations_are_rounded_as_is_said(activations: str, tmp_path: Path) -> None:
    """A draft and the token that it becomes have the same bits."""
    prompt, stats = example(random.Random(6), "heldout").prompt, tmp_path / "stats.json"
    arguments = ["generate", "-", "--device", "cpu", "--dtype", "bfloat16", "--activations", activations]
    arguments += ["--max-tokens", "40", "--stats-json", str(stats)]
    answers = []
    for speculation in ("eagle3", "none"):
        result = CliRunner().invoke(app, [*arguments, "--speculation", speculation], input=prompt)
        assert result.exit_code == 0, result.output
        answers.append(result.output)
        assert json.loads(stats.read_text())["activation_dtype"] == activations
    assert answers[0] == answers[1]
    wrong = CliRunner().invoke(app, [*arguments, "--activations", "int4"], input=prompt)
    assert wrong.exit_code == 2 and "int4" in wrong.output


def test_no_strict_on_the_command_line(tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    arguments = ["generate", "Text: x", "--json-schema", json.dumps(UNIQUE_ITEMS), "--device", "cpu"]
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, GuideError) and NOT_UNIQUE in str(refused.exception)
    result = CliRunner().invoke(app, [*arguments, "--no-strict", "--stats-json", str(stats)])
    assert result.exit_code == 0 and "an answer breaks its schema" in result.stderr
    found = json.loads(stats.read_text())
    assert found["guide_notes"] == [NOT_UNIQUE] and found["guided_valid"] is False
    wrong = CliRunner().invoke(app, ["generate", "x", "--regex", "a", "--no-strict"])
    assert "--no-strict is about a JSON schema" in str(wrong.exception)


def test_files_and_the_chat_flag(tmp_path: Path) -> None:
    paths = []
    for i in range(2):
        paths.append(tmp_path / f"{i}.txt")
        paths[-1].write_text(example(random.Random(i), "heldout").prompt)
    arguments = ["generate", "--device", "cpu", "--chat", "--json", "--speculation", "none"]
    result = CliRunner().invoke(app, [*arguments, "-f", str(paths[0]), "-f", str(paths[1])])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.strip()]
    assert [line for line in lines if line.startswith("==>")] == [f"==> {path} <==" for path in paths]
    assert len([json.loads(line) for line in lines if not line.startswith("==>")]) == 2


def test_inspect() -> None:
    result = CliRunner().invoke(app, ["inspect", "--graph", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    for word in (
        "weft",
        "torch",
        "xgrammar",
        "llguidance",
        "wasmtime",
        "tokenizers",
        "CUDA driver",
        "native",
        "LlamaForCausalLM",
        "EAGLE3",
        "commit",
        "->",
    ):
        assert word in result.output


def test_a_graph_whose_host_tasks_are_polled() -> None:
    result = CliRunner().invoke(app, ["inspect", "--graph", "--device", "cpu", "--host-tasks", "polling"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert not [line for line in lines if " host " in line and ("commit" in line or "extend(" in line)]
    assert len([line for line in lines if " batch_mem_op " in line and "weft.guided.commit" in line]) == 3
    assert [line for line in lines if " host " in line and "weft.guided.fetch" in line]


def test_inspect_tells_a_model_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["PerceptronLM"]}')
    result = CliRunner().invoke(app, ["inspect", "-m", str(tmp_path)])
    assert isinstance(result.exception, ModelError) and "PerceptronLM" in str(result.exception)
    assert "weft can't run it:" in result.output and "LLGuidance matchers: native" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--json", "--regex", "a"], "--json and --regex were given"),
        (["x", "-k", "9", "--speculation", "none"], "must be 1 to 8"),
        (["x", "--head", "somewhere", "--speculation", "none"], "--head is for"),
        (["x", "--json-schema", "nowhere.json"], "--json-schema: can't read 'nowhere.json'"),
        (["x", "--json-schema", "{"], "JSON"),
        (["x", "--model", "nowhere"], "no such directory"),
        (["--file", "nowhere.txt"], "--file: can't read"),
        ([""], "the prompt is empty"),
        (["x", "--stats-json", "nowhere/stats.json"], "--stats-json: there is no directory 'nowhere'"),
        (["x", "--trace", "nowhere/trace.json"], "--trace: there is no directory 'nowhere'"),
        (["x", "--trace", "."], "--trace: '.' is a directory"),
        (["x", "--head", "somewhere", "--speculation", "ngram"], "--head is for eagle3, mtp, draft_model"),
        (
            ["x", "--untrusted", "--grammar-backend", "llguidance", "--regex", "a" * 300_000],
            "at most 262144 are allowed",
        ),
    ],
)
def test_bad_arguments_are_said_in_a_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["generate", "--device", "cpu", *arguments])
    assert result.exit_code != 0
    assert isinstance(result.exception, WeftError)
    assert message in str(result.exception)


def answers(found: Any, key: str) -> list[list[Any]]:
    """What the file of --stats-json says of the answers to each prompt."""
    return [[answer[key] for answer in prompt["outputs"]] for prompt in found["prompts"]]


def test_logprobs_go_into_the_statistics(tmp_path: Path) -> None:
    """And nothing but the text to standard output; for one prompt and for several."""
    prompt, stats, file = "Record: the quick brown fox", tmp_path / "stats.json", tmp_path / "prompt.txt"
    file.write_text(prompt)
    sampling = SamplingParams(max_tokens=6, logprobs=2)
    with LLM(device="cpu", speculation=Speculation.eagle3(), engine=EngineConfig(max_batch=8)) as llm:
        output = llm.generate(prompt, sampling=sampling)
    assert output.logprobs is not None
    expected = [
        {
            "token_id": token,
            "logprob": pytest.approx(entry.logprob, abs=1e-3),
            "top": {str(i): pytest.approx(value, abs=1e-3) for i, value in entry.top.items()},
        }
        for token, entry in zip(output.token_ids, output.logprobs, strict=True)
    ]
    arguments = ["generate", "--device", "cpu", prompt, "-n", "6", "--stats-json", str(stats)]
    result = CliRunner().invoke(app, [*arguments, "--logprobs", "2"])
    assert (result.exit_code, result.stdout) == (0, output.text + "\n")
    found = json.loads(stats.read_text())
    assert answers(found, "logprobs") == [[expected]]
    assert answers(found, "finish_reason") == [["length"]]
    result = CliRunner().invoke(app, [*arguments, "--logprobs", "2", "-f", str(file)])
    assert result.exit_code == 0, result.output
    found = json.loads(stats.read_text())
    assert answers(found, "logprobs") == [[expected], [expected]]
    assert answers(found, "finish_reason") == [["length"], ["length"]]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert answers(json.loads(stats.read_text()), "logprobs") == [[None]]


def test_a_failed_prompt_leaves_statistics(tmp_path: Path) -> None:
    stats, file = tmp_path / "stats.json", tmp_path / "prompt.txt"
    file.write_text("y")
    arguments = ["generate", "--device", "cpu", "x", "--choice", "yes", "--bad-word", "yes"]
    arguments += ["--stats-json", str(stats)]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, RequestError)
    assert result.stdout.strip() in ("", "y", "ye")
    assert answers(json.loads(stats.read_text()), "finish_reason") == [["error"]]
    result = CliRunner().invoke(app, [*arguments, "-f", str(file)])
    assert result.exit_code == 1
    assert answers(json.loads(stats.read_text()), "finish_reason") == [["error"], ["error"]]


def test_the_command_line_takes_every_drafter_there_is() -> None:
    names = set(registry.names("drafters")) - {"given"}  # which needs a text with each request
    assert {drafter.value for drafter in Drafter} == {"auto", "none", *names}
    for name in names:
        chosen = choose_speculation(Drafter(name), None, "2", Guided.on, False, None)
        assert chosen.drafters == (name,)
        assert chosen.num_draft_tokens == 2
        if own_directory(name):
            chosen = choose_speculation(Drafter(name), Path("there"), "2", Guided.on, True, None)
            assert (chosen.drafters, chosen.path) == (("forced", name), "there")
    assert [own_directory(name) for name in ("eagle3", "mtp", "draft_model", "ngram")] == [
        "eagle3",
        "mtp",
        "draft",
        None,
    ]


def test_auto_drafts_where_there_is_a_head(tmp_path: Path) -> None:
    def chosen(path: Path | None = None) -> Speculation:
        return choose_speculation(DEFAULT, path, "3", Guided.off, False, tmp_path)

    assert chosen() == Speculation.none()
    assert chosen(tmp_path) == Speculation.eagle3(tmp_path, guide_drafts=False)
    (tmp_path / "eagle3").mkdir()
    assert chosen() == Speculation.eagle3(guide_drafts=False)


def test_a_cut_answer_is_said() -> None:
    result = CliRunner().invoke(app, ["generate", "--device", "cpu", "x", "--json", "-n", "3"])
    assert result.exit_code == 3
    assert "before its guide ended" in result.stderr
