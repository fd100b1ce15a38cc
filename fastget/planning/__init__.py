"""A model of a run: how fast it would be, and what would bound it, on cards that are not here."""
