"""Programs whose answer to a step is none that can be taken."""

from __future__ import annotations

from support.wasm.hostile_parts import ALLOWED, Hostile, answers, hostile, step

WRONG = {
    "empty": ("", "ends too early"),
    "no JSON": ("all right", "unexpected character"),
    "cut": ('{"branches":[{"sample_', "ends too early"),
    "a list": ("[]", "has no branches"),
    "no branches": ("{}", "has no branches"),
    "branches of numbers": ('{"branches":[1,2]}', "branches that are no list"),
    "two branches": ('{"branches":[{"sample_mask":0},{"sample_mask":0}]}', "forks"),
    "mask of another call": ('{"branches":[{"sample_mask":0,"splices":[]}]}', "mask that it did not return"),
    "mask that is a text": ('{"branches":[{"sample_mask":"0"}]}', "sample_mask that is no number"),
    "neither mask nor tokens": ('{"branches":[{"sample_mask":null,"splices":[]}]}', "neither samples"),
    "token beyond the vocabulary": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":0,"ff_tokens":[300]}]}]}',
        "not a token",
    ),
    "token below zero": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":0,"ff_tokens":[-1]}]}]}',
        "not a token",
    ),
    "token that is huge": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":0,"ff_tokens":[1e300]}]}]}',
        "not a token",
    ),
    "token that is half": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":0,"ff_tokens":[0.5]}]}]}',
        "not a token",
    ),
    "backtrack of all": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":1000000,"ff_tokens":[100]}]}]}',
        "takes back more",
    ),
    "backtrack below zero": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":-1,"ff_tokens":[100]}]}]}',
        "takes back more",
    ),
    "nested JSON": ('{"branches":' + "[" * 50_000, "nests too deep"),
    "nested objects": ('{"a":' * 10_000, "nests too deep"),
}
EMPTY = f"(i32.store (i32.const {256 + ALLOWED // 32 * 4}) (i32.const 0))"
ANSWERS: list[Hostile] = [
    *(hostile(f"answer: {name}", answers(text), "step", said) for name, (text, said) in WRONG.items()),
    hostile(
        "answer: too long",
        answers('{"branches":[],"x":"' + "x" * 4000 + '"}'),
        "step",
        "more than 2048",
        result_bytes=2048,
    ),
    hostile("answer: empty mask", step(f"{EMPTY} (call $answer) (return)"), "step", "allows no token"),
    hostile(
        "answer: mask of padding",
        step(f"{EMPTY} (i32.store (i32.const 292) (i32.const 0xfffff000)) (call $answer) (return)"),
        "step",
        "allows no token",
    ),
    hostile(
        "answer: mask of an invented call",
        answers('{"branches":[{"sample_mask":12345}]}').replace(
            "(call $result (i32.const 70000)",
            "(drop (call $bias (i32.const 256))) (call $result (i32.const 70000)",
        ),
        "step",
        "mask that it did not return",
    ),
    hostile("answer: none", step("(return)"), "step", "gave no result"),
]
