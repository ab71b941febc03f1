"""Functions of the kinds that published code has, written for these tests."""

# ruff: noqa: B007, E741, F841, N803, N806, RUF059
# They are written as the authors of such Functions write.

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (as everybody)
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import InplaceFunction, once_differentiable


class GradReverse(Function):
    @staticmethod
    def forward(ctx, x, lambd):
        ctx.lambd = lambd
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.lambd, None


class Quantize(InplaceFunction):
    """Uniform fake quantisation with a straight-through gradient."""

    @classmethod
    def forward(
        cls,
        ctx,
        input,
        num_bits=8,
        min_value=None,
        max_value=None,
        stochastic=False,
        inplace=False,
    ):
        num_chunks = input.shape[0]
        if min_value is None or max_value is None:
            y = input.view(input.shape[0] // num_chunks, -1)
        if min_value is None:
            min_value = y.min(-1)[0].mean(-1)
        if max_value is None:
            max_value = y.max(-1)[0].mean(-1)
        ctx.inplace = inplace
        ctx.num_bits = num_bits
        if ctx.inplace:
            ctx.mark_dirty(input)
            output = input
        else:
            output = input.clone()
        qmin = 0.0
        qmax = 2.0**num_bits - 1.0
        scale = (max_value - min_value) / (qmax - qmin)
        scale = max(scale, 1e-8)
        output.add_(-min_value).div_(scale).add_(qmin)
        output.clamp_(qmin, qmax).round_()
        output.add_(-qmin).mul_(scale).add_(min_value)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        grad_input = grad_output
        return grad_input, None, None, None, None, None


class BinActive(Function):
    """Signs of the input, and the mean of its size over the channels."""

    def forward(self, input):
        self.save_for_backward(input)
        size = input.size()
        mean = torch.mean(input.abs(), 1, keepdim=True)
        input = input.sign()
        return input, mean

    def backward(self, grad_output, grad_output_mean):
        (input,) = self.saved_tensors
        grad_input = grad_output.clone()
        grad_input[input.ge(1)] = 0
        grad_input[input.le(-1)] = 0
        return grad_input


class LSQ(Function):
    @staticmethod
    def forward(ctx, weight, alpha, g, Qn, Qp):
        ctx.save_for_backward(weight, alpha)
        ctx.other = g, Qn, Qp
        q_w = (weight / alpha).round().clamp(Qn, Qp)
        return q_w * alpha

    @staticmethod
    def backward(ctx, grad_weight):
        weight, alpha = ctx.saved_tensors
        g, Qn, Qp = ctx.other
        q_w = weight / alpha
        smaller = (q_w < Qn).float()
        bigger = (q_w > Qp).float()
        between = 1.0 - smaller - bigger
        grad_alpha = (
            (
                (smaller * Qn + bigger * Qp + between * q_w.round() - between * q_w)
                * grad_weight
                * g
            )
            .sum()
            .unsqueeze(dim=0)
        )
        grad_weight = between * grad_weight
        return grad_weight, grad_alpha, None, None, None


class SRUpdate(Function):
    @staticmethod
    @once_differentiable
    def forward(
        ctx: Any, mem: Tensor, beta: Tensor, threshold: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        spk = (mem - threshold).gt(0).type_as(mem)
        reset = spk.detach()
        out = beta * mem - reset * threshold
        ctx.save_for_backward(mem, beta, spk)
        ctx.threshold = threshold
        return spk, out

    @staticmethod
    def backward(ctx, *grads):
        gs, go = grads
        mem, beta, spk = ctx.saved_tensors
        surrogate = 1 / (1 + (np.pi * (mem - ctx.threshold)).pow_(2)) / math.pi
        gm = gs * surrogate
        gm = gm + go * beta
        gb = (go * mem).sum_to_size(beta.shape)
        return gm, gb, None


class VecQuant(Function):
    @staticmethod
    def forward(ctx, inputs, codebook):
        with torch.no_grad():
            embedding_size = codebook.size(1)
            inputs_size = inputs.size()
            inputs_flatten = inputs.view(-1, embedding_size)
            codebook_sqr = torch.sum(codebook**2, dim=1)
            inputs_sqr = torch.sum(inputs_flatten**2, dim=1, keepdim=True)
            distances = torch.addmm(
                codebook_sqr + inputs_sqr,
                inputs_flatten,
                codebook.t(),
                alpha=-2.0,
                beta=1.0,
            )
            _, indices_flatten = torch.min(distances, dim=1)
            indices = indices_flatten.view(*inputs_size[:-1])
            ctx.mark_non_differentiable(indices)
            codes_flatten = torch.index_select(codebook, dim=0, index=indices_flatten)
            codes = codes_flatten.view_as(inputs)
            ctx.save_for_backward(indices_flatten, codebook)
            return codes, indices

    @staticmethod
    def backward(ctx, grad_output, grad_indices):
        grad_inputs, grad_codebook = None, None
        if ctx.needs_input_grad[0]:
            grad_inputs = grad_output.clone()
        if ctx.needs_input_grad[1]:
            indices, codebook = ctx.saved_tensors
            embedding_size = codebook.size(1)
            grad_output_flatten = grad_output.contiguous().view(-1, embedding_size)
            grad_codebook = torch.zeros_like(codebook)
            grad_codebook.index_add_(0, indices, grad_output_flatten)
        return grad_inputs, grad_codebook


class SoftDTW(Function):
    @staticmethod
    def forward(ctx, D, gamma):
        N, M = D.shape
        R = torch.full((N + 2, M + 2), 1e5)
        R[0, 0] = 0
        for j in range(1, M + 1):
            for i in range(1, N + 1):
                r0 = -R[i - 1, j - 1] / gamma
                r1 = -R[i - 1, j] / gamma
                r2 = -R[i, j - 1] / gamma
                rmax = torch.max(torch.max(r0, r1), r2)
                rsum = (
                    torch.exp(r0 - rmax) + torch.exp(r1 - rmax) + torch.exp(r2 - rmax)
                )
                softmin = -gamma * (torch.log(rsum) + rmax)
                R[i, j] = D[i - 1, j - 1] + softmin
        ctx.save_for_backward(D, R)
        ctx.gamma = gamma
        return R[-2, -2]

    @staticmethod
    def backward(ctx, grad_output):
        D_, R = ctx.saved_tensors
        gamma = ctx.gamma
        N, M = D_.shape
        D = torch.zeros(N + 2, M + 2)
        D[1 : N + 1, 1 : M + 1] = D_
        E = torch.zeros(N + 2, M + 2)
        E[-1, -1] = 1
        R = R.clone()
        R[:, -1] = -1e5
        R[-1, :] = -1e5
        R[-1, -1] = R[-2, -2]
        for j in range(M, 0, -1):
            for i in range(N, 0, -1):
                a = torch.exp((R[i + 1, j] - R[i, j] - D[i + 1, j]) / gamma)
                b = torch.exp((R[i, j + 1] - R[i, j] - D[i, j + 1]) / gamma)
                c = torch.exp((R[i + 1, j + 1] - R[i, j] - D[i + 1, j + 1]) / gamma)
                E[i, j] = E[i + 1, j] * a + E[i, j + 1] * b + E[i + 1, j + 1] * c
        return E[1 : N + 1, 1 : M + 1] * grad_output, None


class ChamferDistance(Function):
    @staticmethod
    def forward(ctx, xyz1, xyz2):
        diff = xyz1.unsqueeze(2) - xyz2.unsqueeze(1)
        d = (diff**2).sum(-1)
        dist1, idx1 = d.min(2)
        dist2, idx2 = d.min(1)
        ctx.save_for_backward(xyz1, xyz2, idx1, idx2)
        return dist1, dist2

    @staticmethod
    def backward(ctx, graddist1, graddist2):
        xyz1, xyz2, idx1, idx2 = ctx.saved_tensors
        graddist1 = graddist1.contiguous()
        gradxyz1 = torch.zeros(xyz1.size())
        gradxyz2 = torch.zeros(xyz2.size())
        near2 = torch.gather(xyz2, 1, idx1.unsqueeze(-1).expand(-1, -1, 3))
        near1 = torch.gather(xyz1, 1, idx2.unsqueeze(-1).expand(-1, -1, 3))
        g1 = 2 * graddist1.unsqueeze(-1) * (xyz1 - near2)
        g2 = 2 * graddist2.unsqueeze(-1) * (xyz2 - near1)
        gradxyz1 += g1
        gradxyz2 += g2
        gradxyz1.scatter_add_(1, idx2.unsqueeze(-1).expand(-1, -1, 3), -g2)
        gradxyz2.scatter_add_(1, idx1.unsqueeze(-1).expand(-1, -1, 3), -g1)
        return gradxyz1, gradxyz2


class MatrixSqrt(Function):
    """Newton-Schulz square root of a matrix."""

    @staticmethod
    def forward(ctx, input):
        dim = input.shape[0]
        normA = input.mul(input).sum(dim=0).sum(dim=0).sqrt()
        Y = input / normA
        I = torch.eye(dim, dim).type(input.dtype)
        Z = torch.eye(dim, dim).to(input)
        for i in range(5):
            T = 0.5 * (3.0 * I - Z.mm(Y))
            Y = Y.mm(T)
            Z = T.mm(Z)
        sA = Y * torch.sqrt(normA).expand_as(Y)
        ctx.save_for_backward(sA)
        return sA

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        normz = z.pow(2).sum().sqrt()
        a = z.div(normz)
        q = grad_output.div(normz)
        I = torch.eye(z.size(0), dtype=z.dtype, device=z.device)
        for i in range(5):
            q = 0.5 * (q.mm(3.0 * I - a.mm(a)) - a.t().mm(a.t().mm(q) - q.mm(a)))
            a = 0.5 * a.mm(3.0 * I - a.mm(a))
        return 0.5 * q


class FocalLoss(Function):
    @staticmethod
    def forward(ctx, logits, targets, alpha=0.25, gamma=2.0):
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        loss = ce * ((1 - p_t) ** gamma)
        alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
        ctx.save_for_backward(p, p_t, targets, alpha_t)
        ctx.gamma = gamma
        return (alpha_t * loss).mean()

    @staticmethod
    def backward(ctx, g):
        p, p_t, y, a = ctx.saved_tensors
        d = ctx.gamma * p_t * torch.log(p_t.clamp(min=1e-8)) + p_t - 1
        grad = a * (1 - p_t).pow(ctx.gamma) * d * (2 * y - 1)
        return g * grad / p.numel(), None, None, None


class Rotary(Function):
    @staticmethod
    def forward(ctx, q, cos, sin):
        ctx.save_for_backward(cos, sin)
        half = q.shape[-1] // 2
        q1, q2 = q[..., :half], q[..., half:]
        return torch.cat([q1 * cos - q2 * sin, q2 * cos + q1 * sin], dim=-1)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        half = g.shape[-1] // 2
        g1, g2 = g.chunk(2, dim=-1)
        return (
            torch.cat([g1 * cos + g2 * sin, -g1 * sin + g2 * cos], dim=-1),
            None,
            None,
        )


class Checkpointed(Function):
    @staticmethod
    def forward(ctx, run, x, w):
        ctx.run = run
        ctx.save_for_backward(x, w)
        with torch.no_grad():
            return run(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = [t.detach().requires_grad_(True) for t in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.run(x, w)
        gx, gw = torch.autograd.grad(out, (x, w), g)
        return None, gx, gw


class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        rstd = torch.rsqrt(x.float().pow(2).mean(dim=-1, keepdim=True) + eps)
        xhat = (x * rstd).to(x.dtype)
        ctx.save_for_backward(xhat, rstd, weight)
        return xhat * weight

    @staticmethod
    def backward(ctx, dy):
        xhat, rstd, weight = ctx.saved_tensors
        dxhat = dy * weight
        n = dy.shape[-1]
        dx = (dxhat - xhat * (dxhat * xhat).sum(-1, keepdim=True) / n) * rstd
        dw = (dy * xhat).reshape(-1, n).sum(0)
        return dx.to(dy.dtype), dw, None


def run(x, w):
    return torch.tanh(x @ w.t()).mul(2)
