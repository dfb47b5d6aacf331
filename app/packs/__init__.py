"""Open packs and collections, downloads, uploads, descriptions and recorded results of packs."""
