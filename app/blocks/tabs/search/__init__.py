"""The Search tab: words to images, an image to captions and images, and a look inside."""
