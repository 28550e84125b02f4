"""Sessions in flight: when each turn starts and what becomes of it."""
