"""Experiments: ablations and studies, and the results page written from them."""
