"""A model whose next token is a checksum of all tokens in its KV: any wrong block, slot or position shows at once."""

from __future__ import annotations

import torch

from sessile.kernels.attention_batch import AttentionBatch
from sessile.kernels.kv_layout import KVLayout, keys_view

VOCAB = 97


def prompt(length: int, seed: int = 0) -> list[int]:
    """Tokens without a pattern; those of two seeds differ from the first one on."""
    return [(seed * 31 + i * i + 5 * i) % VOCAB for i in range(length)]


def next_token(tokens: list[int]) -> int:
    return sum((token + 1) * (position + 3) for position, token in enumerate(tokens)) % VOCAB


def continuation(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class ChecksumModel:
    vocab_size = VOCAB
    max_position = 4096

    def __init__(self) -> None:
        self.computed: list[int] = []  # tokens computed in each step

    def kv_layout(self, block_size: int) -> KVLayout:
        return KVLayout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=block_size, dtype=torch.float32)

    def forward(self, token_ids: torch.Tensor, batch: AttentionBatch, kv_pool: torch.Tensor) -> torch.Tensor:
        self.computed.append(len(token_ids))
        keys = keys_view(kv_pool, 0, 2)  # [blocks, 1, block_size / 16, 16, 2, 1]
        slots = batch.slot_mapping
        block_size = kv_pool.shape[-1] // 2
        flat = keys[:, 0, :, :, :, 0]  # [blocks, block_size / 16, 16, 2]
        blocks, offsets = slots // block_size, slots % block_size
        flat[blocks, offsets // 16, offsets % 16, 0] = token_ids.float()
        flat[blocks, offsets // 16, offsets % 16, 1] = batch.positions.float()
        rows = []
        for s in range(batch.num_sequences):
            table = batch.block_tables[s].long()
            start, stop = int(batch.query_start[s]), int(batch.query_start[s + 1])
            context = int(batch.context_lens[s])
            held = flat[table].reshape(-1, 2)[:context]
            assert torch.equal(held[:, 1], torch.arange(context).float()), "a token's KV is at the wrong place"
            terms = ((held[:, 0].double() + 1) * (held[:, 1].double() + 3)).cumsum(0) % VOCAB
            rows.append(terms[context - (stop - start) :])
        return torch.cat(rows)[:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        assert len(hidden), "a model is not asked for the logits of nothing"
        return torch.nn.functional.one_hot(hidden[:, 0].long(), VOCAB).float()
