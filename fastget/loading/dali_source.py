"""What DALI is handed for a step: the encoded images, read and looked at on the host, and how each is cropped.

DALI must never see a file whose header it cannot parse: the error that it then raises races with its own threads, and
with 64 images a batch the process crashes about every third time (DALI 2.4: text, a GIF, a cut header or a cut PNG
among good images). So files are read here, in threads and a step ahead, and only those whose structure is sound go on.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastget.data.decode import BadImage, read_sound
from fastget.loading.pixels import draw_readable, read_square
from fastget.loading.sampling import Draw
from fastget.loading.stream import BadFiles, Stream

Inputs = tuple[list[NDArray[Any]], ...]  # what a step hands to the pipeline
Ready = tuple[int, Draw, list[NDArray[np.uint8]]]  # step, what was drawn in the end, the encoded images


def cut_in_resize(stream: Stream) -> bool:
    """Whether no more of the square is made than is shown, a quarter less to resize. Two views share one square."""
    return stream.sampler.views == 1 and stream.packed is None and stream.edges == "plain"


class ExternalSource:
    """The pipeline's source, from step `start` on. `given` are the steps that it has not returned yet."""

    def __init__(self, stream: Stream, bad: BadFiles, start: int, workers: int) -> None:
        self._stream, self._bad = stream, bad
        self._pool, self._ahead = ThreadPoolExecutor(workers), ThreadPoolExecutor(1)
        self.given: list[tuple[int, Draw]] = []
        self._next: Future[Ready | None] = self._ahead.submit(self._prepare, start)

    def close(self) -> None:
        for pool in (self._ahead, self._pool):
            pool.shutdown(cancel_futures=True)

    def __call__(self, iteration: int) -> Inputs:
        ready = self._next.result()
        if ready is None:
            raise StopIteration
        step, draw, encoded = ready
        self.given.append((step, draw))
        self._next = self._ahead.submit(self._prepare, step + 1)
        inputs: list[list[Any]] = [encoded]
        for view in draw.views:
            inputs += [*self._places(view), list(view.flip.astype(np.int32))]
        return tuple(inputs)

    def _places(self, view: Draw) -> list[list[Any]]:
        """Where each image is cut: the window's corners (y, x) as shares of the square, or x and y as shares of the
        margin, as the operator that cuts it wants them."""
        made = self._stream.preprocessing
        if cut_in_resize(self._stream):
            corners = np.stack([view.y, view.x], axis=1)
            return [list((at / made.resize).astype(np.float32)) for at in (corners, corners + made.crop)]
        share = np.float32(1 / made.margin if made.margin else 0)
        return [list((edge * share).astype(np.float32)) for edge in (view.x, view.y)]

    def _prepare(self, step: int) -> Ready | None:
        """The next batch that holds an image, at `step` or, in evaluation, after it; none at the end."""
        while True:
            try:
                draw = draw_readable(self._stream, self._bad, step)
            except StopIteration:
                return None
            if not len(draw.index):  # an evaluation batch of nothing but bad files
                step += 1
                continue
            encoded = list(self._pool.map(self._encoded, [step] * len(draw.index), draw.index.tolist()))
            if all(image is not None for image in encoded):
                return step, draw, [image for image in encoded if image is not None]

    def _encoded(self, step: int, index: int) -> NDArray[np.uint8] | None:
        """An image's bytes, from the cache or its file; none if it is bad, which is noted: it is drawn no more."""
        packed = self._stream.packed
        try:
            if packed is None:
                sound = read_sound(self._stream.images.file(index), self._stream.max_pixels)
                return np.frombuffer(sound, dtype=np.uint8)
            record = packed.encoded(index)
            return packed.cache.encoding.encode(read_square(self._stream, index)) if record is None else record
        except BadImage as error:
            self._bad.add(index, step, error)
            return None


def note_bad_files(stream: Stream, bad: BadFiles, source: ExternalSource) -> bool:
    """DALI does not always name the file that it failed on: note the bad ones of the steps under way."""
    before = len(bad)
    for step, draw in source.given:
        for index in draw.index.tolist():
            try:
                read_square(stream, index)
            except BadImage as error:
                bad.add(index, step, error)
    return len(bad) > before
