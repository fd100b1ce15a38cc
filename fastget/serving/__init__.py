"""After training: predictions and exported networks, from a checkpoint alone."""

BATCH = 256  # images at a time, unless told: here, where a command line can read it without torch
