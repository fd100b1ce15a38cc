"""One run: its parts, its steps, the loop around them."""
