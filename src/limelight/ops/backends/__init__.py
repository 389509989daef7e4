"""What computes attention."""
