"""Servers that are started and stopped for a measurement."""
