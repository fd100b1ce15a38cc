"""A run's report: what its folder holds, as figures, as one page, and as a model card."""
