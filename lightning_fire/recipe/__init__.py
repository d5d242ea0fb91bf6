"""Strict reading of recipes: duplicate, misspelt or unused keys are errors before anything is built."""
