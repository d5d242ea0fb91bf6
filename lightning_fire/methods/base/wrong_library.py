"""The error of a method or a callback that is given to another library as a callback of it."""

from typing import TYPE_CHECKING, Any

_LIGHTNING = "Lightning", ""
# what a library asks a callback for first, or last
_ASKED = {
    "setup": _LIGHTNING,
    "on_exception": _LIGHTNING,
    "on_init_end": ("the Trainer of Hugging Face", ".integrations.huggingface"),
    "__call__": ("Stable-Baselines3", ".integrations.stable_baselines3"),
}


class WrongLibrary(TypeError, AttributeError):
    """A library asks an object for a hook of its own callbacks. For `hasattr` the hook is not there."""

    def __init__(self, thing: object, asked: str):
        library, module = _ASKED[asked]
        super().__init__(
            f"{type(thing).__name__} is not a callback of {library}: use lightning_fire{module}.PlasticityCallback,"
            " which takes a method such as FIRE(), or MeasurePlasticity()"
        )


class OfOneLibrary:
    """Mixin: names the callback to use where another library asks for a hook of its own."""

    if not TYPE_CHECKING:  # a type checker would take any name

        def __getattr__(self, name: str) -> Any:
            if name in _ASKED:
                raise WrongLibrary(self, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class CallbackOfOneLibrary(OfOneLibrary):
    """The same for callbacks, none of which is a function, as a callback of Stable-Baselines3 may be."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise the error."""
        raise WrongLibrary(self, "__call__")
