"""Weights on disk: safetensors (one file or shards) and GGUF, checked before a byte of them is used."""
