"""Strict reading of recipes: duplicate, misspelt or unused keys raise an error before anything is built."""
