"""The next tokens of a step, chosen on the GPU; see ``sampler`` for what is chosen."""

from __future__ import annotations

import torch

from ....kernels.sampling import RowSampling
from ....kernels.sampling import sample as sample_rows
from ..sampler import SampledToken, bar_stop_tokens, logprobs_of, uniform
from ..sequence import Sequence


def sample_on_device(logits: torch.Tensor, sequences: list[Sequence]) -> list[SampledToken]:
    """As ``sampler.sample``, with one launch and one read for all rows. Equal logits at the edge of a filter all stay,
    and a draw walks the kept tokens in order of their ids: the same distribution, by another path."""
    if not sequences:
        return []
    bar_stop_tokens(logits, sequences)
    token_ids: list[int] = sample_rows(logits, _rows(sequences, logits.device)).tolist()
    return [
        SampledToken(token_id, logprobs_of(logits[row], token_id, sequence.turn.sampling.logprobs))
        for row, (token_id, sequence) in enumerate(zip(token_ids, sequences, strict=True))
    ]


def _rows(sequences: list[Sequence], device: torch.device) -> RowSampling:
    params = [sequence.turn.sampling for sequence in sequences]
    draws = [uniform(p.seed or 0, s.num_tokens) for p, s in zip(params, sequences, strict=True)]
    floats = torch.tensor(
        [[p.temperature for p in params], [p.top_p for p in params], [p.min_p for p in params], draws],
        dtype=torch.float32,
    ).to(device)
    top_k = torch.tensor([p.top_k for p in params], dtype=torch.int32).to(device)
    return RowSampling(floats[0], top_k, floats[1], floats[2], floats[3])
