"""What models attend to: recordings of our own models and of others, and every step in numbers."""
