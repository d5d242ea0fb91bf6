"""Run a module on batches to come, without side effects."""
