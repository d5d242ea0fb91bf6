"""Empty shapes, huge and tiny numbers, and dtypes without a meaning: a value or one sentence."""

import pytest
import torch

from lightning_fire import functional as F


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_a_matrix_without_entries_stays(shape):
    empty = torch.zeros(shape)
    assert F.muon_direction(empty).shape == F.dash(empty, empty, 0.3).shape == shape


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.dash(torch.ones(4, 4) + 0j, torch.ones(4, 4) + 0j, 0.3),
        lambda: F.project_to_norm(torch.ones(4, 4).long(), 1.5),
    ],
)
def test_a_dtype_without_a_meaning_is_named(call):
    with pytest.raises(TypeError, match="`weight` must be of a real floating dtype, got torch"):
        call()


def test_a_power_iteration_in_half_precision_keeps_the_dtype_of_the_vector():
    weight = torch.diag(torch.tensor([2.0, 1.0])).bfloat16()
    found = F.power_iteration(weight, torch.tensor([[0.6, 0.8]]).bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), torch.tensor([[0.9487, 0.3162]]), rtol=0, atol=0.01)


@pytest.mark.parametrize("size", [1e-40, 1e-25, 1.0, 1e20, 1e38])
def test_the_relative_error_of_matrices_of_any_size(size):
    matrix = torch.tensor([[1.0, 2.0], [0.5, 1.0]])
    found = F.sfe_normalized(matrix * size, matrix.flip(0) * size)
    torch.testing.assert_close(found, F.sfe_normalized(matrix, matrix.flip(0)), rtol=1e-3, atol=0)
    assert F.sfe_normalized(matrix * size, torch.zeros(2, 2)) == pytest.approx(1.0, rel=1e-3)
