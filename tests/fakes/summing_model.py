"""A model whose hidden state is the sum of the tokens seen so far, kept in the pool as a GPU's kernels would: slots
below 0 are not written, and a sequence that is not there has no tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from sessile.kernels.attention_batch import AttentionBatch
from sessile.kernels.kv_layout import KVLayout, KVOrder

VOCAB = 101


def next_token(tokens: list[int]) -> int:
    return sum(tokens) % VOCAB


def continuation(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class SummingModel:
    vocab_size = VOCAB
    max_position = 64

    def __init__(self) -> None:
        self.rows: list[int] = []  # of each forward pass

    def kv_layout(self, block_size: int) -> KVLayout:
        return KVLayout(1, 1, 2, block_size, torch.float32, KVOrder.PLAIN)

    def forward(self, token_ids: Tensor, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
        self.rows.append(len(token_ids))
        block_size = kv_pool.shape[-1] // 2
        stored = kv_pool[:, 0, 0, 0].view(-1, block_size, 2)  # [blocks, block_size, 2]
        written = batch.slot_mapping >= 0
        slots = batch.slot_mapping[written]
        stored[slots // block_size, slots % block_size, 0] = token_ids[written].float()
        hidden = torch.full((len(token_ids), 1), float("nan"))
        for s in range(batch.num_sequences):
            first, last = int(batch.query_start[s]), int(batch.query_start[s + 1])
            context = int(batch.context_lens[s])
            table = batch.block_tables[s].long()
            place = torch.arange(context)
            seen = stored[table[place // block_size], place % block_size, 0].cumsum(0)
            if context:
                hidden[first:last, 0] = seen[context - (last - first) :]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        token = hidden[:, 0].nan_to_num().long() % VOCAB
        return torch.nn.functional.one_hot(token, VOCAB).float()
