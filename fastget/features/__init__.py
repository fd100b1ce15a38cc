"""Features of every image, made once by a backbone, to adapt on."""
