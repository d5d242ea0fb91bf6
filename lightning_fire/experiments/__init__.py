"""Comparisons of methods on a recipe with several seeds: train, read logs, print a table, draw a figure."""
