"""Readers: one a format, from files at hand to requests."""
