"""The public API: names, docstrings, and imports with few dependencies."""

import importlib
import inspect
import re
import subprocess
import sys
import typing
from importlib import metadata

import pytest

import lightning_fire
import lightning_fire.callbacks

PUBLIC = [
    "lightning_fire",
    "lightning_fire.functional",
    "lightning_fire.methods",
    "lightning_fire.metrics",
    "lightning_fire.callbacks",
    "lightning_fire.nets",
    "lightning_fire.modules",
    "lightning_fire.data",
    "lightning_fire.experience",
    "lightning_fire.integrations.huggingface",
    "lightning_fire.integrations.measure_plasticity",
    "lightning_fire.integrations.stable_baselines3",
]


def test_names_at_the_top():
    assert set(dir(lightning_fire)) == set(lightning_fire.__all__)
    for name in lightning_fire.__all__:
        assert getattr(lightning_fire, name) is not None
    with pytest.raises(AttributeError, match="module 'lightning_fire' has no attribute 'Fire'"):
        _ = lightning_fire.Fire


@pytest.mark.parametrize("asked", ["lightning_fire", "lightning_fire.integrations"])
@pytest.mark.parametrize("module", PUBLIC[1:])
def test_a_public_name_of_another_module_is_named_with_it(asked, module):
    """`from … import …` shows the message of an ImportError, and hides that of an AttributeError."""
    here = vars(importlib.import_module(asked)).get("__all__", [])
    names = [name for name in importlib.import_module(module).__all__ if name not in here]
    for name in names[:2]:
        with pytest.raises(ImportError, match=rf"^{asked} has no {name}: import it from (.+ or )?{module}( or |$)"):
            exec(f"from {asked} import {name}")
        assert not hasattr(importlib.import_module(asked), name)  # jsonargparse asks for short paths of classes
    assert names or module == "lightning_fire.callbacks"


@pytest.mark.parametrize("module", PUBLIC)
def test_everything_public_has_a_docstring(module):
    module = importlib.import_module(module)
    for name in module.__all__:
        thing = getattr(module, name)
        if typing.get_origin(thing) is None and (inspect.isclass(thing) or inspect.isfunction(thing)):
            assert thing.__doc__, f"{name} has no docstring"
            parameters = [p for p in inspect.signature(thing).parameters if p not in ("args", "kwargs")]
            documented = thing.__doc__
            if inspect.isclass(thing) and "__init__" in vars(thing):
                missing = [parameter for parameter in parameters if f"{parameter}:" not in documented]
                assert not missing, f"{name} does not document {missing}"


@pytest.mark.slow
def test_only_callbacks_import_more_than_torch():
    """All names at the top but those of `callbacks` and `decide`, and the packages whose docstring says so."""
    needs_lightning = {name for name in lightning_fire.__all__ if name in lightning_fire.callbacks.__all__} | {"decide"}
    required = {re.split(r"[^\w-]", line)[0] for line in metadata.requires("lightning-fire") if "extra ==" not in line}
    modules = {
        name
        for name, owners in metadata.packages_distributions().items()
        if required & {owner.lower() for owner in owners}
    }
    blocked = (modules | {"lightning_utilities", "pytorch_lightning"}) - {"torch", "torchgen", "functorch"}
    assert {"lightning", "torchmetrics", "torchvision", "yaml"} < blocked
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys({blocked})  # an import of one raises an ImportError
import torch, lightning_fire
for name in ("_private", "distributed", "functional", "methods", "optim", "when", "where"):
    importlib.import_module("lightning_fire." + name)
for name in set(lightning_fire.__all__) - {needs_lightning}:
    getattr(lightning_fire, name)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
lightning_fire.fire_(model, optimizers=torch.optim.Adam(model.parameters()))
print("done")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "done\n", result.stderr


@pytest.mark.slow
def test_a_torchvision_of_another_build_is_explained():
    """As `import torchvision` does then: register fake operators for a missing namespace."""
    code = (
        "import sys, types\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'lightning': raise RuntimeError('operator torchvision::nms does not exist')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "import lightning_fire; lightning_fire.FIRECallback"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: lightning cannot be imported: operator torchvision::nms does not exist." in result.stderr
    assert "into a fresh environment" in result.stderr
