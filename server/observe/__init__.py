"""What the front knows of its turns: counts, times, timelines and explained misses. It changes nothing that it sees."""
