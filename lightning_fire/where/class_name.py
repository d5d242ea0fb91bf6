"""What the author of a module called its class."""

from torch import nn


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class without what torch puts before it where it derives a class of its own.

    Args:
        module: Any module; parametrizations and FSDP2 change the class of those that they treat.
    """
    return type(module).__name__.removeprefix("FSDP").removeprefix("Parametrized")
