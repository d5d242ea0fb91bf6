"""Errors for a method or callback given to the wrong library, and for arguments of another library's callback."""

import inspect
from typing import TYPE_CHECKING, Any

_LIGHTNING = "Lightning", ""
_HUGGING_FACE = "the Trainer of Hugging Face", ".integrations.huggingface"
_STABLE_BASELINES3 = "Stable-Baselines3", ".integrations.stable_baselines3"
# the first or last hook that a library looks up
_ASKED = {
    "setup": _LIGHTNING,
    "on_exception": _LIGHTNING,
    "on_init_end": _HUGGING_FACE,
    "__call__": _STABLE_BASELINES3,
}
# keywords that not every library's PlasticityCallback has, and whose has them
_TAKEN = {
    "start_chunk": (_LIGHTNING, _HUGGING_FACE),
    "log": (_LIGHTNING, _HUGGING_FACE),
    "losses": (_HUGGING_FACE,),
    "name": (_HUGGING_FACE, _STABLE_BASELINES3),
    "averages": (_HUGGING_FACE, _STABLE_BASELINES3),
    "log_every": (_STABLE_BASELINES3,),
}


class WrongLibrary(TypeError, AttributeError):
    """A library has looked up a hook of its callbacks on this object. An AttributeError, so that `hasattr` is False."""

    def __init__(self, thing: object, asked: str):
        library, module = _ASKED[asked]
        super().__init__(
            f"{type(thing).__name__} is not a callback of {library}: use lightning_fire{module}.PlasticityCallback,"
            " which takes a method such as FIRE(), or MeasurePlasticity()"
        )


class OfOneLibrary:
    """Mixin: names the right callback if another library looks up one of its hooks, or gives one of its keywords."""

    if not TYPE_CHECKING:  # a type checker would take any name

        def __new__(cls, *_: Any, **keywords: Any) -> Any:
            """Raise a TypeError for a keyword of another library's callback, unless a subclass takes any."""
            if others := keywords.keys() & _TAKEN.keys():
                own = inspect.signature(cls.__init__).parameters
                if not any(each.kind == each.VAR_KEYWORD for each in own.values()):
                    for keyword in sorted(others - own.keys()):
                        callables = " or ".join(
                            f"lightning_fire{module}.PlasticityCallback, of {library}"
                            for library, module in _TAKEN[keyword]
                        )
                        raise TypeError(f"{cls.__name__} takes no `{keyword}`: it is an argument of {callables}")
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            if name in _ASKED:
                raise WrongLibrary(self, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class CallbackOfOneLibrary(OfOneLibrary):
    """The same for callbacks. They are not callable, unlike callbacks of Stable-Baselines3."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise the error."""
        raise WrongLibrary(self, "__call__")
