"""How each server or provider caches: granularity, minimum, markers, lifetime, parameters that matter."""

from __future__ import annotations

from dataclasses import dataclass, field

from .request import ApiShape, Request

_SAMPLING_FREE = frozenset({"tool_choice", "response_format", "reasoning_effort", "reasoning", "verbosity", "text"})


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """What a cache can reuse. Sizes are in tokens, lifetimes in seconds (None: until evicted)."""

    name: str
    granularity: int = 1
    minimum: int = 0
    explicit: bool = False
    look_back: int | None = None
    max_markers: int | None = None
    lifetimes: dict[str, float] = field(default_factory=dict)
    hard_lifetime: bool = False
    prefix_parameters: frozenset[str] = _SAMPLING_FREE
    keys: frozenset[str] = frozenset()

    def usable(self, tokens: int) -> int:
        """How many of `tokens` common tokens the cache would serve."""
        return 0 if tokens < self.minimum else tokens - tokens % self.granularity


_TEMPLATE_PARAMETERS = frozenset(
    {"chat_template_kwargs", "tool_choice", "reasoning_effort", "chat_template", "documents", "add_generation_prompt"}
)
_ANTHROPIC_PARAMETERS = frozenset({"tool_choice", "thinking", "output_config", "effort", "output_format"})
_LOCAL_KEYS = frozenset({"cache_salt"})

PROFILES: dict[str, CacheProfile] = {
    "sessile": CacheProfile("sessile", prefix_parameters=_TEMPLATE_PARAMETERS, keys=_LOCAL_KEYS),
    "vllm": CacheProfile("vllm", granularity=16, prefix_parameters=_TEMPLATE_PARAMETERS, keys=_LOCAL_KEYS),
    "sglang": CacheProfile(
        "sglang", prefix_parameters=_TEMPLATE_PARAMETERS, keys=frozenset({"extra_key", "cache_salt"})
    ),
    "llama-server": CacheProfile("llama-server", prefix_parameters=_TEMPLATE_PARAMETERS),
    "anthropic": CacheProfile(
        "anthropic",
        minimum=1024,
        explicit=True,
        look_back=20,
        max_markers=4,
        lifetimes={"5m": 300.0, "1h": 3600.0},
        hard_lifetime=True,
        prefix_parameters=_ANTHROPIC_PARAMETERS,
    ),
    "bedrock": CacheProfile(
        "bedrock",
        minimum=1024,
        explicit=True,
        look_back=20,
        max_markers=4,
        lifetimes={"5m": 300.0, "1h": 3600.0, "default": 300.0},
        hard_lifetime=True,
        prefix_parameters=_ANTHROPIC_PARAMETERS | {"toolConfig.toolChoice", "additionalModelRequestFields"},
    ),
    "openai": CacheProfile(
        "openai", granularity=128, minimum=1024, lifetimes={"": 3600.0}, keys=frozenset({"prompt_cache_key"})
    ),
    "gemini": CacheProfile(
        "gemini",
        granularity=64,
        minimum=1024,
        lifetimes={"": 3600.0},
        prefix_parameters=frozenset(
            {"toolConfig", "generationConfig.responseSchema", "generationConfig.thinkingConfig", "cachedContent"}
        ),
    ),
}

_PROVIDERS = {
    "anthropic": "anthropic",
    "claude": "anthropic",
    "vertex_ai-anthropic": "anthropic",
    "bedrock": "bedrock",
    "aws": "bedrock",
    "openai": "openai",
    "azure": "openai",
    "gemini": "gemini",
    "google": "gemini",
    "vertex": "gemini",
    "vllm": "vllm",
    "sglang": "sglang",
    "llama": "llama-server",
    "sessile": "sessile",
}


def profile_of(request: Request) -> CacheProfile:
    """The profile that fits a request, from its provider, its dialect and its model's name."""
    provider = (request.provider or "").lower()
    for word, name in _PROVIDERS.items():
        if word in provider:
            return PROFILES[name]
    return PROFILES[_by_shape(request)]


def _by_shape(request: Request) -> str:
    model = request.model.lower()
    match request.shape:
        case ApiShape.ANTHROPIC:
            return (
                "bedrock"
                if "anthropic_version" in request.body and "bedrock" in str(request.body["anthropic_version"])
                else "anthropic"
            )
        case ApiShape.CONVERSE:
            return "bedrock"
        case ApiShape.GEMINI:
            return "gemini"
        case ApiShape.TEXT | ApiShape.TOKENS:
            return "vllm"
        case ApiShape.GENERATE:
            return "llama-server"
        case ApiShape.RESPONSES:
            return "openai"
        case ApiShape.OPENAI_CHAT:
            return _by_chat_model(model, request)


def _by_chat_model(model: str, request: Request) -> str:
    if "cache_salt" in request.body or "chat_template_kwargs" in request.body:
        return "vllm"
    if "claude" in model:
        return "anthropic"
    if "gemini" in model:
        return "gemini"
    bare = model.rsplit("/", 1)[-1]
    return "openai" if bare.startswith(("gpt-", "o1", "o3", "o4", "chatgpt", "codex")) and "oss" not in bare else "vllm"


def minimum_of(profile: CacheProfile, model: str) -> int:
    """The provider's least cacheable prompt for a model, in tokens (providers' pages, read in late 2025)."""
    name = model.lower()
    if not profile.explicit:
        return profile.minimum
    if "haiku-4" in name or "opus-4-5" in name or "opus-4.5" in name:
        return 4096
    if "haiku" in name:
        return 2048
    return profile.minimum
