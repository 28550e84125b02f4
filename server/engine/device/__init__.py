"""The engine's GPU: graphs, buffers, streams and memory, behind an interface small enough to be faked in tests."""
