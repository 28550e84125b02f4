"""Text and tokens: the tokenizer, the chat template, the incremental detokeniser and stop strings. No torch."""
