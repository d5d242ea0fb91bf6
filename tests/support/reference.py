"""Slow, obvious versions of what the package computes: loops, float64, no shared code with it."""

import itertools
import math

import torch
from torch import Tensor

COEFFICIENTS = {"cubic": (1.5, -0.5, 0.0), "quintic": (2.0, -1.5, 0.5), "muon": (3.4445, -4.7750, 2.0315)}


def orthogonalize(matrix: Tensor, steps: int, coefficients: str = "cubic") -> Tensor:
    """Apply the scalar recursion to each singular value of one `(m, n)` matrix, in float64."""
    a, b, c = COEFFICIENTS[coefficients]
    u, singular_values, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    sigma = singular_values / singular_values.square().sum().sqrt()
    for _ in range(steps):
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return u @ torch.diag(sigma) @ vh


def polar(matrix: Tensor) -> Tensor:
    """U Vᵀ of one `(m, n)` matrix, in float64."""
    u, _, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    return u @ vh


def largest_eigenvalue(function, tensors) -> float:
    """The largest eigenvalue of the whole Hessian of a function of a list of tensors, in float64."""
    shapes = [tensor.shape for tensor in tensors]

    def of(flat):
        return function(
            [part.view(shape) for part, shape in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True)]
        )

    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    return torch.linalg.eigvalsh(torch.autograd.functional.hessian(of, flat))[-1].item()


def optimization_readiness(gradients: Tensor) -> float:
    """‖G‖⁴ / E‖g‖² of gradients `(k, n)`, ‖G‖² as the mean of the products of pairs of batches, at least 0."""
    pairs = itertools.permutations(gradients.double().tolist(), 2)
    products = [sum(a * b for a, b in zip(one, other, strict=True)) for one, other in pairs]
    norms = [sum(a * a for a in one) for one in gradients.double().tolist()]
    return max(sum(products) / len(products), 0.0) ** 2 / (sum(norms) / len(norms))


def critical_sharpness(loss, step: float = 1e-6) -> float:
    """2 / η_c by steps that grow by 1 % until the loss is higher than at 0, then by 60 bisections."""
    at_0 = loss(0.0)
    while loss(step) <= at_0:
        step *= 1.01
    low, high = step / 1.01, step
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if loss(middle) > at_0 else (middle, high)
    return 2 / high


def fire(weight: Tensor, steps: int | str = 10, coefficients: str = "cubic", scale: str = "paper", groups: int = 1):
    """FIRE on one `(out, in / groups, *kernel)` weight, matrix by matrix, in float64."""
    out, inputs = weight.shape[0] // groups, weight.shape[1]
    taps = list(itertools.product(*(range(size) for size in weight.shape[2:])))
    result = weight.double().clone()
    for group, tap in itertools.product(range(groups), taps):
        where = (slice(group * out, (group + 1) * out), slice(None), *tap)
        matrix = weight[where].double()
        isometry = polar(matrix) if steps == "exact" else orthogonalize(matrix, steps, coefficients)
        factor = {
            "paper": (out / inputs) ** 0.5 / len(taps),
            "none": 1.0,
            "procrustes": (matrix * isometry).sum() / isometry.square().sum(),
        }[scale]
        result[where] = factor * isometry
    return result


def dfi(matrix: Tensor) -> Tensor:
    """‖WᵀW − I‖_F² of one `(m, n)` matrix, literally, in float64."""
    matrix = matrix.double()
    return (matrix.T @ matrix - torch.eye(matrix.shape[1]).double()).square().sum()


def dfi_normalized(matrix: Tensor) -> Tensor:
    """Mean of (σ²/mean(σ²) − 1)² over the singular values of one `(m, n)` matrix, in float64."""
    squares = torch.linalg.svdvals(matrix.double()).square()
    return (squares / squares.mean() - 1).square().mean()


def shrink_and_perturb(weight: Tensor, target: Tensor, strength: float, perturb: float | None = None) -> Tensor:
    """Entry by entry, in float64."""
    factor = strength if perturb is None else perturb
    pairs = zip(weight.double().flatten().tolist(), target.double().flatten().tolist(), strict=True)
    return torch.tensor([(1 - strength) * w + factor * t for w, t in pairs], dtype=torch.float64).view(weight.shape)


def parseval_penalty(weight: Tensor, scale: float = 1.0, groups: int = 1) -> Tensor:
    """‖WWᵀ − sI‖_F² group by group, pair of rows by pair of rows; differentiable."""
    total = weight.new_zeros(())
    for group in weight.chunk(groups):
        rows = [row.flatten() for row in group]
        for i, j in itertools.product(range(len(rows)), repeat=2):
            total = total + ((rows[i] * rows[j]).sum() - (scale if i == j else 0.0)) ** 2
    return total


def rank_of_features(features: Tensor) -> Tensor:
    """exp(−Σ p·log(p + 1e-8)) with p = σ / Σσ, of one `(samples, units)` matrix; differentiable."""
    values = torch.linalg.svdvals(features)
    shares = [value / values.sum() for value in values]
    return torch.exp(-sum(share * torch.log(share + 1e-8) for share in shares))


class AdamO(torch.optim.Adam):
    """Adam, then θ ← θ − lr·λ·∇R(θ) with R the Gram deviation on the short side of each weight."""

    def __init__(self, params, weights, strength, **options):
        super().__init__(params, **options)
        self.weights, self.strength = weights, strength

    def step(self, closure=None):
        with torch.enable_grad():
            loss = None if closure is None else closure()
        copies = [weight.detach().clone().flatten(1).requires_grad_() for weight in self.weights]
        for copy in copies:
            parseval_penalty(copy if copy.shape[0] <= copy.shape[1] else copy.T).backward()
        super().step()
        with torch.no_grad():
            for weight, copy in zip(self.weights, copies, strict=True):
                weight -= self.param_groups[0]["lr"] * self.strength * copy.grad.view_as(weight)
        return loss


def spectral_penalty(weight: Tensor, groups: int = 1) -> Tensor:
    """(σ₁² − 1)² group by group, from the whole decomposition; differentiable."""
    matrices = [group.flatten(1) for group in weight.chunk(groups)]
    return torch.stack([(torch.linalg.svd(matrix).S[0] ** 2 - 1) ** 2 for matrix in matrices]).sum()


def dash(weight: Tensor, direction: Tensor, minimum: float) -> Tensor:
    """w · clamp(cos(w, g), λ, 1) part by part, in float64."""
    weight, direction = weight.double(), direction.double()
    result = weight.clone()
    depth = {1: 0, 2: 1}.get(weight.ndim, 2)
    for where in itertools.product(*(range(size) for size in weight.shape[:depth])):
        w, g = weight[where].flatten(), direction[where].flatten()
        length = float(w.norm() * g.norm())
        cosine = float(w @ g) / length if length else 0.0
        result[where] = weight[where] * min(max(cosine, minimum), 1.0)
    return result


def dormant(activations: Tensor, threshold: float) -> list[int]:
    """ReDo's eq. 1, unit by unit, from post-activation outputs `(samples, units)`."""
    means = [float(activations[:, unit].double().abs().mean()) for unit in range(activations.shape[1])]
    layer = sum(means) / len(means)
    return [unit for unit, mean in enumerate(means) if (mean / layer if layer else 0.0) <= threshold]


def srank(matrix: Tensor, delta: float) -> int:
    """Kumar et al., literally: singular values of one `(m, n)` matrix, added up one by one, in float64."""
    values = torch.linalg.svdvals(matrix.double()).tolist()
    return next(k for k in range(1, len(values) + 1) if sum(values[:k]) >= (1 - delta) * sum(values))


def stable_rank(matrix: Tensor) -> Tensor:
    """‖W‖_F² / ‖W‖₂² of one `(m, n)` matrix, in float64."""
    return matrix.double().square().sum() / torch.linalg.matrix_norm(matrix.double(), ord=2) ** 2


def entropy_rank(matrix: Tensor) -> float:
    """exp(−Σ p log p) with p = σ / Σσ of one `(m, n)` matrix, in float64."""
    values = torch.linalg.svdvals(matrix.double()).tolist()
    shares = [value / sum(values) for value in values if value > 0]
    return math.exp(-sum(p * math.log(p) for p in shares))


def feature_covariance_shift(before: Tensor, after: Tensor) -> Tensor:
    """‖C − C̃‖_F of features `(samples, features)`, by way of the matrices of samples by samples, in float64."""
    before, after = before.double(), after.double()
    c = before @ before.T / before.norm() ** 2
    return (c - after @ after.T / after.norm() ** 2).norm()


def muon(weight: Tensor, gradients: list[Tensor], lr: float, momentum=0.95, decay=0.0, nesterov=True, scale="original"):
    """Muon's steps on one weight, by the definition, in float64."""
    weight, average = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for gradient in gradients:
        gradient = gradient.double()
        average = momentum * average + (1 - momentum) * gradient
        direction = momentum * average + (1 - momentum) * gradient if nesterov else average
        matrix = direction.reshape(len(weight), -1)
        rows, columns = matrix.shape
        factor = max(1.0, rows / columns) ** 0.5 if scale == "original" else 0.2 * max(rows, columns) ** 0.5
        step = factor * orthogonalize(matrix, 5, "muon")
        weight = (1 - lr * decay) * weight - lr * step.reshape(weight.shape)
    return weight


def project_to_norm(weight: Tensor, norm: float) -> Tensor:
    """The weight times norm over the root of the sum of the squares of its entries, in float64."""
    total = sum(value**2 for value in weight.double().flatten().tolist())
    return weight.double() * (norm / total**0.5 if total else 1.0)


def upgd(weights: list[Tensor], gradients: list[list[Tensor]], noises, lr, decay, beta) -> list[Tensor]:
    """UPGD's steps on several weights, entry by entry, in float64; gradients and noises by step and weight."""
    values = [[float(value) for value in weight.flatten()] for weight in weights]
    averages = [[0.0] * len(flat) for flat in values]
    for step, (of_weights, noise) in enumerate(zip(gradients, noises, strict=True), 1):
        for flat, average, gradient in zip(values, averages, of_weights, strict=True):
            for i, g in enumerate(gradient.flatten().tolist()):
                average[i] = beta * average[i] + (1 - beta) * -g * flat[i]
        largest = max(max(average) for average in averages)
        for flat, average, gradient, random in zip(values, averages, of_weights, noise, strict=True):
            for i, (g, xi) in enumerate(zip(gradient.flatten().tolist(), random.flatten().tolist(), strict=True)):
                scaled = 1 / (1 + math.exp(-average[i] / (1 - beta**step) / largest)) if largest else 0.5
                flat[i] = (1 - lr * decay) * flat[i] - lr * (g + xi) * (1 - scaled)
    return [torch.tensor(flat, dtype=torch.float64).view_as(w) for flat, w in zip(values, weights, strict=True)]


def least_useful_weights(weight: Tensor, gradient: Tensor | None, factor: float, number: int | None = None) -> set[int]:
    """Flat positions of the weights of least |w · g|, or |w|: at most `factor` times the mean, or `number` of them."""
    slopes = [1.0] * weight.numel() if gradient is None else gradient.flatten().tolist()
    utility = [abs(w * g) for w, g in zip(weight.flatten().tolist(), slopes, strict=True)]
    if number is not None:
        return set(sorted(range(len(utility)), key=utility.__getitem__)[:number])
    mean = sum(utility) / len(utility)
    return {i for i, value in enumerate(utility) if value <= factor * mean}
