"""Where a run's figures go: files, TensorBoard, the terminal."""
