"""What the kernels cost, found without a GPU: what the compiler makes of them, launches, bytes. No step imports it."""
