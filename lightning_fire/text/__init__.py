"""Text to token files: `lightning-fire prepare-text`."""
