"""Images resized once, in large files."""
