"""Explanations: evidence, attention maps, lens, collapse meter."""
