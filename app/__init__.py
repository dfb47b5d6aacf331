"""The app: search images by words and by images, and see why an image was found."""
