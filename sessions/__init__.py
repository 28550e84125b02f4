"""Sessions: the token log, its rules and its store, and the prefix cache in ``sessions.cache``."""
