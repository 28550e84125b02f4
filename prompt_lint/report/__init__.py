"""Writers: one a format, from a report to text."""
