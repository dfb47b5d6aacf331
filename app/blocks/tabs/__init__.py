"""The app's tabs: a class each, which lays its tab out and connects it when it is made."""
