"""From observed turns to numbers."""
