"""Grammars of the values that break caches: times, ids, counters, paths, URLs, labels. None knows a case's words."""
