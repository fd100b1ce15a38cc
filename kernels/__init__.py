"""GeT's fused Triton kernels, under the names and signatures of `fastget.reference`."""

if __name__ != "fastget.kernels":
    raise ImportError(
        f"this package is imported as 'fastget.kernels', not as {__name__!r}: "
        "write `from fastget import kernels` (a bare `kernels` is another project's name)"
    )
