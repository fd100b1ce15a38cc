"""Target features in the plane, before and after adaptation: UMAP as in the paper, by umap-learn where it is installed
(`pip install fastget[report]`), t-SNE elsewhere, or PCA.

Shapes: M images of the run's sample, D feature width.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastget.report.detail import OLDER
from fastget.report.figure import Figure
from fastget.report.read import Run

Projection = Literal["auto", "umap", "tsne", "pca"]  # auto: UMAP where umap-learn is installed, else t-SNE
NAMES: dict[Projection, str] = {"umap": "UMAP", "tsne": "t-SNE", "pca": "PCA"}
POINTS = 1000
FEW = 30  # images that are too few for t-SNE and UMAP


def chosen(projection: Projection) -> Projection:
    """What `auto` stands for here. ValueError if umap-learn is asked for and missing."""
    there = find_spec("umap") is not None
    if projection == "umap" and not there:
        raise ValueError("--projection umap needs umap-learn, which is not installed: pip install 'fastget[report]'")
    return projection if projection != "auto" else "umap" if there else "tsne"


def embedding(run: Run, projection: Projection = "auto", points: int = POINTS) -> Figure:
    """Both panels, with each point's label and prediction."""
    figure = Figure("embedding", "Target features", "scatter")
    samples = {which: run.sample(which) for which in ("before", "after")}
    if samples["after"] is None or not run.classes:
        return figure.empty(f"the run {OLDER}" if run.classes else "the run has not ended")
    if not all(np.isfinite(sample["features"]).all() for sample in samples.values() if sample is not None):
        return figure.empty("some features are not finite")
    panels, projection = [], chosen(projection)
    for which, sample in samples.items():
        if sample is None:
            continue
        drawn = np.sort(np.random.default_rng(0).permutation(len(sample["place"]))[:points])
        kept = {name: values[drawn] for name, values in sample.items()}
        used: Projection = "pca" if len(kept["features"]) < FEW else projection
        plane = project(kept["features"].astype(np.float32), used).round(4)
        sure = kept["confidence"].astype(np.float64).round(3)
        columns = (part.tolist() for part in (plane, kept["labels"], kept["predictions"], sure))
        dots = [[*place, *rest] for place, *rest in zip(*columns, strict=True)]
        panels.append({"name": f"{which} adaptation", "points": dots})
    labelled = all(point[2] >= 0 for panel in panels for point in panel["points"])
    words = f"{NAMES[used]} of the bottleneck's features, {len(panels[-1]['points']):,} target images"
    words += ", coloured by label." if labelled else ", coloured by prediction: there are no labels."
    if samples["before"] is None:
        words += " No features before adaptation: there was no warm-up, or the method never starts."
        panels[0]["name"] = "final model"
    return figure.of(words, {"classes": run.classes, "panels": panels, "labelled": labelled})


def project(features: NDArray[np.float32], projection: Projection) -> NDArray[np.float64]:
    """(M, D) -> (M, 2) between 0 and 1, by the angle between features, which is what the classifiers see."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    plane = np.asarray(_fitted(unit, projection), dtype=np.float64)
    low, high = plane.min(0), plane.max(0)
    found: NDArray[np.float64] = (plane - low) / np.maximum(high - low, 1e-12)
    return found


def _fitted(unit: NDArray[np.float32], projection: Projection) -> Any:
    if projection == "umap":
        from umap import UMAP

        return UMAP(n_neighbors=min(15, len(unit) - 1), min_dist=0.3, random_state=0, n_jobs=1).fit_transform(unit)
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if projection == "pca":
        return PCA(2, random_state=0, svd_solver="full").fit_transform(unit)
    narrow = PCA(min(50, *unit.shape), random_state=0, svd_solver="full").fit_transform(unit)
    return TSNE(2, init="pca", random_state=0, perplexity=min(30, (len(unit) - 1) / 3)).fit_transform(narrow)
