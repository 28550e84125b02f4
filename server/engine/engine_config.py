"""The engine's part of the configuration."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from ...sessions.errors import ConfigError

GIB = 2**30
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0


class Device(enum.StrEnum):
    """Where the model runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(enum.StrEnum):
    """Of weights and KV. ``float32`` is for comparisons with other implementations; quantised weights are widened."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class Speculation(enum.StrEnum):
    """What guesses the tokens that a step verifies."""

    OFF = "off"
    NGRAM = "ngram"  # what the conversation had after the last few tokens
    SUFFIX = "suffix"  # the longest match in it, in past outputs and in expected text
    AUTO = "auto"  # suffix, and the draft model where there is one


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the engine is started with.

    ``max_batch_tokens`` is the token budget of a step. ``max_stall_ms`` bounds how long a step may take, by what was
    learnt of steps, when it adds prefill to running streams; ``max_prefill_tokens_while_decoding`` bounds that in
    tokens. ``kv_memory_bytes`` is the size of the device tier (0 on a GPU: all that the largest step leaves free),
    ``host_memory_bytes`` and ``disk_quota_bytes`` of those below it; without a ``disk_path`` nothing is written.
    ``shared`` is a JSON object such as ``{"type": "valkey", "startup_nodes": "host:6379"}`` or ``{"type": "fs_native",
    "base_path": "/mnt/kv"}``; empty for none. ``watchdog_s`` must be longer than the longest step. ``max_context`` 0
    means the model's own. ``threads`` 0 means one a core.
    """

    model: Annotated[
        str | None, Meta(description="a folder, a .gguf file or a Hugging Face id; by default the embedded model")
    ] = None
    device: Annotated[Device, Meta(description="where the model runs")] = Device.AUTO
    dtype: Annotated[Dtype, Meta(description="of weights and KV in memory")] = Dtype.BFLOAT16
    block_size: Annotated[int, Meta(ge=1, description="tokens in a block of KV")] = 16
    kv_memory_bytes: Annotated[int, Meta(ge=0, description="size of the KV pool; 0, on a GPU: all that is free")] = GIB
    host_memory_bytes: Annotated[int, Meta(ge=0, description="memory for blocks that leave the KV pool; 0: none")] = GIB
    disk_quota_bytes: Annotated[
        int, Meta(ge=0, description="disk space for blocks that outlive the server; 0: none")
    ] = 4 * GIB
    disk_path: Annotated[str, Meta(description="folder of these blocks; by default kv in the data folder")] = ""
    pin_budget: Annotated[
        float, Meta(ge=0, le=1, description="share of the KV pool that hard pins may keep, together")
    ] = 0.5
    tenant_pinned_bytes: Annotated[
        int, Meta(ge=0, description="of the KV pool, what a tenant's pins may keep; 0: as much as all may")
    ] = 0
    tenant_kv_bytes: Annotated[
        int, Meta(ge=0, description="of the KV pool, what a tenant may keep cached before its own goes first; 0: all")
    ] = 0
    tenant_host_bytes: Annotated[int, Meta(ge=0, description="the same of the host tier; 0: all")] = 0
    tenant_disk_bytes: Annotated[int, Meta(ge=0, description="the same of the disk tier; 0: all")] = 0
    shared: Annotated[
        str, Meta(description="blocks shared with other servers: an LMCache L2 adapter's configuration, as JSON")
    ] = ""
    max_batch_tokens: Annotated[
        int, Meta(ge=1, description="token budget of one step, decodes and prefill together")
    ] = 512
    max_prefill_tokens_while_decoding: Annotated[
        int, Meta(ge=0, description="of these, at most so many for prefill while anyone decodes; 0: no bound in tokens")
    ] = 0
    max_stall_ms: Annotated[
        float, Meta(ge=0, description="prefill makes no running stream wait longer than this for a token; 0: no bound")
    ] = 150.0
    max_sequences: Annotated[int, Meta(ge=1, description="turns in one step, at most")] = 64
    max_waiting: Annotated[
        int, Meta(ge=1, description="turns of each priority class running or waiting, at most; more are refused")
    ] = 1024
    max_queue_s: Annotated[
        float,
        Meta(
            ge=0, description="an interactive turn that would wait longer than so many seconds is refused; 0: any time"
        ),
    ] = 120.0
    background_patience_s: Annotated[
        float, Meta(ge=0, description="a background turn that waited so long counts as interactive; 0: never")
    ] = 30.0
    batch_patience_s: Annotated[
        float, Meta(ge=0, description="a batch turn that waited so long counts as background; 0: never")
    ] = 600.0
    tenant_weights: Annotated[
        tuple[str, ...],
        Meta(description="shares of tenants that compete, such as gold=4,trial=0.5; one that is not named has 1"),
    ] = ()
    reuse_index_tokens: Annotated[
        int, Meta(ge=0, description="tokens that are remembered to know what could have been reused; 22 bytes each")
    ] = 2_000_000
    max_context: Annotated[int, Meta(ge=0, description="tokens of a conversation; 0: as many as the model can")] = 0
    speculation: Annotated[Speculation, Meta(description="what guesses tokens ahead, to be verified in one step")] = (
        Speculation.AUTO
    )
    speculation_memory_bytes: Annotated[
        int, Meta(ge=0, description="memory for the texts that guesses come from, at most")
    ] = 64 * 2**20
    speculation_path: Annotated[
        str, Meta(description="folder of what turns said, to guess from; by default speculation in the data folder")
    ] = ""
    draft_model: Annotated[
        str, Meta(description="a smaller model of the same tokenizer that guesses where texts do not; empty: none")
    ] = ""
    watchdog_s: Annotated[
        float,
        Meta(ge=0, description="an engine that says nothing for so many seconds is killed and replaced; 0: never"),
    ] = 120.0
    threads: Annotated[int, Meta(ge=0, description="CPU threads of the engine; 0: one a core")] = 0

    @property
    def weights(self) -> dict[str, float]:
        """``tenant_weights`` by tenant. Raises ConfigError naming the first that is none."""
        return dict(_weight(text) for text in self.tenant_weights)

    def validate(self) -> None:
        """Raise ConfigError naming the first key that is out of range."""
        at_least = (
            ("block_size", 1),
            ("kv_memory_bytes", 0),
            ("host_memory_bytes", 0),
            ("disk_quota_bytes", 0),
            ("max_batch_tokens", 1),
            ("max_prefill_tokens_while_decoding", 0),
            ("max_stall_ms", 0),
            ("max_queue_s", 0),
            ("background_patience_s", 0),
            ("batch_patience_s", 0),
            ("max_sequences", 1),
            ("max_waiting", 1),
            ("reuse_index_tokens", 0),
            ("max_context", 0),
            ("speculation_memory_bytes", 0),
            ("watchdog_s", 0),
            ("threads", 0),
        )
        for key, least in at_least:
            if getattr(self, key) < least:
                raise ConfigError(
                    f"engine.{key} is {getattr(self, key)}", field=f"engine.{key}", remedy=f"it must be {least} or more"
                )
        if self.block_size % 16:
            raise ConfigError(
                f"engine.block_size is {self.block_size}", field="engine.block_size", remedy="use a multiple of 16"
            )
        if self.max_batch_tokens < self.max_sequences:
            raise ConfigError(
                f"engine.max_batch_tokens ({self.max_batch_tokens}) is less than engine.max_sequences "
                f"({self.max_sequences})",
                field="engine.max_batch_tokens",
                remedy="each running sequence needs one token of a step",
            )
        _ = self.weights


def _weight(text: str) -> tuple[str, float]:
    tenant, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not tenant or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise ConfigError(
            f"engine.tenant_weights has {text!r}",
            field="engine.tenant_weights",
            remedy=f"each is tenant=weight, the weight a number from {LEAST_WEIGHT} to {MOST_WEIGHT}",
        )
    return tenant, weight
