"""The board: fixed tasks and one rule, by which methods are tuned, trained and compared."""
