"""The bases of the callbacks: time, events, logs, initial values."""
