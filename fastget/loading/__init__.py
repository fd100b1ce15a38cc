"""Batches: a pure function of (seed, stream, step)."""
