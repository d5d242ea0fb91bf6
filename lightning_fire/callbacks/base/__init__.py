"""Base classes of the callbacks: progress, events, logs, initial values."""
