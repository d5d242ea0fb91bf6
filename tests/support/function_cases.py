"""Arguments of every public function."""

import torch
from torch import nn

from lightning_fire import functional


def arguments():
    """Arguments of every public function."""
    torch.manual_seed(0)
    wide, tall, square = torch.randn(200, 300), torch.randn(64, 40), torch.randn(64, 64)
    spd = tall.mT @ tall
    vector = nn.functional.normalize(torch.randn(1, 40))
    dfis, ints, bias = torch.tensor([0.1, 0.2]), torch.randint(1, 50, (6, 20)), torch.randn(64)
    losses = torch.randn(40, requires_grad=True)

    loss = nn.functional.softplus(tall @ losses).square().mean()
    functions = functional
    return {
        functions.activity_score_bounds: (torch.tensor(0.3),),
        functions.as_matrices: (tall,),
        functions.below_mean: (tall.abs(), 0.5),
        functions.bias_gradient: (bias,),
        functions.bias_penalty: (bias,),
        functions.contribution_utility: (bias.abs(), bias),
        functions.critical_sharpness: lambda f: f(lambda step: (step - 1.0) ** 2, -2.0),
        functions.dash: (tall, tall + 1, 0.3),
        functions.dfi: (wide,),
        functions.dfi_normalized: (wide,),
        functions.dfi_without_dormancy: (0.1,),
        functions.dormancy_score: (tall.abs(),),
        functions.dormant: (tall.abs(), 0.9),
        functions.dormant_fraction: (tall.abs(), 0.9),
        functions.entropy_rank: (wide,),
        functions.entropy_rank_gradient: (wide,),
        functions.entropy_rank_of: (bias.abs(),),
        functions.feature_covariance_bound: ([square, square], [square + 0.1, square], 1.0, 1.0),
        functions.feature_covariance_shift: (tall, tall + 1),
        functions.feature_covariance_shift_of: (spd, spd + 1, spd),
        functions.fire: (wide,),
        functions.gradient_utility: (tall, tall + 1),
        functions.hessian_bound: (dfis, 1.0, 0.5),
        functions.hessian_product: lambda f: f(loss, [losses])(bias[:40]),
        functions.inter_firing_threshold: (ints, torch.full((6,), 9), 0.1),
        functions.l2_init_gradient: (tall, tall + 1),
        functions.l2_init_penalty: (tall, tall + 1),
        functions.largest_eigenvalue: lambda f: f(lambda v: spd @ v, bias[:40]),
        functions.least_useful: (bias, bias > 0, 3),
        functions.loss_curvature: lambda f: f(loss, [losses]),
        functions.lowest: (tall.abs(), 9),
        functions.muon_direction: (tall,),
        functions.optimization_readiness: (tall,),
        functions.optimization_readiness_of: (vector, torch.tensor(9.0), 3),
        functions.orthogonalize: (wide,),
        functions.parseval_gradient: (tall,),
        functions.parseval_penalty: (tall,),
        functions.polar: (wide,),
        functions.power_iteration: (tall, vector),
        functions.project_to_norm: (tall, 3.0),
        functions.relu_hessian_bound: (dfis, 1.0, 0.5, 64.0),
        functions.sfe: (tall, tall + 1),
        functions.sfe_normalized: (tall, tall + 1),
        functions.shrink_and_perturb: (tall, tall + 1, 0.3),
        functions.singular_values: (wide,),
        functions.singular_values_of_gram: (spd,),
        functions.soft_rescaling: (bias.abs(), 3.0, 0.5),
        functions.spectral_gradient: (tall, vector),
        functions.spectral_penalty: (tall, vector),
        functions.srank: (wide,),
        functions.srank_bound: (dfis[0], 40),
        functions.srank_of: (bias.abs().sort(descending=True).values,),
        functions.stable_rank: (wide,),
        functions.stable_rank_of: (bias.abs(),),
        functions.unit_scale_gradient: (bias,),
        functions.unit_scale_penalty: (bias,),
    }


def name_of(function):
    return function.__name__


FUNCTIONS = sorted(
    {each for name in functional.__all__ if callable(each := getattr(functional, name)) and not isinstance(each, type)},
    key=name_of,
)
