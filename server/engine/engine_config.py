"""The engine's part of the configuration."""

from __future__ import annotations

import enum

import msgspec

from ...sessions.errors import ConfigError

GIB = 2**30


class Device(enum.StrEnum):
    """Where the model runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(enum.StrEnum):
    """Of weights and KV. ``float32`` is for comparisons with other implementations; quantised weights are widened."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the engine is started with.

    ``max_batch_tokens`` is the token budget of a step. ``max_prefill_tokens_while_decoding`` bounds the prefill tokens
    of a step in which anyone decodes, so that a long prompt does not stall running streams. ``kv_memory_bytes`` is the
    size of the device tier. ``max_context`` 0 means the model's own. ``threads`` 0 means one a core.
    """

    model: str | None = None
    device: Device = Device.AUTO
    dtype: Dtype = Dtype.BFLOAT16
    block_size: int = 16
    kv_memory_bytes: int = GIB
    max_batch_tokens: int = 512
    max_prefill_tokens_while_decoding: int = 256
    max_sequences: int = 64
    max_waiting: int = 1024
    max_context: int = 0
    threads: int = 0

    def validate(self) -> None:
        """Raise ConfigError naming the first key that is out of range."""
        at_least = (
            ("block_size", 1),
            ("kv_memory_bytes", 1),
            ("max_batch_tokens", 1),
            ("max_prefill_tokens_while_decoding", 1),
            ("max_sequences", 1),
            ("max_waiting", 1),
            ("max_context", 0),
            ("threads", 0),
        )
        for key, least in at_least:
            if getattr(self, key) < least:
                raise ConfigError(
                    f"engine.{key} is {getattr(self, key)}", field=f"engine.{key}", remedy=f"it must be {least} or more"
                )
        if self.max_batch_tokens < self.max_sequences:
            raise ConfigError(
                f"engine.max_batch_tokens ({self.max_batch_tokens}) is less than engine.max_sequences "
                f"({self.max_sequences})",
                field="engine.max_batch_tokens",
                remedy="each running sequence needs one token of a step",
            )
