"""fused.c as differentiable functions of PyTorch. It is compiled for this machine when it is first needed.

Each function works on contiguous CPU tensors: bfloat16 activations, float32 weights and residual stream.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

HEAD = 64  # elements of a head, as the C code has it
_SOURCE = Path(__file__).with_name("fused.c")


@cache
def library() -> ctypes.CDLL:
    """The compiled functions."""
    built = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lmhub-demo" / "fused.so"
    if not built.exists() or built.stat().st_mtime < _SOURCE.stat().st_mtime:
        built.parent.mkdir(parents=True, exist_ok=True)
        part = built.with_suffix(f".{os.getpid()}")
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", part, _SOURCE, "-lm"], check=True)
        part.replace(built)
    return ctypes.CDLL(str(built))


def _call(name: str, *arguments: Tensor | int | float) -> None:
    def plain(one: Tensor | int | float) -> Any:
        if isinstance(one, Tensor):
            assert one.is_contiguous(), name
            return ctypes.c_void_p(one.data_ptr())
        return ctypes.c_float(one) if isinstance(one, float) else ctypes.c_long(one)

    getattr(library(), name)(*map(plain, arguments))


class Normed(Function):
    """(n, d) float32 and weights (d,) to RMS-normed bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        n, d = x.shape
        y, scale = x.new_empty(n, d, dtype=torch.bfloat16), x.new_empty(n)
        _call("norm_forward", x, weight, eps, n, d, y, scale)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        _call("norm_backward", g.contiguous(), x, weight, scale, *x.shape, dx, dw)
        return dx, dw, None


class Attended(Function):
    """qkv bfloat16 (batch, time, heads * 64) to the attended values (batch, time, n_head * 64).

    `angles` are cosines and sines, float32 (batch, time, 32); `q_weight` and `k_weight` norm the heads.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        angles: tuple[Tensor, Tensor],
        n_head: int,
        eps: float,
    ) -> Tensor:
        b, t, width = qkv.shape
        n_kv = (width // HEAD - n_head) // 2
        copies = n_head // n_kv
        q, k = (qkv.new_empty(b, n_head, t, HEAD) for _ in range(2))
        q_scale, k_scale = q_weight.new_empty(b, t, n_head), q_weight.new_empty(b, t, n_kv)
        _call("head_forward", qkv, q_weight, *angles, eps, b, t, width, 0, n_head, 1, q, q_scale)
        _call("head_forward", qkv, k_weight, *angles, eps, b, t, width, n_head * HEAD, n_kv, copies, k, k_scale)
        v = qkv[..., (n_head + n_kv) * HEAD :].view(b, t, n_kv, HEAD).transpose(1, 2).repeat_interleave(copies, 1)
        p = torch.matmul(q, k.transpose(2, 3))
        _call("softmax_forward", p, HEAD**-0.5, b * n_head, t)
        y = torch.matmul(p, v).transpose(1, 2).reshape(b, t, n_head * HEAD)
        ctx.save_for_backward(qkv, q_weight, k_weight, *angles, q, k, v, p, q_scale, k_scale)
        ctx.n_head, ctx.n_kv = n_head, n_kv
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        qkv, q_weight, k_weight, cosine, sine, q, k, v, p, q_scale, k_scale = ctx.saved_tensors
        (b, t, width), h, n_kv = qkv.shape, ctx.n_head, ctx.n_kv
        copies = h // n_kv
        g = g.view(b, t, h, HEAD).transpose(1, 2).contiguous()
        dv = torch.matmul(p.transpose(2, 3), g).view(b, n_kv, copies, t, HEAD).sum(2)
        ds = torch.matmul(g, v.transpose(2, 3))
        _call("softmax_backward", ds, p, HEAD**-0.5, b * h, t)
        dq, dk = torch.matmul(ds, k), torch.matmul(ds.transpose(2, 3), q)
        dqkv = torch.empty_like(qkv)
        dqkv[..., (h + n_kv) * HEAD :] = dv.transpose(1, 2).reshape(b, t, n_kv * HEAD)
        dq_weight, dk_weight = torch.zeros_like(q_weight), torch.zeros_like(k_weight)
        for g, weight, scale, first, n, many, dw in (
            (dq, q_weight, q_scale, 0, h, 1, dq_weight),
            (dk, k_weight, k_scale, h * HEAD, n_kv, copies, dk_weight),
        ):
            _call("head_backward", g, qkv, weight, cosine, sine, scale, b, t, width, first, n, many, dqkv, dw)
        return dqkv, dq_weight, dk_weight, None, None, None


class Gated(Function):
    """(n, 2 d) bfloat16, gates before values, to silu(gate) * value (n, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n, d = x.shape[0], x.shape[1] // 2
        y = x.new_empty(n, d)
        _call("gate_forward", x, n, d, y)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        _call("gate_backward", g.contiguous(), x, x.shape[0], x.shape[1] // 2, dx)
        return dx
