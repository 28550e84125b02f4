"""Presets of the made-up agent, named after the public figures that they follow.

What a preset follows: turns a session, prompt tokens a request, answer tokens a request, and the share of the prompt
that an earlier request of the session already held. From those come the size of the first prompt and of what each turn
adds: with p prompt tokens on average over n turns and a share r reusable, each turn adds (1 - r) p, and the first
prompt has p - (n - 1) / 2 times that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from ..errors import BenchError
from .distributions import Distribution, Shape, fixed
from .synthetic import AgentShape


def _from_figures(*, turns: int, prompt: float, output: float, reusable: float, says: str) -> AgentShape:
    added = (1 - reusable) * prompt
    first = prompt - (turns - 1) / 2 * added
    return AgentShape(
        system_tokens=round(first * 0.95),
        task_tokens=fixed(round(first * 0.05)),
        turns=Distribution(Shape.LOGNORMAL, turns, 0.25),
        tool_result_tokens=Distribution(Shape.LOGNORMAL, max(1.0, added - output) * 0.88, 0.5),
        output_tokens=Distribution(Shape.LOGNORMAL, output * 0.92, 0.4),
        gap_s=Distribution(Shape.LOGNORMAL, 1.5, 1.0),
        says=says,
    )


_AGENT_LOAD = AgentShape(
    system_tokens=1300,
    task_tokens=fixed(20),
    turns=fixed(6),
    tool_result_tokens=fixed(150),
    output_tokens=fixed(48),
    gap_s=Distribution(Shape.UNIFORM, 0.0, 0.4),
    says="6 turns, a shared system prompt of 1,300 tokens, 150 new tokens a turn, 48 out, gaps of 0.2 s on average",
)
_AGENTX = msgspec.structs.replace(
    _from_figures(
        turns=43,
        prompt=142_000,
        output=444,
        reusable=0.96,
        says="AgentX: 43 turns (median), 142 K tokens in and 444 out a request, 96% reusable, sub-agents in 44%",
    ),
    subagent_share=0.44,
    fan_out=Distribution(Shape.UNIFORM, 1, 3),
    subagent_turns=Distribution(Shape.LOGNORMAL, 6, 0.5),
)
_CODEX = _from_figures(
    turns=33,
    prompt=45_850,
    output=350,
    reusable=0.942,
    says="Codex on SWE-bench Pro: 33 turns, 131 tokens in for 1 out, 94.2% reusable",
)

PRESETS: Mapping[str, AgentShape] = MappingProxyType(
    {
        "agent-load": _AGENT_LOAD,
        "agent-forks": msgspec.structs.replace(
            _AGENT_LOAD,
            turns=fixed(8),
            fork_share=0.25,
            subagent_share=0.5,
            says="agent-load with a second try for a quarter of the turns, and two sub-agents in half of the sessions",
        ),
        "agentx": _AGENTX,
        "agentx-8k": msgspec.structs.replace(
            _AGENTX.scaled(1 / 45),
            turns=Distribution(Shape.LOGNORMAL, 43, 0.12),
            output_tokens=fixed(16),
            says="agentx with all lengths divided by 45, for models with a context of 8,192 tokens; 16 tokens out",
        ),
        "codex-swebench-pro": _CODEX,
        "codex-8k": msgspec.structs.replace(
            _CODEX.scaled(1 / 20),
            turns=Distribution(Shape.LOGNORMAL, 33, 0.2),
            says="codex-swebench-pro with all lengths divided by 20, for models with a context of 8,192 tokens",
        ),
    }
)


def preset(name: str) -> AgentShape:
    """The preset of that name. Raises BenchError listing what there is."""
    if name not in PRESETS:
        raise BenchError(f"no workload preset is called {name!r}", remedy=f"there are: {', '.join(PRESETS)}")
    return PRESETS[name]
