"""Replays traces through the engine's own scheduler on a clock that only steps move: ``python -m
sessile.server.engine.simulator``."""
