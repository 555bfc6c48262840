"""The packages of the Python and the C++ code in layers, from the bottom up, with the imports that are allowed
(`test_layering.py`).

A room is a folder, or a file listed on its own. It may import rooms of lower floors only, and no other room of its
floor. Files of one room may import each other, but not in a cycle.
"""

from __future__ import annotations

PYTHON_FLOORS = [
    "_core errors lazy version",
    "registry tiny",
    "core",
    "config tokenizer models/fields models/gguf/header",
    "models/gguf/metadata models/gguf/names models/gguf/parts",
    "runtime",
    "ops grammar/vocabulary grammar/notes aici/limits",
    "grammar/schema/structure models/quantized",
    "grammar",
    "grammar/schema models",
    "models/generic models/gguf",
    "grammar/python_types grammar/xgrammar",
    "grammar/llguidance grammar/kinds aici",
    "grammar/auto grammar/compile",
    "grammar/__init__ core/request",
    "guided parsing",
    "spec trace",
    "engine/stats engine/device",
    "engine/kv engine/features/processors",
    "engine/sequence",
    "engine/scheduler engine/features/flight_recorder",
    "engine/runner engine/admission engine/features/beam",
    "engine/output engine/features/debug_tap",
    "engine/engine",
    "engine/build",
    "engine/__init__ engine/features/__init__",
    "client replay executor/types",
    "executor llm",
    "migration",
    "server/faults",
    "server/models server/logs server/ids",
    "server/errors",
    "server/settings server/connections server/workers",
    "server/kept server/tenants server/protocol",
    "server/reading server/config_file",
    "server/writing",
    "server/metrics server/timeline",
    "server/state server/traffic_log",
    "server/guard server/responding",
    "server/routes",
    "server/app",
    "server/run server/__init__",
    "server/check",
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

# Files that create objects of higher rooms, with the rooms that their functions may import.
FRONTS = {"grammar/guide": ("grammar/kinds", "grammar/python_types", "grammar/xgrammar", "aici")}

# Rooms that only these others may import. All others look them up in the registry, or receive their objects.
PYTHON_LEAVES = {
    "aici": "grammar/guide",
    "grammar/kinds/closing": "grammar/compile engine/sequence replay",
    "grammar/kinds/custom": "__init__",
    "grammar/xgrammar": "grammar/llguidance grammar/kinds/tools grammar/auto cli",
    "grammar/llguidance": "grammar/auto cli",
    "grammar/auto": "",
    "engine/features/beam": "engine/build",
    "engine/features/flight_recorder": "client/flight_recorder __init__ engine/engine engine/output engine/runner",
    "guided/flight": "guided/recording engine/features/flight_recorder replay",
    "guided/recording": "engine/features/flight_recorder replay cli/replay",
    "guided/recorded_guide": "guided/recording engine/features/flight_recorder",
}
NATIVE_LEAVES = {"aici": "bindings", "grammar/closing": "bindings", "grammar/plugin": "bindings"}

EXTENSION_USERS = ("core/awake", "runtime", "grammar", "ops", "guided", "tokenizer/stop_words", "aici")
PYTHON_IN_NATIVE = ("hostfunc", "grammar/python", "bindings")
NO_TORCH = ("engine/kv", "engine/scheduler")
