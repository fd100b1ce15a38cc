"""A process that decodes the files it is told to, one by one, and says what is wrong with each.

A decoder that crashes takes a worker with it, not the check. There is one for each core, so they are light: neither
torch nor torchvision is imported here.

One argument: data.max_pixels. Lines in: a path as JSON. Lines out: `null`, or `[kind, reason]`, as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings

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


def main(max_pixels: int = MAX_PIXELS) -> None:
    warnings.simplefilter("ignore")  # PIL's, of odd files: the answer says what is wrong
    for line in sys.stdin:
        problem = inspect(json.loads(line), max_pixels)
        print(json.dumps([problem.kind, problem.reason] if problem else None), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
