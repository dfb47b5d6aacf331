"""Image and text encoders by name: a run folder, a pack, a Hugging Face folder, or a Hub id."""
