"""Readers and writers of recorded sessions: one format a file."""
