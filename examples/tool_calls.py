"""A conversation whose answer calls a function, in the format of the model's family."""

from __future__ import annotations

import argparse
import json

from weft import LLM, Guide, SamplingParams
from weft.parsing import AnswerParser

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_person",
            "description": "Looks a person up.",
            "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,11}$"},
                    "age": {"type": "integer", "minimum": 0, "maximum": 130},
                },
                "required": ["name", "age"],
            },
        },
    }
]


def find_person(name: str, age: int) -> str:
    return f"{name}, {age}: a painter"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    guide = Guide.tools(TOOLS, style="qwen_3", required="find_person")
    messages = [{"role": "user", "content": "Who is Ada? She is 31."}]
    with LLM(arguments.model, device=arguments.device) as llm:
        out = llm.chat(messages, tools=TOOLS, guide=guide, sampling=SamplingParams(max_tokens=120))
    print(out.text)
    for call in AnswerParser.of_tools(guide, TOOLS).read(out.text).calls:
        print({"find_person": find_person}[call.name](**json.loads(call.arguments)))


if __name__ == "__main__":
    main()
