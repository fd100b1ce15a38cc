"""What is wrong with a file when all of it is decoded, asked in a process of its own, which a decoder may crash.

There is one such process for each core, so they are light: neither torch nor torchvision is imported here.
"""

from __future__ import annotations

import contextlib
import signal
import warnings
from multiprocessing.connection import Connection

from fastget.data.decode import (
    MAX_PIXELS,
    TAIL,
    Problem,
    decode_all,
    jpeg_warning,
    look_at_ends,
    open_regular,
    size_problem,
)
from fastget.data.formats import size_told, sniff


def inspect(path: str, max_pixels: int = MAX_PIXELS) -> Problem | None:
    """What decoding all of a file shows, after a look at its ends found nothing."""
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError:
        return look_at_ends(path, max_pixels)
    if sniff(data[:TAIL]) != "JPEG":
        return decode_all(path, max_pixels)
    if problem := size_problem(path, size_told("JPEG", data), max_pixels):  # libjpeg itself has no limit
        return problem
    warning = jpeg_warning(data)
    if warning is None:
        return None
    if problem := decode_all(path, max_pixels):  # PIL says why, or decodes it after all
        return problem
    return Problem(path, "corrupt", f"is damaged in mid-stream ({warning})") if warning else None


def serve(asked: Connection, max_pixels: int) -> None:
    """Answer each path with its problem, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
    warnings.simplefilter("ignore")  # PIL's, of odd files: the answer says what is wrong
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            asked.send(inspect(asked.recv(), max_pixels))
