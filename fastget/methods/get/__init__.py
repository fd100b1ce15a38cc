"""GeT: the module for anyone's training loop (`module`), and the method that fastget trains with (`method`)."""
