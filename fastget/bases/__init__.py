"""Base models: who owns a step's forward pass."""
