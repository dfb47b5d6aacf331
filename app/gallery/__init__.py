"""The gallery: its images, their embeddings on disk, and the search over them."""
