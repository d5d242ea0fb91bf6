"""Callbacks for other training libraries: Hugging Face `Trainer`, Stable-Baselines3."""
