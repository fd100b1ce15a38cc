"""A run on disk: its folder, checkpoints, summary, and where its figures go."""
