"""What a network says of a list of images, and what that is worth."""
