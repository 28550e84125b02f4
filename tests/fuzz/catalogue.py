"""All targets, by name; a target's module is imported when it is asked for."""

from __future__ import annotations

import importlib

from fuzzing import Target

MODULES = {
    "model_files": ("gguf", "safetensors", "safetensors-index", "model-config", "tokenizer-files", "chat-template"),
    "kv_files": (
        "disk-index",
        "disk-index-sealed",
        "kv-file",
        "kv-file-sealed",
        "export",
        "export-sealed",
        "api-keys",
        "past-outputs",
        "past-outputs-sealed",
    ),
    "texts": ("answers", "settings"),
    "traces": ("lint-traces", "bench-traces", "lint-sources"),
    "requests_to_a_server": ("http", "grpc"),
}
NAMES = tuple(name for names in MODULES.values() for name in names)


def target(name: str) -> Target:
    """Raises KeyError for a name that is none."""
    module = next((module for module, names in MODULES.items() if name in names), None)
    if module is None:
        raise KeyError(f"{name} is no target; there are {', '.join(NAMES)}")
    found: tuple[Target, ...] = importlib.import_module(module).TARGETS
    return next(target for target in found if target.name == name)
