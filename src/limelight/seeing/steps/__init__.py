"""Every step of a head in numbers."""
