"""The configuration of an engine process on a tiny model."""

from __future__ import annotations

from pathlib import Path

from sessile.server.engine.engine_config import Device, Dtype, EngineConfig


def tiny_engine_config(folder: Path, **changes: object) -> EngineConfig:
    """One that starts in a second or two, on the model in ``folder``."""
    settings = {
        "model": str(folder),
        "device": Device.CPU,
        "dtype": Dtype.FLOAT32,
        "kv_memory_bytes": 8 * 2**20,
        "max_batch_tokens": 64,
        "max_sequences": 8,
        "threads": 1,
    }
    return EngineConfig(**(settings | changes))  # type: ignore[arg-type]
