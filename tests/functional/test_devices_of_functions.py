"""Every public function on a pretended GPU and on the meta device: the values of the CPU, and few waits."""

import contextlib

import pytest
import torch
from function_cases import FUNCTIONS, arguments, name_of
from pretended import Pretended
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_fire import functional

CHECKED = {  # whether an argument is finite
    "entropy_rank",
    "entropy_rank_gradient",
    "fire",
    "orthogonalize",
    "polar",
    "singular_values",
    "singular_values_of_gram",
    "srank",
    "stable_rank",
}
NUMBERS = {  # whether arguments are in their range, and numbers that follow from values
    "activity_score_bounds",
    "feature_covariance_bound",
    "hessian_bound",
    "largest_eigenvalue",
    "least_useful",
    "loss_curvature",
    "relu_hessian_bound",
    "srank_bound",
}


def computed(function):
    given = arguments()[function]
    return given(function) if callable(given) else function(*given)


@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
def test_functions_have_on_a_gpu_the_values_of_the_cpu(function):
    torch.manual_seed(0)
    expected = tree_leaves(computed(function))
    with Pretended() as pretended, torch.device("cuda"):
        given = arguments()[function]
        pretended.forget()
        found = tree_leaves(given(function) if callable(given) else function(*given))
        waits = pretended.count
        for value, right in zip(found, expected, strict=True):
            if isinstance(value, Tensor):
                assert value.device.type == "cuda"
                value = value.detach().cpu()
            torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-5, equal_nan=True)
    name = name_of(function)
    assert waits == 0 or name in CHECKED | NUMBERS
    assert waits == 1 + (name == "polar") or name not in CHECKED  # `polar`: also whether the products have converged


@pytest.mark.parametrize("name", ["bias", "l2_init", "parseval", "spectral", "unit_scale"])
def test_gradients_of_penalties_on_a_gpu_are_those_of_autograd(name):
    penalty, gradient = (getattr(functional, f"{name}_{kind}") for kind in ("penalty", "gradient"))
    with Pretended() as pretended, torch.device("cuda"):
        weight, *others = arguments()[penalty]
        if name == "spectral":  # a fixed point of the power iteration
            for _ in range(200):
                others = [functional.power_iteration(weight, *others)]
        weight.requires_grad_()
        pretended.forget()
        penalty(weight, *others).backward()
        found = gradient(weight.detach(), *others)
        assert pretended.count == 0
        torch.testing.assert_close(weight.grad.cpu(), found.cpu(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
def test_functions_that_read_no_values_run_on_meta(function):
    reads = name_of(function) in (CHECKED | NUMBERS) - {"feature_covariance_bound"}  # which has fewer checks there
    error = pytest.raises((RuntimeError, NotImplementedError)) if reads else contextlib.nullcontext()
    with torch.device("meta"), error:
        found = tree_leaves(computed(function))
        assert all(value.is_meta for value in found if isinstance(value, Tensor))


def test_every_function_is_tried():
    assert {name_of(function) for function in FUNCTIONS} >= CHECKED | NUMBERS
    assert len(FUNCTIONS) > 40
    assert set(map(name_of, FUNCTIONS)) <= set(functional.__all__)
