"""Base classes of all methods, and the parts that they share."""
