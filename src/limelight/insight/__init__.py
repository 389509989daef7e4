"""What attention means: measured, not assumed."""
