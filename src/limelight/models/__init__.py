"""Encoders, decoders and Transformers, and real checkpoints."""
