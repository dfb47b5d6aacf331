"""Explanations: evidence, attention maps, the view lens, the collapse meter."""
