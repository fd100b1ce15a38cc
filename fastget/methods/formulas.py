"""The methods' formulas as plain functions of tensors, without state, each from its method's file."""

from fastget.methods.atdoc_na import neighbour_labels
from fastget.methods.atdoc_nc import nearest_centroid_labels, update_centroids
from fastget.methods.bnm import bnm
from fastget.methods.cdan import cdan_entropy
from fastget.methods.mcc import mcc
from fastget.methods.minent import minent
from fastget.methods.mixmatch import mixmatch_guess
from fastget.methods.mme import mme
from fastget.methods.pl import pl, sharpen_by_column, weighted_cross_entropy

__all__ = [
    "bnm",
    "cdan_entropy",
    "mcc",
    "minent",
    "mixmatch_guess",
    "mme",
    "nearest_centroid_labels",
    "neighbour_labels",
    "pl",
    "sharpen_by_column",
    "update_centroids",
    "weighted_cross_entropy",
]
