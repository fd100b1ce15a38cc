"""The check of image files, and what it remembers."""
