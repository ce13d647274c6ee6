"""What the store promises, on every database."""
