"""The formulas of all methods and base models as plain functions of tensors, without state, each from its own file. A
public list: nothing in the package imports it, so that it may name what lies above its room."""

from fastget.bases.ape import ape_consistency, ape_explore, ape_mmd, ape_perturbation
from fastget.bases.cdan import cdan_entropy
from fastget.bases.fixbi import (
    fixbi_consistency,
    fixbi_matching,
    fixbi_mixup,
    fixbi_self_penalty,
    fixbi_threshold,
)
from fastget.bases.mixmatch import mixmatch_guess
from fastget.bases.s3d import s3d_kd, s3d_labels, s3d_self, s3d_statistics, s3d_style, s3d_weight
from fastget.methods.aad import aad
from fastget.methods.alpha_power import alpha_power
from fastget.methods.arpm import arpm_weights
from fastget.methods.atdoc_na import neighbour_labels
from fastget.methods.atdoc_nc import nearest_centroid_labels, update_centroids
from fastget.methods.bnm import bnm
from fastget.methods.daln import daln, warm_reversal
from fastget.methods.dann import dann
from fastget.methods.mcc import mcc
from fastget.methods.minent import minent
from fastget.methods.mme import mme
from fastget.methods.pl import pl, sharpen_by_column, weighted_cross_entropy
from fastget.methods.rtnet import rtnet_actor, rtnet_errors, rtnet_rewards
from fastget.methods.safn import hafn, safn
from fastget.methods.scda import scda_mi, scda_pairs
from fastget.methods.shot import shot_im, shot_labels

__all__ = [
    "aad",
    "alpha_power",
    "ape_consistency",
    "ape_explore",
    "ape_mmd",
    "ape_perturbation",
    "arpm_weights",
    "bnm",
    "cdan_entropy",
    "daln",
    "dann",
    "fixbi_consistency",
    "fixbi_matching",
    "fixbi_mixup",
    "fixbi_self_penalty",
    "fixbi_threshold",
    "hafn",
    "mcc",
    "minent",
    "mixmatch_guess",
    "mme",
    "nearest_centroid_labels",
    "neighbour_labels",
    "pl",
    "rtnet_actor",
    "rtnet_errors",
    "rtnet_rewards",
    "s3d_kd",
    "s3d_labels",
    "s3d_self",
    "s3d_statistics",
    "s3d_style",
    "s3d_weight",
    "safn",
    "scda_mi",
    "scda_pairs",
    "sharpen_by_column",
    "shot_im",
    "shot_labels",
    "update_centroids",
    "warm_reversal",
    "weighted_cross_entropy",
]
