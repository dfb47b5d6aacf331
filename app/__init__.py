"""The app: a gallery to search by words and pictures, and a look inside what was found."""
