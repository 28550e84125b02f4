"""Repairs: edits of source files, and what a trace would have looked like without its breaks."""
