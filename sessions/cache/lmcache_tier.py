"""LMCache's L2 adapters as an object store: the only file that imports LMCache (and, for its buffers, torch).

An adapter is driven directly, on views of our own memory. ``LMCacheEngine`` and LMCache's older storage back ends are
not used: they are being retired, their disk index does not survive a restart and their keys are Python's ``hash``.
What the adapters lack (checksums, deadlines, a circuit breaker) the shared tier adds.
"""

# pyright: reportMissingImports=false
# (an optional extra)

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ConfigError
from .object_store import Completion, ObjectStore, Task
from .tiers import Block

logger = logging.getLogger(__name__)

LMCACHE_VERSION = "0.5.6"  # its API moves between releases
TRIED_ADAPTERS = ("fs_native", "valkey")
_FIELD = "engine.shared"


def lmcache_store(spec: dict[str, Any], namespace: str, patience_s: float) -> Callable[[], ObjectStore]:
    """A function that connects to the store of ``spec``, an L2 adapter's configuration in LMCache's own words.

    ``{"type": "fs_native", "base_path": "/mnt/shared/kv"}`` or ``{"type": "valkey", "startup_nodes": "host:6379"}``.
    Objects of another ``namespace`` are never seen. ``patience_s``: after how long the adapter gives a request up,
    where it can. Importing LMCache takes seconds.

    Raises:
        ConfigError: the adapter is refused or its configuration wrong, or LMCache is not installed.
    """
    kind = spec.get("type")
    if kind == "resp":
        raise ConfigError(
            "LMCache's adapter 'resp' is refused: a missing key hangs its worker for ever, a value of another size "
            "desynchronises it, and it never connects again",
            field=_FIELD,
            remedy="use 'valkey', which speaks to Redis too",
        )
    if kind not in TRIED_ADAPTERS:
        raise ConfigError(
            f"LMCache's adapter {kind!r} was not tried with this server",
            field=_FIELD,
            remedy=f"use one of {', '.join(TRIED_ADAPTERS)}",
        )
    if kind == "valkey":
        spec = {"request_timeout": patience_s, "connection_timeout": max(2.0, patience_s), **spec}
    config = _adapter_config(str(kind), spec)

    def connect() -> ObjectStore:
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter

        return LMCacheStore(create_l2_adapter(config, None), namespace)

    return connect


def _adapter_config(kind: str, spec: dict[str, Any]) -> Any:
    os.environ["LMCACHE_TRACK_USAGE"] = "false"  # nothing may phone home; read when lmcache is imported
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
    try:
        import lmcache
        from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class

        config_class = get_l2_adapter_config_class(kind)
    except ImportError as error:
        raise ConfigError(
            f"the shared tier needs LMCache, which cannot be imported: {error}",
            field=_FIELD,
            remedy="pip install 'sessile[lmcache]'",
        ) from error
    if lmcache.__version__ != LMCACHE_VERSION:
        logger.warning(
            "LMCache %s is installed; %s is the version that was tried", lmcache.__version__, LMCACHE_VERSION
        )
    try:
        return config_class.from_dict(spec)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"LMCache refuses the adapter's configuration: {error}", field=_FIELD) from error


class LMCacheStore:
    """See ``ObjectStore``. One thread submits and asks for completions at a time."""

    def __init__(self, adapter: Any, namespace: str) -> None:
        self._adapter = adapter
        self._namespace = namespace
        self._stores: dict[int, int] = {}  # task -> number of keys
        self._lookups: dict[int, list[Any]] = {}  # task -> LMCache's keys
        self._loads: dict[int, int] = {}

    def descriptors(self) -> Sequence[int]:
        adapter = self._adapter
        return (
            adapter.get_store_event_fd(),
            adapter.get_lookup_and_lock_event_fd(),
            adapter.get_load_event_fd(),
        )

    def submit_store(self, keys: Sequence[bytes], buffers: Sequence[Block]) -> Task:
        number = self._adapter.submit_store_task(self._object_keys(keys), [_memory(buffer) for buffer in buffers])
        self._stores[number] = len(keys)
        return Task(("store", number))

    def submit_contains(self, keys: Sequence[bytes]) -> Task:
        object_keys = self._object_keys(keys)
        number = self._adapter.submit_lookup_and_lock_task(object_keys, {})
        self._lookups[number] = object_keys
        return Task(("contains", number))

    def submit_load(self, keys: Sequence[bytes], buffers: Sequence[Block]) -> Task:
        number = self._adapter.submit_load_task(self._object_keys(keys), [_memory(buffer) for buffer in buffers])
        self._loads[number] = len(keys)
        return Task(("load", number))

    def completed(self) -> list[Completion]:
        self._clear_events()
        done: list[Completion] = []
        for number, result in self._adapter.pop_completed_store_tasks().items():
            count = self._stores.pop(number)
            done.append(Completion(Task(("store", number)), (bool(result.is_successful()),) * count))
        for number, keys in list(self._lookups.items()):
            found = self._adapter.query_lookup_and_lock_result(number)
            if found is not None:
                present = tuple(bool(found.test(i)) for i in range(len(keys)))
                self._adapter.submit_unlock([key for key, there in zip(keys, present, strict=True) if there])
                del self._lookups[number]
                done.append(Completion(Task(("contains", number)), present))
        for number, count in list(self._loads.items()):
            loaded = self._adapter.query_load_result(number)
            if loaded is not None:
                del self._loads[number]
                done.append(Completion(Task(("load", number)), tuple(bool(loaded.test(i)) for i in range(count))))
        return done

    def close(self) -> None:
        self._adapter.close()

    def _clear_events(self) -> None:
        from lmcache.v1.platform.event_notifier import consume_fd

        for descriptor in self.descriptors():
            consume_fd(descriptor)

    def _object_keys(self, keys: Sequence[bytes]) -> list[Any]:
        from lmcache.v1.distributed.api import ObjectKey

        rank = ObjectKey.ComputeKVRank(1, 0, 1, 0)
        return [ObjectKey(key, self._namespace, rank) for key in keys]


def _memory(buffer: Block) -> Any:
    """LMCache's view of ``buffer``, which it keeps alive."""
    import torch
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    metadata = MemoryObjMetadata(
        shape=torch.Size([buffer.nbytes]),
        dtype=torch.uint8,
        address=0,
        phy_size=buffer.nbytes,
        ref_count=1,
        fmt=MemoryFormat.BINARY_BUFFER,
    )
    return TensorMemoryObj(torch.from_numpy(buffer), metadata, None)
