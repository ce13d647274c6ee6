"""Charts: what they show, and how they look."""
