"""Muon: momentum whose step for each matrix is made orthogonal by Newton-Schulz iterations (Jordan et al., 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)  # the published coefficients: singular values end between 0.7 and 1.2


class Muon(torch.optim.Optimizer):
    """For weights of two dimensions. `lr` is the size of a step in units of an orthogonal matrix."""

    def __init__(self, weights: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.02):
        super().__init__(weights, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Take one step with the gradients that there are. Weights of one shape are worked on together."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes.setdefault(weight.shape, []).append(weight)
            for (rows, columns), weights in shapes.items():
                averages = [self.state[one].setdefault("average", torch.zeros_like(one)) for one in weights]
                gradients = [one.grad for one in weights]
                torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
                moved = torch.stack([g.lerp(a, group["momentum"]) for g, a in zip(gradients, averages, strict=True)])
                size = group["lr"] * max(1.0, rows / columns) ** 0.5
                for weight, step in zip(weights, orthogonal(moved), strict=True):
                    weight.mul_(1 - group["lr"] * group["decay"]).sub_(step, alpha=size)


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix to each of `matrices` (n, rows, columns), roughly."""
    a, b, c = _QUINTIC
    x = matrices.to(torch.bfloat16)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2).contiguous() if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.transpose(1, 2) if tall else x).to(matrices.dtype)
