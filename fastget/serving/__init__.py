"""After training: predictions and exported networks, from a checkpoint alone."""
