"""What a model attended to: recordings and where they come from."""
