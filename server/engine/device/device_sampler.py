"""The next tokens of a step, chosen on the GPU; see ``sampler`` for what is chosen."""

from __future__ import annotations

import torch

from ....kernels.sampling import RowSampling
from ....kernels.sampling import sample as sample_rows
from ..grammar_masks import StepMasks
from ..sampler import AskingRows, SampledToken, SampleRow, uniform


def sample_on_device(logits: torch.Tensor, rows: list[SampleRow], masks: StepMasks | None = None) -> list[SampledToken]:
    """As ``sampler.sample``, with one launch and one read for all rows. Equal logits at the edge of a filter all stay,
    and a draw walks the kept tokens in order of their ids: the same distribution, by another path."""
    if not rows:
        return []
    asking = AskingRows(logits, rows, masks)
    return asking.with_logprobs(sample_rows(logits, _row_sampling(rows, logits.device)).tolist())


def _row_sampling(rows: list[SampleRow], device: torch.device) -> RowSampling:
    params = [row.params for row in rows]
    draws = [uniform(p.seed or 0, row.position) for p, row in zip(params, rows, strict=True)]
    floats = torch.tensor(
        [[p.temperature for p in params], [p.top_p for p in params], [p.min_p for p in params], draws],
        dtype=torch.float32,
    ).to(device)
    top_k = torch.tensor([p.top_k for p in params], dtype=torch.int32).to(device)
    return RowSampling(floats[0], top_k, floats[1], floats[2], floats[3])
