"""Packs: open packs and collections, downloads, uploads, recorded results, descriptions."""
