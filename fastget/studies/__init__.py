"""Several runs put beside each other."""
