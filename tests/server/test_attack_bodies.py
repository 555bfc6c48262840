"""Bodies that are made to break the server, each with what is said of it; and after each a neighbour who asks the same
as before and gets the same."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from support.server.asking import MESSAGES, ask
from support.server.attacks import CHAT, COMPLETIONS, MIB, RESPONSES, check_neighbour
from support.server.running import Running

HALF = b"\xed\xa0\x80"


def object_of(count: int, start: str = "") -> bytes:
    return b"{" + start.encode() + b",".join(b'"%d":0' % i for i in range(count)) + b"}"


def list_of(one: bytes, count: int, name: str = "prompt") -> bytes:
    return b'{"%s":[' % name.encode() + b",".join([one] * count) + b"]}"


def chat(**more: Any) -> bytes:
    return json.dumps({"messages": MESSAGES, "max_tokens": 1, **more}).encode()


def completion(**more: Any) -> bytes:
    return json.dumps({"prompt": "x", "max_tokens": 1, **more}).encode()


TOOL = b'{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":%s}}}'
BODIES: dict[str, tuple[str, bytes, str]] = {
    # no UTF-8
    "half a character": (COMPLETIONS, b'{"prompt": "%s"}' % HALF, "no UTF-8"),
    "half a character in metadata": (
        RESPONSES,
        b'{"input":"a","metadata":{"a":"%s"},"max_output_tokens":2}' % HALF,
        "no UTF-8",
    ),
    "half a character in a format's name": (
        RESPONSES,
        b'{"input":"a","text":{"format":{"type":"json_schema","name":"%s","schema":{}}}}' % HALF,
        "no UTF-8",
    ),
    "half a character in a tool": (
        CHAT,
        b'{"messages":[{"role":"user","content":"a"}],"tools":[%s]}' % (TOOL % (b'{"%s":{}}' % HALF)),
        "no UTF-8",
    ),
    "half a character in a field's name": (COMPLETIONS, b'{"%s": 1}' % HALF, "no UTF-8"),
    "a NUL in two bytes": (COMPLETIONS, b'{"prompt": "\xc0\x80"}', "no UTF-8"),
    "a character beyond the last": (COMPLETIONS, b'{"prompt": "\xf4\x90\x80\x80"}', "no UTF-8"),
    "a character that is cut": (COMPLETIONS, b'{"prompt": "\xe2\x82"}', "no UTF-8"),
    "Latin-1": (COMPLETIONS, b'{"prompt": "\xe9"}', "no UTF-8"),
    "UTF-16": (COMPLETIONS, '{"prompt": "x"}'.encode("utf-16"), "no UTF-8"),
    "UTF-16 without a mark": (COMPLETIONS, '{"prompt": "x"}'.encode("utf-16-le"), "not JSON"),
    "UTF-32 without a mark": (COMPLETIONS, '{"prompt": "x"}'.encode("utf-32-be"), "not JSON"),
    "a byte order mark": (COMPLETIONS, b'\xef\xbb\xbf{"prompt": "x"}', "byte order mark"),
    "half a character as an escape": (COMPLETIONS, b'{"prompt": "\\uD800"}', "half a character"),
    "halves in the wrong order": (COMPLETIONS, b'{"prompt": "\\udc00\\ud800"}', "half a character"),
    "half a character in a name": (COMPLETIONS, b'{"prompt": "x", "\\ud800": 1}', "half a character"),
    "gzip": (COMPLETIONS, gzip.compress(b'{"prompt": "x"}'), "no UTF-8"),
    # no JSON
    "nothing": (CHAT, b"", "empty"),
    "blanks": (CHAT, b" \n ", "not JSON"),
    "a comma too many": (COMPLETIONS, b'{"prompt": "x",}', "not JSON"),
    "a comment": (COMPLETIONS, b'{"prompt": "x" /* y */}', "not JSON"),
    "single quotes": (COMPLETIONS, b"{'prompt': 'x'}", "not JSON"),
    "no quotes": (COMPLETIONS, b'{prompt: "x"}', "not JSON"),
    "two documents": (COMPLETIONS, b'{"prompt": "x"}{"prompt": "x"}', "not JSON"),
    "a form": (COMPLETIONS, b"prompt=x&max_tokens=1", "not JSON"),
    "a line end in a text": (COMPLETIONS, b'{"prompt": "a\nb"}', "not JSON"),
    "a zero before a number": (COMPLETIONS, b'{"prompt": "x", "n": 01}', "not JSON"),
    "a plus before a number": (COMPLETIONS, b'{"prompt": "x", "n": +1}', "not JSON"),
    "NaN": (COMPLETIONS, b'{"prompt": "x", "temperature": NaN}', "NaN is no number"),
    "Infinity": (
        COMPLETIONS,
        b'{"prompt": "x", "guided_json": {"maximum": Infinity}}',
        "Infinity is no number",
    ),
    "-Infinity": (CHAT, b'{"messages": [], "metadata": {"a": -Infinity}}', "-Infinity is no number"),
    "5000 digits": (COMPLETIONS, b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "not JSON"),
    "brackets": (COMPLETIONS, b'{"prompt": ' + b"[" * 2_000_000, "lists, objects"),
    "fewer brackets": (COMPLETIONS, b'{"prompt": ' + b"[" * 50_000, "nest too deep"),
    "objects that nest": (
        CHAT,
        b'{"messages": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
        "nest too deep",
    ),
    "a list": (COMPLETIONS, b"[]", "must be an object"),
    "a text": (COMPLETIONS, b'"x"', "must be an object"),
    "null": (CHAT, b"null", "must be an object"),
    # names that come twice
    "prompt twice": (COMPLETIONS, b'{"prompt": "x", "prompt": "y"}', "'prompt' more than once"),
    "the same value twice": (COMPLETIONS, b'{"prompt": "x", "prompt": "x"}', "'prompt' more than once"),
    "one of them an escape": (
        COMPLETIONS,
        b'{"prompt": "x", "\\u0070rompt": "y"}',
        "'prompt' more than once",
    ),
    "a role twice": (
        CHAT,
        b'{"messages": [{"role": "user", "role": "system", "content": "x"}]}',
        "'role' more than",
    ),
    "a property twice": (
        COMPLETIONS,
        b'{"prompt": "x", "guided_json": {"properties": {"a": {}, "a": false}}}',
        "'a' more than once",
    ),
    "a tag of a module twice": (
        "/v1/controllers/tags",
        b'{"module_id": "a", "module_id": "b"}',
        "more than once",
    ),
    "tokens twice": ("/detokenize", b'{"tokens": [1], "tokens": [2]}', "'tokens' more than once"),
    # more than is read
    "300,000 unknown fields": (COMPLETIONS, object_of(300_000), "names and texts that are read"),
    "60,000 unknown fields": (CHAT, object_of(60_000), "unknown field '0'"),
    "60,000 in guide": (
        CHAT,
        b'{"messages": [{}], "guide": ' + object_of(60_000) + b"}",
        "unknown field 'guide.0'",
    ),
    "60,000 in stream_options": (
        CHAT,
        b'{"messages": [{}], "stream_options": ' + object_of(60_000) + b"}",
        "unknown field 'stream_options.0'",
    ),
    "60,000 in structured_outputs": (
        COMPLETIONS,
        b'{"prompt": "x", "structured_outputs": ' + object_of(60_000) + b"}",
        "unknown field 'structured_outputs.0'",
    ),
    "60,000 in response_format": (
        CHAT,
        b'{"messages": [{}], "response_format": {"json_schema": '
        + object_of(60_000)
        + b', "type": "json_schema"}}',
        "unknown field 'response_format.json_schema.0'",
    ),
    "60,000 in text": (
        RESPONSES,
        b'{"input": "x", "text": ' + object_of(60_000) + b"}",
        "unknown field 'text.0'",
    ),
    "60,000 in reasoning": (
        RESPONSES,
        b'{"input": "x", "reasoning": ' + object_of(60_000) + b"}",
        "unknown field 'reasoning.0'",
    ),
    "60,000 in a message": (CHAT, b'{"messages": [' + object_of(60_000) + b"]}", "has 60000 entries"),
    "60,000 biases": (
        CHAT,
        b'{"messages": [{}], "logit_bias": ' + object_of(60_000) + b"}",
        "names 60000 tokens",
    ),
    "60,000 notes": (CHAT, b'{"messages": [{}], "metadata": ' + object_of(60_000) + b"}", "16 entries"),
    "300,000 notes": (CHAT, b'{"messages": [{}], "metadata": ' + object_of(300_000) + b"}", "that are read"),
    "a million lists": (COMPLETIONS, list_of(b"[5]", 1_000_000), "lists, objects"),
    "a million objects": (COMPLETIONS, list_of(b"{}", 1_000_000), "lists, objects"),
    "a million texts": (COMPLETIONS, list_of(b'""', 1_000_000), "names and texts"),
    "2 million ids": (COMPLETIONS, list_of(b"5", 2_000_000), "262144 entries"),
    "1.9 million ids to write": ("/detokenize", list_of(b"5", 1_900_000, "tokens"), "262144 entries"),
    "a million empty entries": (COMPLETIONS, list_of(b"", 1_000_000), "262144 entries"),
    "lists for the template": (
        CHAT,
        b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": '
        + list_of(b"[]", 1_000_000, "a")
        + b"}",
        "lists, objects",
    ),
    "lists of escapes": (COMPLETIONS, list_of(b'"\\"\\\\"', 400_000), "names and texts"),
    "lists behind a text": (
        COMPLETIONS,
        b'{"user": "\\\\", "prompt": [' + b"[]," * 100_000 + b"1]}",
        "lists, objects",
    ),
    "lists in a schema's text": (
        COMPLETIONS,
        completion(guide={"json_schema": '{"enum": [' + "[5]," * 500_000 + "1]}", "any_order": True}),
        "a text of JSON has more than",
    ),
    "lists in a tag's text": (
        COMPLETIONS,
        completion(guide={"structural_tag": '{"format": [' + "[5]," * 500_000 + "1]}"}),
        "a text of JSON has more than",
    ),
    "lists in the schema of a tag": (
        COMPLETIONS,
        completion(
            response_format={
                "type": "structural_tag",
                "structures": [{"begin": "a", "schema": '{"enum": [' + "[5]," * 500_000 + "1]}", "end": "b"}],
                "triggers": ["a"],
            }
        ),
        "a text of JSON has more than",
    ),
    # and what is read, since it is in a text, or as many as a prompt may be
    "commas and brackets in a text": (COMPLETIONS, completion(prompt="[,{" * 400_000), "max_model_len"),
    "quotes in a text": (COMPLETIONS, completion(prompt='"\\' * 400_000), "max_model_len"),
    "200,000 ids": (COMPLETIONS, list_of(b"5", 200_000), "max_model_len"),
    # fields
    "no name": (CHAT, chat(**{"": 1}), "unknown field ''"),
    "a name of NUL": (CHAT, chat(**{"\0": 1}), "unknown field"),
    "a name of a megabyte": (CHAT, chat(**{"x" * MIB: 1}), "unknown field"),
    "Python's own": (CHAT, chat(__class__=1), "unknown field '__class__'"),
    "pydantic's own": (CHAT, chat(model_config={}), "unknown field 'model_config'"),
    "a field by Python's name": (CHAT, chat(structured_outputs={"json_": {}}), "'structured_outputs.json_'"),
    "a field that is unknown before one that is missing": (
        CHAT,
        b'{"message": []}',
        "did you mean 'messages'?",
    ),
    "a bias of 1_0": (CHAT, chat(logit_bias={"1_0": 1}), "logit_bias.1_0: this name must be an integer"),
    "a bias of a blank": (CHAT, chat(logit_bias={" 1": 1}), "this name must be an integer"),
    "a bias with a plus": (CHAT, chat(logit_bias={"+1": 1}), "this name must be an integer"),
    "a bias with a zero before": (CHAT, chat(logit_bias={"1": 1, "01": 2}), "logit_bias.01: this name"),
    "a bias of -0": (CHAT, chat(logit_bias={"-0": 1, "0": 1}), "logit_bias.-0: this name"),
    "a bias in other digits": (CHAT, chat(logit_bias={"\u0661": 1}), "this name must be an integer"),
    "a bias of 1.0": (CHAT, chat(logit_bias={"1.0": 1}), "this name must be an integer"),
    "a bias of 30 digits": (CHAT, chat(logit_bias={"9" * 30: 1}), "this name must be"),
    "a bias below zero": (CHAT, chat(logit_bias={"-1": 1}), "logit_bias"),
    "a response's bias of 1_0": (
        RESPONSES,
        b'{"input": "x", "logit_bias": {"1_0": 1}}',
        "logit_bias.1_0: this name must be an integer",
    ),
    "a temperature of 1e400": (COMPLETIONS, b'{"prompt": "x", "temperature": 1e400}', "finite"),
    "n of 0": (COMPLETIONS, completion(n=0), "n: must be at least 1"),
    "n of true": (COMPLETIONS, completion(n=True), "n: must be an integer, not true"),
    "max_tokens of 2**63": (COMPLETIONS, completion(max_tokens=2**63), "max_tokens"),
    "max_tokens of -1": (COMPLETIONS, completion(max_tokens=-1), "max_tokens"),
    "an id below zero": (COMPLETIONS, completion(prompt=[-1]), "prompt"),
    "an id of 2**40": (COMPLETIONS, completion(prompt=[2**40]), "prompt"),
    "ids that are true": (COMPLETIONS, completion(prompt=[True]), "prompt"),
    "ids within ids": (COMPLETIONS, completion(prompt=[[[1]]]), "prompt"),
    "a timeout of -1": (COMPLETIONS, completion(timeout_s=-1), "timeout_s"),
    "a stop that is empty": (COMPLETIONS, completion(stop=[""]), "stop"),
    "a user that is a number": (COMPLETIONS, completion(user=5), "user: must be a text"),
    "a request_id of 257 letters": (COMPLETIONS, completion(request_id="x" * 257), "request_id"),
    "a schema of itself": (COMPLETIONS, completion(guided_json={"$ref": "#"}), "guide"),
    "a schema of the net": (COMPLETIONS, completion(guided_json={"$ref": "http://127.0.0.1:1/a"}), "$ref"),
    "no module": ("/v1/controllers", b"\x7fELF" + bytes(100), "no WebAssembly module"),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(server: Running, name: str) -> None:
    path, body, said = BODIES[name]
    status, answer = ask(f"{server.url}{path}", body)
    assert status == 400 and said in answer["error"]["message"], (status, answer)
    check_neighbour(server)
