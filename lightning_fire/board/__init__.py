"""The board: fixed tasks, and one rule for tuning, training and comparing methods."""
