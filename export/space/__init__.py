"""A Hugging Face Space of the app: `python -m export.space --out DIR`; see `build`."""
