"""Results for people: tables, plots, a page."""
