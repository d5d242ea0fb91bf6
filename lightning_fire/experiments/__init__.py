"""One recipe, several methods, several seeds: run them, read their logs, print a table, draw a figure."""
