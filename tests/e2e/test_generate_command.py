"""`weft generate`: several prompts and answers, conversations, tools, and errors that name their source."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from weft import LLM, EngineConfig, SamplingParams, package_model_path
from weft.cli import app
from weft.cli.inputs import read_prompts
from weft.errors import InputError, WeftError

TOOLS = [
    {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
]
QWEN = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<tool_call>\n"
)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["generate", "--device", "cpu", *arguments])


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """What weft-tiny answers to short prompts, four tokens each."""
    with LLM(device="cpu") as llm:
        outputs = llm.generate(["one", "two"], SamplingParams(max_tokens=4))
    return dict(zip(("one", "two"), (output.text for output in outputs), strict=True))


def test_prompts_have_their_names(texts: dict[str, str], tmp_path: Path) -> None:
    file, stats = tmp_path / "prompt.txt", tmp_path / "stats.json"
    file.write_text("two")
    result = run("one", "two", "-f", str(file), "-n", "4", "--stats-json", str(stats))
    assert result.exit_code == 0, result.output
    expected = {"one": texts["one"], "two": texts["two"], str(file): texts["two"]}
    assert result.stdout == "\n".join(f"==> {name} <==\n{text}\n" for name, text in expected.items())
    found = json.loads(stats.read_text())["prompts"]
    assert {prompt["name"]: prompt["outputs"][0]["text"] for prompt in found} == expected
    assert run("one", "-n", "4").stdout == texts["one"] + "\n"


def test_a_pipe_has_the_answer_as_it_is() -> None:
    answer = "a\tb\rc\fd\x07 :smile: [bold]e[/bold]" + " x" * 60
    result = run("one", "--choice", answer, "-n", "200")
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes.decode() == answer + "\n"


def test_names_are_a_line_of_a_few_letters() -> None:
    (prompt,) = read_prompts(["\x1b[31m a\nlong " + "prompt " * 20], [])
    assert len(prompt.name) <= 40 and prompt.name.isprintable()


@pytest.mark.parametrize("options", [["--num-answers", "2", "-t", "1", "--seed", "3"], ["--beam-width", "2"]])
def test_several_answers_to_a_prompt(options: list[str], tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    result = run("one", "-n", "4", *options, "--stats-json", str(stats))
    assert result.exit_code == 0, result.output
    (prompt,) = json.loads(stats.read_text())["prompts"]
    texts = [answer["text"] for answer in prompt["outputs"]]
    assert result.stdout == f"==> one, answer 1 <==\n{texts[0]}\n\n==> one, answer 2 <==\n{texts[1]}\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """weft-tiny with the chat template of a model that calls tools."""
    path = tmp_path / "model"
    shutil.copytree(package_model_path(), path)
    (path / "chat_template.jinja").write_text(QWEN)
    return path


def test_a_system_message_and_tools(model: Path, tmp_path: Path) -> None:
    tools, stats = tmp_path / "tools.json", tmp_path / "stats.json"
    tools.write_text(json.dumps(TOOLS))
    arguments = ["-m", str(model), "Find it", "--system", "Be brief.", "--tools", str(tools)]
    result = run(*arguments, "--tool-choice", "find", "-n", "60", "--stats-json", str(stats))
    assert result.exit_code == 0, result.output
    assert (
        json.loads(result.stdout.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>\n"))["name"]
        == "find"
    )
    with LLM(model, device="cpu") as llm:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Find it"}]
        prompt = llm.chat_tokens(messages, tools=TOOLS)
    assert json.loads(stats.read_text())["prompt_tokens"] == len(prompt)
    styled = run(*arguments, "--tool-choice", "required", "--tool-style", "llama", "-n", "60")
    assert styled.stdout.startswith('{"name": "find", "parameters": '), styled.output


def test_what_the_models_file_says_of_sampling_holds_unless_said_otherwise(model: Path) -> None:
    path = model / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_new_tokens": 2}))
    with LLM(model, device="cpu") as llm:
        two, three = (llm.generate("one", SamplingParams(max_tokens=n)).text for n in (2, 3))
    assert run("-m", str(model), "one").stdout == two + "\n"
    assert run("-m", str(model), "one", "-n", "3").stdout == three + "\n"
    longer = run("-m", str(model), "one", "--generation-config", "weft").stdout
    assert longer.startswith(three) and longer != three + "\n"


def test_a_structural_tag(tmp_path: Path) -> None:
    file = tmp_path / "tag.json"
    file.write_text(
        json.dumps({"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}})
    )
    result = run("one", "--structural-tag", str(file))
    assert (result.exit_code, result.stdout) == (0, "yes\n"), result.output


WRONG = {
    "schema.json": '{"type": "object" "a": 1}',
    "type.json": '{"type": "objct"}',
    "bad.ebnf": 'root ::= "a',
    "bad.lark": "start: missing",
    "tag.json": '{"type": "nothing"}',
    "tools.json": '[{"function": {}}]',
}


@pytest.mark.parametrize(
    ("option", "file", "message"),
    [
        ("--json-schema", "schema.json", "this is not valid JSON: Expecting ',' delimiter: line 1"),
        ("--json-schema", "type.json", "type is 'objct'"),
        ("--ebnf", "bad.ebnf", "line 1"),
        ("--lark", "bad.lark", "missing"),
        ("--structural-tag", "tag.json", ""),
        ("--tools", "tools.json", "is not a tool"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, option: str, file: str, message: str) -> None:
    path = tmp_path / file
    path.write_text(WRONG[file])
    result = run("one", option, str(path))
    assert isinstance(result.exception, WeftError)
    text = str(result.exception)
    assert text.startswith(f"{option} {str(path)!r}: ") and message in text and "\\n" not in text


def test_a_wrong_regex_is_a_line_in_its_own_words() -> None:
    text = str(run("one", "--regex", "[0-9").exception)
    assert text.startswith("--regex: ") and "unclosed character class" in text
    assert "\\n" not in text and "(?s)" not in text and "start:" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--logprobs", "2"], "give that, too"),
        (["--tool-style", "llama"], "give them with --tools"),
        (["-m", "org/name"], "weft models get org/name"),
        (["-m", "smolm2"], "did you mean 'smollm2'?"),
        (["--json", "--after", "x", "--regex", "a"], "an answer has one guide"),
        (["--after", "x"], "--after needs a guide to follow"),
    ],
)
def test_what_does_not_go_together_is_said(arguments: list[str], message: str) -> None:
    error = run("one", *arguments).exception
    assert isinstance(error, InputError) and message in str(error)


def test_wrong_values_are_guessed() -> None:
    result = run("one", "--speculation", "eagel")
    assert result.exit_code == 2 and "Did you mean 'eagle3'?" in result.stderr
    assert "Value error" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "smollm2"], "No such command 'run'. It is: weft chat NAME"),
        (["pull", "smollm2"], "It is: weft models get NAME"),
        (["models", "pull", "smollm2"], "It is: weft models get NAME"),
        (["modles"], "Did you mean 'models'?"),
        (["models", "lst"], "Did you mean 'list'?"),
    ],
)
def test_commands_of_other_programs_are_known(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_an_answer_that_can_not_be_so_long_is_said() -> None:
    result = run("one", "-n", "5000", "--stop", "e", "--speculation", "none")
    assert "1024 positions; after this prompt an answer has at most" in result.stderr
    assert "positions" not in run("one", "-n", "5").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["-h"],
        ["generate", "-h"],
        ["chat", "-h"],
        ["models", "-h"],
        ["convert", "-h"],
        ["serve", "-h"],
        ["bench", "-h"],
    ],
)
def test_help_fits_80_columns(arguments: list[str]) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, arguments)
    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if len(line) > 80] == []


@pytest.mark.slow
def test_the_note_about_weft_tiny_is_for_terminals() -> None:
    assert "weft-tiny" not in run("one", "-n", "2").stderr
    command = [sys.executable, "-m", "weft.cli", "generate", "--device", "cpu", "one", "-n", "2"]
    for model, says in (([], True), (["-m", "weft-tiny"], False)):
        ours, theirs = pty.openpty()
        done = subprocess.run([*command, *model], stdout=subprocess.PIPE, stderr=theirs, timeout=120)
        os.close(theirs)
        heard = ""
        with suppress(OSError), os.fdopen(ours, "rb") as terminal:  # Linux ends it so, once nobody writes
            heard = terminal.read1().decode()
        assert done.returncode == 0 and b"weft-tiny" not in done.stdout
        assert ("weft: weft-tiny has" in heard) == says


def test_a_message_ends_before_the_line_break_of_its_pipe(model: Path, tmp_path: Path) -> None:
    def num_tokens(*arguments: str, text: str | None = None) -> int:
        stats = tmp_path / "stats.json"
        options = ["-m", str(model), "-n", "2", "--stats-json", str(stats)]
        result = CliRunner().invoke(app, ["generate", "--device", "cpu", *arguments, *options], input=text)
        assert result.exit_code == 0, result.output
        found: int = json.loads(stats.read_text())["prompt_tokens"]
        return found

    assert num_tokens("--chat", text="Find it\n") == num_tokens("--chat", "Find it")
    assert num_tokens(text="Find it\n") > num_tokens("Find it")


def test_the_engine_has_a_slot_for_each_answer_up_to_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    slots, make = [], LLM.__init__

    def noted(self: LLM, *arguments: Any, engine: EngineConfig, **options: Any) -> None:
        slots.append(engine.max_batch)
        make(self, *arguments, engine=engine, **options)

    monkeypatch.setattr(LLM, "__init__", noted)
    assert run("one", "-n", "2").exit_code == 0
    assert run("one", "two", "-n", "2", "--num-answers", "3", "-t", "1").exit_code == 0
    assert run("one", "two", "-n", "2", "--num-answers", "30", "-t", "1").exit_code == 0
    assert slots == [1, 6, 8]
