"""What all methods have in common."""
