"""The rooms of the code in both languages, from the ground up, and who may know what (`test_layering.py`).

A room is a folder, or a file that has a place of its own; it knows rooms of lower floors only. Rooms of one floor do
not know each other. Files of one room may know each other, but not in a circle.
"""

from __future__ import annotations

PYTHON_FLOORS = [
    "_core errors lazy version",
    "registry tiny",
    "core",
    "config tokenizer",
    "runtime",
    "ops grammar/vocabulary aici/limits",
    "grammar",
    "grammar/schema models",
    "models/gguf",
    "grammar/xgrammar",
    "grammar/llguidance grammar/kinds aici",
    "grammar/auto grammar/compile",
    "grammar/__init__ core/request",
    "guided parsing",
    "spec trace",
    "engine/stats engine/device engine/logits_processors engine/request_guide",
    "engine/kv engine/stop_rules",
    "engine/sequence",
    "engine/scheduling engine/processors engine/recording engine/flight_recorder",
    "engine/step engine/admission engine/beam",
    "engine/output engine/debug_tap",
    "engine/engine",
    "engine/build",
    "engine/__init__",
    "client replay executor/types",
    "executor llm",
    "migration",
    "server/models server/logs server/ids",
    "server/errors",
    "server/settings server/connections server/workers",
    "server/kept server/tenants server/protocol",
    "server/reading server/config_file",
    "server/writing",
    "server/metrics",
    "server/state",
    "server/guard server/responding",
    "server/routes",
    "server/app",
    "server/run server/__init__",
    "demo",
    "cli",
    "__init__",
]
NATIVE_FLOORS = [
    "include/weft support",
    "driver kernels matcher",
    "driver/cpu kernels/layer kernels/mask kernels/sampling torch",
    "driver/polling",
    "hostfunc guided",
    "drafting",
    "grammar/after grammar/closing grammar/llguidance grammar/recognizer grammar/xgrammar aici/base",
    "grammar/plugin grammar/python aici/host",
    "aici",
    "bindings",
]

# What not everybody needs, and who may import it all the same. Others find it in the registry, or are given it.
PYTHON_LEAVES = {
    "aici": "grammar/guide",
    "grammar/kinds/closing": "replay",
    "grammar/kinds/plugin": "__init__",
    "grammar/xgrammar": "grammar/llguidance grammar/kinds/tools grammar/auto cli",
    "grammar/llguidance": "grammar/auto cli",
    "grammar/auto": "",
    "engine/beam": "engine/build",
    "engine/flight_recorder": "client/flight_recorder __init__",
    "guided/flight": "guided/recording engine/flight_recorder replay",
    "guided/recording": "engine/flight_recorder replay cli/replay",
    "guided/recorded_guide": "guided/recording engine/flight_recorder",
}
NATIVE_LEAVES = {"aici": "bindings", "grammar/closing": "bindings", "grammar/plugin": "bindings"}

EXTENSION_USERS = ("core/awake", "runtime", "grammar", "ops", "guided", "tokenizer/stop_words", "aici")
PYTHON_IN_NATIVE = ("hostfunc", "grammar/python", "bindings")
NO_TORCH = ("engine/kv", "engine/scheduling")
