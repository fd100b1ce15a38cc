"""Triton's interpreter runs the kernels on CPU tensors; it must be chosen before triton is first imported."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
