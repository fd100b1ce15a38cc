"""A process that decodes the files it is told to, one by one, and says what is wrong with each.

libjpeg goes on after damage in mid-stream and only prints a warning, which PIL and DALI swallow; torchvision's decoder
lets it through to file descriptor 2. That belongs to a whole process, so the check runs these workers, which turn it
into a file, and reads there after each image. A decoder that crashes takes a worker with it, not the check.

Lines in: a path as JSON. Lines out: `null`, or `[kind, reason]`, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from typing import IO

import torch

from fastget.data.decode import TAIL, Problem, decode_all, look, sniff
from fastget.data.jpeg import decoder


def inspect(path: str, said: IO[bytes]) -> Problem | None:
    """What decoding all of a file shows, after a look at its ends found nothing; `said` is behind descriptor 2."""
    try:
        with open(path, "rb") as file:
            data = bytearray(file.read())
    except OSError:
        return look(path)
    if sniff(bytes(data[:TAIL])) != "JPEG":
        return decode_all(path)
    warning = _jpeg_warning(data, said)
    if warning is None:
        return None
    if problem := decode_all(path):
        return problem
    return Problem(path, "corrupt", f"is damaged in mid-stream ({warning})") if warning else None


def _jpeg_warning(data: bytearray, said: IO[bytes]) -> str | None:
    """What libjpeg said about an image: none if it decoded it in silence, empty if it gave up."""
    if decoder is None:
        return ""
    try:
        decoder(torch.frombuffer(data, dtype=torch.uint8))
    except RuntimeError:  # PIL will say why, or decode it after all
        return ""
    if not said.seek(0, os.SEEK_END):
        return None
    said.seek(0)
    words = said.read().decode(errors="replace").strip()
    said.seek(0)
    said.truncate()
    return words.splitlines()[0] if words else None


def main() -> None:
    warnings.simplefilter("ignore")  # PIL's, which would look like the decoder's
    torch.set_num_threads(1)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        for line in sys.stdin:
            problem = inspect(json.loads(line), said)
            print(json.dumps([problem.kind, problem.reason] if problem else None), flush=True)


if __name__ == "__main__":
    main()
