"""How long a step takes in the engine as it serves: with its scheduler, its look-ahead and its reports."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

from ...engine.core import EngineCore
from ...engine.messages import SubmitTurn
from ...engine.sampling_params import SamplingParams

PROMPT_TOKENS = 64
_STEPS = 80  # of which the first half warms up
_MOST_STEPS = 2000


def seconds_a_step(core: EngineCore, turns: int, clock: Callable[[], float]) -> float:
    """Median seconds between the tokens of two steps in which all of ``turns`` turns decode, greedily."""
    sampling = SamplingParams(temperature=0.0, max_tokens=_STEPS + PROMPT_TOKENS * turns, ignore_eos=True)
    for number in range(turns):
        prompt = [(31 * number + 7 * place) % 1000 for place in range(PROMPT_TOKENS)]
        core.submit(SubmitTurn(turn_id=str(number), token_ids=prompt, sampling=sampling))
    ends: list[float] = []
    for _ in range(_MOST_STEPS):
        outputs = core.step()
        if len(outputs) == turns:
            ends.append(clock())
        if len(ends) > _STEPS:
            break
    for number in range(turns):
        core.abort(str(number))
    while core.has_work:
        core.step()
    times = [after - before for before, after in itertools.pairwise(ends)]
    return statistics.median(times[len(times) // 2 :])
