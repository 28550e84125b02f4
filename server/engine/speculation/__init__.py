"""Guesses of what turns will say next, which a step verifies: see ``docs/speculation.md``."""
