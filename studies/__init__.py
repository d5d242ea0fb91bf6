"""Studies on streams of tasks: run one by `python -m studies.<name>`."""
