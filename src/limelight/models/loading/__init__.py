"""Models, weights and tokenizers read from files."""
