"""What the engine is told at its start."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine's part of the configuration. None means: choose from the model and the machine."""

    model: Annotated[
        str | None, Meta(description="a folder, a .gguf file or a Hugging Face id; the embedded model by default")
    ] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="where the model runs")] = "auto"
    dtype: Annotated[Literal["bfloat16", "float32"], Meta(description="weights and KV in memory")] = "bfloat16"
    block_size: Annotated[int, Meta(ge=1, le=256), Meta(description="tokens in a block of KV")] = 16
    kv_memory_bytes: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="size of the KV pool")] = None
    max_batch_tokens: Annotated[
        Annotated[int, Meta(ge=1)], Meta(description="token budget of one step: decodes and prefill chunks together")
    ] = 512
    max_sequences: Annotated[Annotated[int, Meta(ge=1)], Meta(description="turns in one step, at most")] = 32
    max_context: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="tokens of a conversation, at most the model's own limit")
    ] = None
    threads: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="CPU threads of the engine")] = None
