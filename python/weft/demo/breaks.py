"""Compares answers with and without a guide. Shows where an answer breaks its schema, with jsonschema's message."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.core import SamplingParams
from weft.demo.forms import FORMS, Form
from weft.demo.verdict import Fault, fault
from weft.grammar.guide import Guide
from weft.llm import LLM
from weft.tiny.prompts import Schema, render_schema

MOST_TOKENS = 96
OPEN, CLOSE = ">>>", "<<<"
"""Marks around the faulty part of an answer, so that it is visible without colours."""


def show(console: Console, llm: LLM) -> None:
    """Answer every form with and without a guide. Print the forms with an invalid answer, and the counts."""
    console.rule("with a guide and without", characters="-")
    console.print(
        f"weft-tiny, a model of 2 million parameters inside the package, fills in {len(FORMS)} forms, greedily. "
        "All but the last are unlike those that it was trained on. Only forms with an invalid answer are shown: "
        f"the fault is between {OPEN} and {CLOSE}, and jsonschema's message is below it.\n"
    )
    broken_free = broken_guided = 0
    for form in FORMS:
        free, guided = answer(llm, form, None), answer(llm, form, guide_of(form.schema))
        wrong, wrong_guided = fault(free, form.schema), fault(guided, form.schema)
        broken_free += wrong is not None
        broken_guided += wrong_guided is not None
        if wrong is not None or wrong_guided is not None:
            console.print(comparison(form, (free, wrong), (guided, wrong_guided)), "")
    console.print(
        f"Breaks its schema: {broken_free} of {len(FORMS)} answers without a guide, {broken_guided} of {len(FORMS)} "
        "with one. A guide ensures the form. The facts are the model's.\n"
    )


def answer(llm: LLM, form: Form, guide: Guide | None) -> str:
    """The model's answer to a form, with the guide if given."""
    sampling = SamplingParams(max_tokens=MOST_TOKENS, on_length="close" if guide else "cut")
    return llm.generate(form.prompt, guide=guide, sampling=sampling).text


def guide_of(schema: Schema) -> Guide:
    """The guide for a schema. It allows only the separators that the model was trained to write."""
    return Guide.json_schema(schema, separators=(", ", ": "))


def comparison(form: Form, free: tuple[str, Fault | None], guided: tuple[str, Fault | None]) -> Table:
    """A form and its two answers, as labelled rows."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row("form", Text.assemble((form.asks, "bold"), f"   {form.rule}" if form.rule else ""))
    grid.add_row("text", Text(form.text))
    grid.add_row("schema", Text(render_schema(form.schema)))
    for name, (text, wrong) in (("no guide", free), ("guide", guided)):
        grid.add_row(name, marked(text, wrong))
        grid.add_row("", Text(wrong.message, "red") if wrong else Text("valid", "green"))
    return grid


def marked(text: str, wrong: Fault | None) -> Text:
    """The text with marks around the fault."""
    if wrong is None:
        return Text(text)
    begin, end = wrong.begin, wrong.end
    return Text.assemble(text[:begin], (f"{OPEN}{text[begin:end]}{CLOSE}", "bold red"), text[end:])
