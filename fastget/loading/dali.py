"""What DALI does: read, decode, resize, crop, mirror, normalise; on the GPU or the processor from one description.

The images, crops and mirrors of a step come from the stream's sampler through an external source, so that DALI has no
state of its own and starts at any step. On a GPU JPEGs are decoded by `mixed`, and everything after that stays there;
the images come out channels last and are handed to torch without a copy (DALI does not reuse an output that is held).
Where the run's network works in a half type, the pipeline hands over bytes, a quarter of what float32 takes, and torch
normalises them into that type: what autocast would make of float32 images, without writing those.

A pipeline that fails to decode one image is lost. Then the step's batch is made on the host, which names the bad file
and draws another image, and a new pipeline starts at the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fastget.common.choices import Interpolation
from fastget.common.errors import RunFailed
from fastget.common.preprocessing import Preprocessing
from fastget.data.decode import BadImage, read_sound
from fastget.loading.pixels import DrawnBatch, draw_readable, normalise, read_batch, read_square
from fastget.loading.sampling import Draw
from fastget.loading.stream import BadFiles, Stream

UNEXPLAINED = 3  # failures in a row that no file explains, before DALI's own error is raised
PREFETCH = 2  # batches that DALI makes ahead of the one in use
# Said here, since DALI's own values move from release to release (hw_decoder_load went from .65 to .90 and back). The
# hardware's share of the JPEGs: an A100 decodes most with three quarters of them there, and the rest by CUDA.
HW_DECODER_LOAD = 0.75
# Bytes that the decoder takes at once, so that it need not grow for every image larger than those before: photographs
# of up to 11 megapixels.
DEVICE_PADDING, HOST_PADDING = 32 << 20, 16 << 20


def dali_batches(stream: Stream, bad: BadFiles, device: torch.device, workers: int, start: int) -> Iterator[DrawnBatch]:
    """Normalised batches on the device, from step `start` on."""
    gpu = device.type == "cuda"
    unexplained = 0
    while True:
        source = ExternalSource(stream, bad, start, workers)
        try:
            pipeline = define(stream, source, gpu=gpu, device_id=(device.index or 0) if gpu else None, workers=workers)
            pipeline.build()
            while True:
                outputs = pipeline.run(torch.cuda.current_stream(device).cuda_stream) if gpu else pipeline.run()
                views = [_finished(stream, from_dlpack(out.as_tensor())) for out in outputs]
                step, draw = source.given.pop(0)
                start, unexplained = step + 1, 0
                yield draw, views
        except StopIteration:
            return
        except RuntimeError as error:
            unexplained = 0 if note_bad_files(stream, bad, source) else unexplained + 1
            if unexplained > UNEXPLAINED or not source.given:
                raise RunFailed(
                    f"DALI failed at step {start} of {stream.images.name}, and every file of it can be read otherwise: "
                    f"{error}. Use data.loader=torchvision"
                ) from error
        finally:
            source.close()
        step = source.given[0][0]
        with ThreadPoolExecutor(workers) as pool:
            draw, views = read_batch(stream, bad, step, pool, workers)
        start = step + 1
        yield draw, [_finished(stream, view.to(device)) for view in views]


def _finished(stream: Stream, images: Tensor) -> Tensor:
    """(b, H, W, 3) -> (b, 3, H, W): normalised, unless the pipeline has done that."""
    if images.dtype != torch.uint8:
        return images.permute(0, 3, 1, 2)
    return normalise(images, stream.preprocessing, stream.image_type(gpu=images.device.type == "cuda"))


# --- the description -----------------------------------------------------------------------------


def define(stream: Stream, source: ExternalSource, *, gpu: bool, device_id: int | None, workers: int) -> Any:
    """The pipeline of a stream, not yet built."""
    try:
        from nvidia.dali import Pipeline, fn, types
    except ImportError as error:
        raise ValueError(
            f"data.loader=dali needs NVIDIA DALI, which cannot be imported ({error}): "
            "pip install nvidia-dali-cuda130, or use data.loader=torchvision"
        ) from error
    wanted = stream.preprocessing
    views = stream.sampler.views
    in_resize = cut_in_resize(stream)
    as_bytes = stream.image_type(gpu=gpu) != torch.float32
    normal: dict[str, Any] = {
        "dtype": types.FLOAT,
        "mean": [255 * m for m in wanted.mean],
        "std": [255 * s for s in wanted.std],
    }
    pipeline = Pipeline(
        batch_size=stream.sampler.batch_size,
        num_threads=workers,
        device_id=device_id,
        prefetch_queue_depth=PREFETCH,
        exec_dynamic=True,  # an output that is held is not written to again
    )
    with pipeline:
        given, *crops = fn.external_source(
            source=source,
            num_outputs=1 + 3 * views,
            batch=True,
            dtype=[types.UINT8, *([types.FLOAT, types.FLOAT, types.INT32] * views)],
            ndim=[1, *([int(in_resize), int(in_resize), 0] * views)],
        )
        image = fn.decoders.image(
            given,
            device="mixed" if gpu else "cpu",
            output_type=types.RGB,
            adjust_orientation=False,
            hw_decoder_load=HW_DECODER_LOAD,
            device_memory_padding=DEVICE_PADDING,
            host_memory_padding=HOST_PADDING,
        )
        if stream.packed:
            square = image
        elif in_resize:
            square = _resize(image, wanted, (crops[0], crops[1]))
        else:
            square = _resize_exactly(image, wanted) if stream.edges == "exact" else _resize(image, wanted)
        outputs = [
            fn.crop_mirror_normalize(
                square,
                crop=(wanted.crop, wanted.crop),
                mirror=flip,
                output_layout="HWC",
                **({} if in_resize else {"crop_pos_x": x, "crop_pos_y": y}),
                **({"dtype": types.UINT8} if as_bytes else normal),
            )
            for x, y, flip in zip(*(crops[k::3] for k in range(3)), strict=True)
        ]
        pipeline.set_outputs(*outputs)
    return pipeline


def _resize(image: Any, wanted: Preprocessing, window: tuple[Any, Any] | None = None) -> Any:
    """To a square, or to the window of it between two corners (y, x), shares of the image; antialiased, in levels.

    Where a filter reaches over the image's edge, DALI repeats the edge's pixels and PIL renormalises what lies inside.
    They differ in the outermost row and column of a bilinear square, and by a level at most everywhere else.
    """
    from nvidia.dali import fn, types

    side = wanted.crop if window else wanted.resize
    roi = {"roi_start": window[0], "roi_end": window[1], "roi_relative": True} if window else {}
    return fn.resize(image, size=[side, side], interp_type=_filter(types, wanted.interpolation), antialias=True, **roi)


def _filter(types: Any, interpolation: Interpolation) -> Any:
    return types.INTERP_CUBIC if interpolation == "bicubic" else types.INTERP_LINEAR


def _resize_exactly(image: Any, wanted: Preprocessing) -> Any:
    """To the square with PIL's edges, at two to three times the cost.

    The image is framed in black, resized within the frame, and divided by what became of a white row and column in the
    same frame. A cubic filter reaches twice as far, and beyond black and white, where PIL clips.
    """
    from nvidia.dali import fn, math, types

    side, cubic = wanted.resize, wanted.interpolation == "bicubic"

    def framed(part: Any, frame: Any, inner: Any, size: list[int]) -> Any:
        black = fn.slice(
            part, start=-frame, shape=inner + 2 * frame, axes=[0, 1], out_of_bounds_policy="pad", fill_values=0
        )
        start, end = (fn.cast(corner, dtype=types.FLOAT) for corner in (frame, frame + inner))
        return fn.resize(
            black,
            size=size,
            roi_start=start,
            roi_end=end,
            interp_type=_filter(types, wanted.interpolation),
            antialias=True,
            dtype=types.FLOAT,
        )

    down, right = np.array([1, 0], dtype=np.int32), np.array([0, 1], dtype=np.int32)
    inner = fn.slice(image.shape(dtype=types.INT32), start=0, end=2, axes=[0])  # height, width
    frame = (inner // side + 2) * (2 if cubic else 1)  # wider than the filter reaches
    white = image | np.uint8(255)
    column = framed(fn.slice(white, start=0, end=1, axes=[1]), frame * down, inner * down + right, [side, 1])
    row = framed(fn.slice(white, start=0, end=1, axes=[0]), frame * right, inner * right + down, [1, side])
    square = framed(image, frame, inner, [side, side]) * (np.float32(255) / column) * (np.float32(255) / row)
    return math.clamp(square, 0, 255) if cubic else square


# --- what it is handed -----------------------------------------------------------------------------


Inputs = tuple[list[NDArray[Any]], ...]  # what a step hands to the pipeline
Ready = tuple[int, Draw, list[NDArray[np.uint8]]]  # step, what was drawn in the end, the encoded images


def cut_in_resize(stream: Stream) -> bool:
    """Whether no more of the square is made than is shown, a quarter less to resize. Two views share one square."""
    return stream.sampler.views == 1 and stream.packed is None and stream.edges == "plain"


class ExternalSource:
    """The encoded images of each step from `start` on, and how each is cut. `given` are the steps not yet returned.

    DALI must never see a file whose header it cannot parse: the error that it then raises races with its own threads,
    and with 64 images a batch the process crashes about every third time (DALI 2.4: text, a GIF, a cut header or a cut
    PNG among good images). So files are read here, in threads and a step ahead, and only sound ones are passed on.
    """

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
        wanted = self._stream.preprocessing
        if cut_in_resize(self._stream):
            corners = np.stack([view.y, view.x], axis=1)
            return [list((at / wanted.resize).astype(np.float32)) for at in (corners, corners + wanted.crop)]
        share = np.float32(1 / wanted.margin if wanted.margin else 0)
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
