"""Recipes read strictly: what is written twice, misspelt or of no use is an error before anything is built."""
