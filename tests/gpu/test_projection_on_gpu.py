"""Projections on a GPU equal those on the CPU."""

import pytest
import reference
import torch
from tolerances import assert_near

from lightning_fire.functional import dfi_normalized, fire, orthogonalize, polar, singular_values
from lightning_fire.functional.products import by_products, is_missed


@pytest.mark.parametrize("function", [orthogonalize, polar, fire])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_as_on_the_cpu(device, function, dtype):
    weight = torch.randn(64, 32, 3, 3).to(dtype) if function is fire else torch.randn(5, 64, 32).to(dtype)
    result = function(weight.to(device))
    assert result.device.type == device
    assert_near(result.cpu(), function(weight))
    torch.testing.assert_close(dfi_normalized(weight.to(device).flatten(2)).cpu(), dfi_normalized(weight.flatten(2)))


@pytest.mark.parametrize("shape", [(1, 9), (64, 64), (3, 300, 200), (9, 512, 512), (4096, 768)])
@pytest.mark.parametrize("tf32", [False, True])
def test_polar_factors_by_products(device, monkeypatch, shape, tf32):
    if device == "cuda":
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    q = by_products(x.to(device))
    assert not is_missed(q).any()
    q = q.cpu().double()
    assert (q - reference.polar(x)).norm() <= 1e-4 * q.norm()
    gram = q.mT @ q if shape[-2] >= shape[-1] else q @ q.mT
    assert (gram - torch.eye(gram.shape[-1])).norm() <= 1e-6 * q.norm()
    if device == "cuda":
        assert torch.backends.cuda.matmul.allow_tf32 is tf32


@pytest.mark.parametrize("rank", [0, 1, 50, 1000])
def test_rank_deficient_matrices_are_completed(device, rank):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, rank, generator=generator) @ torch.randn(rank, 1000, generator=generator)
    x[:, :40] = 0
    q = polar(x.to(device)).cpu().double()
    if rank == 0:
        assert not q.any()
    else:
        assert (q.mT @ q - torch.eye(1000)).norm() <= 1e-6 * 1000**0.5
        assert (q - x).norm() <= (polar(x).double() - x).norm() * (1 + 1e-6)  # as near as any


@pytest.mark.parametrize("shape", [(1, 5), (64, 64), (3, 300, 200), (512, 2048)])
def test_singular_values(device, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x[..., 0] *= 1e-4  # a small one
    found, expected = singular_values(x.to(device)).cpu(), torch.linalg.svdvals(x.double())
    assert found.dtype == x.dtype
    assert (found - expected).abs().max() <= 1e-5 * expected.max()
