"""The dashboard and the alerts of `examples/serve` read metrics that the server exports, and docs/metrics.md lists
every metric."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.server.asking import MESSAGES, ask
from support.server.promql import metrics_of
from support.server.running import Running, running
from weft.server.models import ServedModel
from weft.server.settings import ServerConfig

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "examples" / "serve" / "grafana.json").read_text())
ALERTS = (ROOT / "examples" / "serve" / "alerts.yml").read_text()
PAGE = (ROOT / "docs" / "metrics.md").read_text()
VARIABLES = re.compile(r"\$\w+|\$\{\w+\}")
SAMPLE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? [-+.\deE]+")
PROMETHEUS = {"up"}
"""Metrics that Prometheus itself writes."""


@pytest.fixture(scope="module")
def scrape(models: dict[str, ServedModel]) -> Iterator[str]:
    """The metrics after some requests to one of two models."""
    with running(models, ServerConfig()) as server:
        for more in ({}, {"guided_regex": "[0-9]{3}"}, {"guided_regex": "[0-9"}, {"n": 2, "stream": True}):
            ask(f"{server.url}/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9, **more})
        yield scraped(server)


def scraped(server: Running) -> str:
    text = ask(f"{server.url}/metrics")[1]
    assert isinstance(text, str)
    return text


def samples(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The samples of a scrape: each one's name and labels."""
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            yield match["name"], dict(re.findall(r'(\w+)="(.*?)"', match["labels"] or ""))


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DASHBOARD["panels"]
    return found


# -- the dashboard


def test_every_panel_reads_metrics_that_are_there(scrape: str) -> None:
    names = {name for name, _ in samples(scrape)}
    expressions = [
        re.sub(r"\$__rate_interval", "5m", target["expr"])
        for panel in panels()
        for target in panel["targets"]
    ]
    assert len(expressions) > 20
    for expression in expressions:
        read = metrics_of(expression)
        assert read <= names, (read - names, expression)


def test_the_dashboard_can_be_imported() -> None:
    """It names no data source and no id of an installation, and every variable that it uses is one of its own."""
    assert (
        DASHBOARD["schemaVersion"] >= 36 and "id" not in DASHBOARD and DASHBOARD["uid"] and DASHBOARD["title"]
    )
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert (
        variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    )
    for name in ("instance", "model_name"):
        assert metrics_of(re.sub(VARIABLES, "x", variables[name]["definition"]).replace(f", {name}", ""))
    used = {word.strip("${}") for word in VARIABLES.findall(json.dumps(DASHBOARD))}
    assert used - {"__rate_interval", "__all"} == {"datasource", "instance", "model_name"}
    sources = [part["datasource"]["uid"] for panel in panels() for part in (panel, *panel["targets"])]
    assert set(sources) == {"${datasource}"}


def test_panels_do_not_overlap() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert all(panel["title"] and panel["description"] for panel in panels())
    cells = [
        (column, row)
        for place in (panel["gridPos"] for panel in panels())
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(column for column, _ in cells) < 24


def test_alerts_read_metrics_that_are_there(scrape: str) -> None:
    yaml = pytest.importorskip("yaml")
    rules = [rule for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]]
    names = {name for name, _ in samples(scrape)} | PROMETHEUS
    assert len(rules) > 3
    for rule in rules:
        assert metrics_of(rule["expr"]) <= names and rule["annotations"]["summary"], rule


@pytest.mark.parametrize(
    "wrong", ["sum(rate(a[5m])", "rat(a[5m])", "sum by le (a)", "rate(a[5m)]", "a ? b", "1 + 2", 'a{b="c}']
)
def test_wrong_expressions_are_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        metrics_of(wrong)


# -- every metric


def test_every_model_has_every_metric_from_the_start(models: dict[str, ServedModel], scrape: str) -> None:
    with running(models, ServerConfig()) as server:
        first = list(samples(scraped(server)))
    per_model = {
        name: {metric for metric, labels in first if labels.get("model_name") == name} for name in models
    }
    drafts = "vllm:spec_decode_num_accepted_tokens_per_pos_total"  # "plain" has no draft positions
    assert per_model["tiny"] - {drafts} == per_model["plain"]
    assert {metric for metric, _ in first} == {metric for metric, _ in samples(scrape)}
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f"vllm:{gauge}" in per_model["plain"]
    assert {"weft:num_guides_compiling", "vllm:cache_config_info"} <= per_model["plain"]


def test_the_page_lists_every_metric(scrape: str) -> None:
    """A row has the metric's name, type, labels and help text."""
    labels: dict[str, set[str]] = {}
    for name, members in samples(scrape):
        labels.setdefault(re.sub("_(bucket|sum|count)$", "", name), set()).update(members)
    rows = []
    for name, text in re.findall(r"^# HELP (\S+) (.*)$", scrape, re.MULTILINE):
        (kind,) = re.findall(rf"^# TYPE {name} (\w+)$", scrape, re.MULTILINE)
        more = sorted(labels[name] - {"model_name", "engine", "le"})
        listed = ", ".join(f"`{label}`" for label in more)
        rows.append(f"| `{name}` | {kind} | {listed} | {text.rstrip('.')} |".replace("|  |", "| |"))
    assert len(rows) > 40
    assert sorted(rows) == sorted(
        line for line in PAGE.splitlines() if re.match(r"\| `(vllm|weft|process)", line)
    )
