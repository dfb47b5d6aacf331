"""Galleries that lie in Qdrant, a vector database of its own; see docs/qdrant.md.

`address` reads where one is and needs nothing; the others need the package qdrant-client.
"""
