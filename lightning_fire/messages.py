"""The logger `lightning_fire`, which shows what the methods do in a training."""

import logging

from lightning_utilities.core.rank_zero import rank_zero_only

logger = logging.getLogger("lightning_fire")
logger.setLevel(logging.INFO)
if not logging.getLogger().hasHandlers():  # as Lightning's own: shown, unless the program configures logging
    logger.addHandler(logging.StreamHandler())
    logger.propagate = False


@rank_zero_only
def inform(message: str) -> None:
    """Log a message at level INFO, on rank 0 alone."""
    logger.info(message)
