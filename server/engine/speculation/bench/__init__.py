"""Benchmarks of speculation: ``python -m sessile.server.engine.speculation.bench --help``."""
