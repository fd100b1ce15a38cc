"""Proof on this machine of what was verified elsewhere."""
