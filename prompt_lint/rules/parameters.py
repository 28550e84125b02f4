"""PL503 to PL505: what is not prompt text and still decides what the cache can serve."""

from __future__ import annotations

from typing import Any, ClassVar

from ..findings import Severity
from ..profiles import CacheProfile
from ..prompt import Prompt
from ..request import Json
from .base import Verdict

_ADAPTER_KEYS = ("lora", "lora_name", "adapter", "lora_adapter", "lora_path", "adapter_id")


class ModelSwitch:
    """Another model or adapter within a lineage."""

    code: ClassVar[str] = "PL504"

    def judge(self, previous: Prompt, current: Prompt) -> Verdict | None:
        """A verdict when no cache of one can serve the other."""
        was, now = previous.request, current.request
        keys = [k for k in ("model", "modelId", *_ADAPTER_KEYS) if was.body.get(k) != now.body.get(k)]
        if not keys or (keys == ["model"] and not (was.model and now.model)):
            return None
        message = f"the {keys[0]} changed from {was.body.get(keys[0])} to {now.body.get(keys[0])}"
        return Verdict(self.code, message, cap=Severity.WARNING, path=keys[0], needs_loss=True)


class ParameterChange:
    """A parameter that the provider or the template renders into the prefix."""

    code: ClassVar[str] = "PL503"

    def judge(self, previous: Prompt, current: Prompt, profile: CacheProfile) -> Verdict | None:
        """A verdict when such a parameter changed within a lineage."""
        changed = changed_parameters(previous.request.body, current.request.body, profile)
        if not changed:
            return None
        return Verdict(
            self.code, f"{', '.join(changed)} changed within the session", cap=Severity.WARNING, path=changed[0]
        )


def changed_parameters(was: Json, now: Json, profile: CacheProfile) -> list[str]:
    """Names of prefix parameters whose values differ."""
    return [
        name
        for name in sorted(profile.prefix_parameters)
        if _meaning(name, _get(was, name)) != _meaning(name, _get(now, name))
    ]


def _get(body: Json, dotted: str) -> Any:
    value: Any = body
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _meaning(name: str, value: Any) -> Any:
    """Defaults count as absent, and only what is rendered counts."""
    if value in (None, "auto", {}, [], {"type": "auto"}):
        return None
    if name == "text" and isinstance(value, dict):
        return value.get("format"), value.get("verbosity")
    if name == "reasoning" and isinstance(value, dict):
        return value.get("effort")
    if name == "response_format" and value == {"type": "text"}:
        return None
    return value


class CacheKeyUnstable:
    """The key under which the cache looks changes within a lineage."""

    code: ClassVar[str] = "PL505"

    def judge(self, previous: Prompt, current: Prompt, profile: CacheProfile) -> Verdict | None:
        """A verdict when a key of this profile changed."""
        was, now = previous.request.body, current.request.body
        for key in sorted(profile.keys):
            if was.get(key) != now.get(key):
                return Verdict(
                    self.code,
                    f"{key} changed within the session",
                    cap=Severity.WARNING,
                    floor=Severity.WARNING,
                    path=key,
                )
        return None
