"""Extension of the reference: doctests under `Example:`, and functions made by `in_place`."""

import re
from typing import Any

import griffe


class Sources(griffe.Extension):
    """Prepare docstrings and functions for mkdocstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Let a doctest be code."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give a function that is made by `in_place` the arguments and the docstring of its plan."""
        for module in pkg.modules["methods"].modules.values():
            for name, made in list(module.attributes.items()):
                if found := re.fullmatch(r"in_place\((\w+)\)", str(made.value)):
                    plan = module[found[1]]
                    given = {"parameters": plan.parameters, "docstring": plan.docstring, "lineno": made.lineno}
                    module.set_member(name, griffe.Function(name, returns="Report", **given))
