"""Galleries: files, decoding, embeddings on disk and in memory, search."""
