"""The gallery: which images there are, their embeddings on disk, and the search over them."""
