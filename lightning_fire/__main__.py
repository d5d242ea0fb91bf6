"""`python -m lightning_fire` is `lightning-fire`."""

from lightning_fire.cli import console

if __name__ == "__main__":
    console()
