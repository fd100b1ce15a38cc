"""Backbone, bottleneck, classifier."""
