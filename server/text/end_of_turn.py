"""Names under which models know the token that ends a turn."""

from __future__ import annotations

END_OF_TURN_NAMES = (
    "<|im_end|>",  # ChatML: SmolLM2, Qwen
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",  # Llama 3.1: the turn goes on after a tool's answer
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eot|>",
)
