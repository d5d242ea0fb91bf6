"""Run a module on upcoming batches, without side effects."""
