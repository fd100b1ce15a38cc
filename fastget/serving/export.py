"""How other programs get a trained network: one file, a `torch.export` program, ONNX, or safetensors.

Either of the first two takes float32 RGB images (N, 3, crop, crop) between 0 and 1 for any N, normalises them itself,
and returns logits (N, C). The file carries the class names and the preprocessing as JSON.
"""

from __future__ import annotations

import importlib.util
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fastget.common.files import made_whole, writing
from fastget.common.preprocessing import Preprocessing
from fastget.common.text import first_line
from fastget.evaluation.infer import ClassMeans
from fastget.loading.pixels import normalise
from fastget.networks.network import Network
from fastget.serving.exported_weights import SUFFIX, write_weights
from fastget.serving.predictor import Predictor, load_predictor

Format = Literal["torch", "onnx", "safetensors"]
SUFFIXES: dict[Format, str] = {"torch": ".pt2", "onnx": ".onnx", "safetensors": SUFFIX}
METADATA = "fastget.json"  # name of the JSON in a torch.export file; its key in an ONNX file is "fastget"
ANY_BATCH = ({0: torch.export.Dim("N", min=1)},)
TOLERANCE = 1e-4  # of the largest logit: float32 sums in another order
EXPORT_ERRORS = (RuntimeError, TypeError, ValueError, AssertionError, KeyError, AttributeError)  # the exporters' own


class ExportFailed(RuntimeError):
    """An export that did not work, or whose outputs are not the checkpoint's."""


class Deployed(nn.Module):
    """Images between 0 and 1 -> logits."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: Network, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(preprocessing.std).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, crop, crop) float32, RGB, 0 to 1 -> (N, C)."""
        _, logits = self.network((images - self.mean) / self.std)
        return logits  # type: ignore[no-any-return]  # a module's call is untyped


def export(
    predictor: Predictor, out: str | Path, format: Format | None = None, source: ClassMeans | None = None
) -> float:
    """Write `out`, whose name tells the format, and load it back; the largest difference of its logits.

    `source`: the class means of the source's features, for safetensors, whose tensors are compared in place of logits.

    Raises ValueError for a wrong name or an absent exporter, ExportFailed if the outputs differ; `out` is written
    only once it has been compared.
    """
    out = Path(out)
    format = choose_format(out, format)
    if format != "safetensors":
        predictor.need_images("be exported as a function of images")
    if predictor.device.type != "cpu":
        raise ValueError(f"expected a predictor on the CPU, got one on {predictor.device}: load it with device='cpu'")
    with writing(out), made_whole(out) as making:
        if format == "safetensors":
            write_weights(making, predictor, metadata(predictor), source)
            again = load_predictor(making)
            mine, theirs = predictor.network.state_dict(), again.network.state_dict()
            if again.classes != predictor.classes or not all(torch.equal(mine[name], theirs[name]) for name in mine):
                raise ExportFailed("what was written is not the checkpoint's network: is the disk sound?")
            return 0.0
        making.write_bytes(_to_torch(predictor) if format == "torch" else _to_onnx(predictor))
        difference, largest = compare(predictor, load_exported(making))
        if not difference <= TOLERANCE * max(1, largest):
            raise ExportFailed(
                f"the exported network's logits differ from the checkpoint's by {difference:.3g} (logits up to "
                f"{largest:.3g}): {out} is not written. Try another --format, or another version of torch"
            )
    return difference


def choose_format(out: Path, format: Format | None) -> Format:
    """The format, by the name's ending unless it is given; both must agree. An absent exporter is an error."""
    endings = ", ".join(f"{suffix} ({name})" for name, suffix in SUFFIXES.items())
    told = next((name for name, suffix in SUFFIXES.items() if out.suffix == suffix), None)
    if told is None or format not in (None, told):
        expected = SUFFIXES[format] if format else f"one of {endings}"
        raise ValueError(f"expected a file whose name ends in {expected}, got {out.name}: change --out")
    if told == "onnx" and (lacking := [name for name in ("onnx", "onnxscript") if not importlib.util.find_spec(name)]):
        raise ValueError(
            f"ONNX needs {' and '.join(lacking)}, which cannot be imported: pip install 'fastget[onnx]' "
            "(in a checkout: pip install -e '.[onnx]'), or export for torch: a name ending in .pt2"
        )
    return told


def metadata(predictor: Predictor) -> dict[str, Any]:
    """What a program needs to use the file."""
    wanted = predictor.preprocessing
    return {
        "classes": list(predictor.classes),
        "input": {"shape": ["N", 3, wanted.crop, wanted.crop], "dtype": "float32", "range": [0, 1], "mode": "RGB"},
        "output": {"shape": ["N", len(predictor.classes)], "meaning": "logits; softmax gives probabilities"},
        "preprocessing": {
            "resize": wanted.resize,  # both sides, antialiased
            "interpolation": wanted.interpolation,
            "crop": wanted.crop,  # at the centre
            "normalised_inside": {"mean": list(wanted.mean), "std": list(wanted.std)},
        },
        "network": predictor.config["network"].get("name"),
        "backbone": predictor.backbone,
        "step": predictor.step,
    }


# --- writing -------------------------------------------------------------------------------------


def _shown(predictor: Predictor) -> tuple[Deployed, tuple[Tensor]]:
    """What is exported, and an example of what it takes."""
    side = predictor.preprocessing.crop
    return Deployed(predictor.network, predictor.preprocessing), (torch.zeros(2, 3, side, side),)


def _to_torch(predictor: Predictor) -> bytes:
    content = io.BytesIO()
    try:
        program = torch.export.export(*_shown(predictor), dynamic_shapes=ANY_BATCH)
        torch.export.save(program, content, extra_files={METADATA: json.dumps(metadata(predictor))})
    except EXPORT_ERRORS as error:
        raise _failed("torch.export", predictor, error) from error
    return content.getvalue()


def _to_onnx(predictor: Predictor) -> bytes:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, on its own internals
            program = torch.onnx.export(
                *_shown(predictor), dynamo=True, dynamic_shapes=ANY_BATCH,
                input_names=["images"], output_names=["logits"], verbose=False,
            )  # fmt: skip
        assert program is not None  # for dynamo=True
        program.model.metadata_props["fastget"] = json.dumps(metadata(predictor))
        content: bytes = program.model_proto.SerializeToString()
    except EXPORT_ERRORS as error:
        raise _failed("torch.onnx.export", predictor, error) from error
    return content


def _failed(what: str, predictor: Predictor, error: Exception) -> ExportFailed:
    name = predictor.config["network"].get("name")
    return ExportFailed(f"{what} cannot export network.name={name}: {first_line(error)}. Try the other --format")


# --- reading and comparing -----------------------------------------------------------------------


def load_exported(file: Path) -> Callable[[Tensor], Tensor]:
    """An exported file as a function: images (N, 3, crop, crop) -> logits (N, C)."""
    if file.suffix == SUFFIXES["torch"]:
        module = torch.export.load(file).module()
        return lambda images: module(images)
    if importlib.util.find_spec("onnxruntime"):
        session = importlib.import_module("onnxruntime").InferenceSession(file, providers=["CPUExecutionProvider"])
        return lambda images: torch.from_numpy(np.asarray(session.run(None, {"images": images.numpy()})[0]))
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(str(file))  # slow, but a part of onnx
    return lambda images: torch.from_numpy(np.asarray(evaluator.run(None, {"images": images.numpy()})[0]))


@torch.inference_mode()
def compare(predictor: Predictor, exported: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """(largest difference, largest logit) on random images, in batches of several sizes."""
    generator = torch.Generator().manual_seed(0)
    differences, largest = [], []
    for count in (1, 2, 5):
        side = predictor.preprocessing.crop
        levels = torch.randint(0, 256, (count, side, side, 3), generator=generator, dtype=torch.uint8)
        _, expected = predictor.network(normalise(levels, predictor.preprocessing))
        try:
            got = exported((levels.float() / 255).permute(0, 3, 1, 2).contiguous())
        except EXPORT_ERRORS as error:
            raise ExportFailed(f"the exported network fails on a batch of {count}: {first_line(error)}") from error
        if got.shape != expected.shape:
            raise ExportFailed(f"expected logits of shape {tuple(expected.shape)}, got {tuple(got.shape)}")
        differences.append(float((got - expected).abs().max()))
        largest.append(float(expected.abs().max()))
    return max(differences), max(largest)
