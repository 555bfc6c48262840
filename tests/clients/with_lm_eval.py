"""lm-eval: a multiple-choice task by log-probabilities of prompts (`local-completions`), and a generative one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from asked import PROMPT, URL
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{q}}}}"
{more}
"""
CHOICE = (
    'doc_to_target: 0\ndoc_to_choice: [\'{"name": "Ada Berg", "age": 31}\', \'{"name": "Bo", "age": 99}\']\n'
)
CHOICE += "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]"
WRITTEN = 'doc_to_target: \'{"name": "Ada Berg", "age": 31}\'\ngeneration_kwargs: {until: ["\\n"], max_gen_toks: 40}\n'
WRITTEN += "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]"

with tempfile.TemporaryDirectory() as folder:
    data = Path(folder) / "data.jsonl"
    data.write_text((json.dumps({"q": PROMPT}) + "\n") * 3)
    for name, kind, more in (("choice", "multiple_choice", CHOICE), ("written", "generate_until", WRITTEN)):
        (Path(folder) / f"{name}.yaml").write_text(TASK.format(name=name, data=data, kind=kind, more=more))
    settings = {
        "model": "weft-tiny",
        "base_url": f"{URL}/completions",
        "tokenizer": os.environ["TOKENIZER"],
        "num_concurrent": 2,
        "max_length": 1024,
    }
    manager = TaskManager(include_path=folder)
    found = simple_evaluate(
        "local-completions",
        model_args=settings,
        tasks=["choice", "written"],
        task_manager=manager,
        bootstrap_iters=0,
    )
results = found["results"]
assert results["choice"]["acc,none"] == 1.0, results
assert results["written"]["exact_match,none"] == 1.0, results
