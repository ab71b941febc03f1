"""Functions whose writes a translator could take for bindings, and must not.

EQUAL are those that can be had in JAX; of the others a line is marked.
"""

# ruff: noqa: B007, E731, SIM108
# They are written as the authors of such Functions write.

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody)
from torch.autograd import Function


class AliasAug(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        z = y
        z += 1
        ctx.save_for_backward(y)
        return y * 2

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class ViewWrite(Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 1
        v = y[0]
        v.mul_(3)
        return y

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[0] *= 3
        return g


class Chained(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone().add_(1).mul_(2).clamp_(min=0)
        z = y.sub_(1).abs_()
        ctx.save_for_backward(y, z)
        return y + z

    @staticmethod
    def backward(ctx, g):
        y, z = ctx.saved_tensors
        return g.mul(y).add_(z, alpha=2)


class OutKw(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        torch.exp(x, out=y)
        z = torch.zeros_like(x)
        torch.mul(x, y, out=z[:])
        return y + z

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(g.shape)
        torch.add(g, g, alpha=3, out=out)
        return out


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        total = torch.zeros_like(x)

        def add(v):
            total.add_(v)
            return total

        for k in range(3):
            add(x * k)
        return total

    @staticmethod
    def backward(ctx, g):
        acc = g
        for k in range(2):
            acc = acc + g
        return acc


class LoopAlias(Function):
    @staticmethod
    def forward(ctx, x):
        state = x.clone()
        history = []
        for _ in range(3):
            state *= 0.5
            history.append(state)
        return torch.stack(history)

    @staticmethod
    def backward(ctx, g):
        out = torch.zeros_like(g[0])
        for i in reversed(range(3)):
            out += g[i] * 0.125
        return out


class ListAlias(Function):
    @staticmethod
    def forward(ctx, x):
        parts = [x.clone(), x.clone()]
        a = parts[0]
        a.mul_(2)
        return parts[0] + parts[1]

    @staticmethod
    def backward(ctx, g):
        d = {"g": g.clone()}
        h = d["g"]
        h *= 3
        return d["g"]


class CtxAlias(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        ctx.y = y
        y.mul_(2)
        return y.sum()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y


class SaveThenWrite(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y.add_(1)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class InplaceArg(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)


class GradAlias(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, g):
        h = g
        h.mul_(2)
        return g, h


class TupleSwap(Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x[0].clone(), x[1].clone()
        a, b = b, a
        a += 1
        b *= 2
        return a, b

    @staticmethod
    def backward(ctx, ga, gb):
        return torch.stack([gb * 2, ga])


class Cond(Function):
    @staticmethod
    def forward(ctx, x, flag=True, scale=2.0):
        if flag:
            y = x * scale
        else:
            y = x
        y += 1
        return y

    @staticmethod
    def backward(ctx, g):
        return g * 2, None, None


def double_(t):
    t.mul_(2)
    return t


def part(t):
    return t[0]


def fresh(t):
    return t * 2


class LambdaAlias(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        z = y
        f = lambda: z
        y.add_(1)
        return f() * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class ClosureReturn(Function):
    @staticmethod
    def forward(ctx, x):
        total = x * 1

        def get():
            return total

        z = get()
        z += 1
        return total + z

    @staticmethod
    def backward(ctx, g):
        return g * 2


class DictGet(Function):
    @staticmethod
    def forward(ctx, x):
        d = {"a": x.clone()}
        z = d.get("a")
        z.mul_(3)
        return d["a"] + z

    @staticmethod
    def backward(ctx, g):
        return g * 6


class SwapAlias(Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x * 1, x * 2
        c = a
        a, b = b, a
        b += 1
        return c + a

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Helpers(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        z = double_(y)
        w = fresh(x)
        p = part(w)
        return y + z + w * p

    @staticmethod
    def backward(ctx, g):
        return double_(g.clone()) + g


class HelperWrites(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        double_(y)
        return y

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        double_(part(g))
        return g


class ListMul(Function):
    @staticmethod
    def forward(ctx, x):
        zs = [torch.zeros_like(x)] * 3
        for k, z in enumerate(zs):
            z += x * k
        return torch.stack(zs)

    @staticmethod
    def backward(ctx, g):
        return g.sum(0) * 3


class LoopParts(Function):
    @staticmethod
    def forward(ctx, x):
        parts = [x * 1, x * 2]
        for p in parts:
            p.mul_(2)
        rows = [r * 2 for r in x]
        return parts[0] + parts[1] + torch.stack(rows)

    @staticmethod
    def backward(ctx, g):
        return g * 8


class CondAlias(Function):
    @staticmethod
    def forward(ctx, x, flag):
        base = x * 1
        y = base if flag else base.clone()
        y.add_(1)
        return base + y

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


class DataWrite(Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 2
        y.data[0] = 0
        z = x * 1
        z.data = y.data
        return y + z

    @staticmethod
    def backward(ctx, g):
        return g


class ReluInplace(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        F.relu(y, inplace=True)
        torch.relu_(y)
        z = x.clone()
        torch.Tensor.add_(z, y)
        return y + z

    @staticmethod
    def backward(ctx, g):
        return g * 2


class ShapeInplace(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone().unsqueeze_(0)
        y.squeeze_()
        y.t_()
        y.transpose_(0, 1)
        return y

    @staticmethod
    def backward(ctx, g):
        return g.t_().contiguous().t()


class WhileLoop(Function):
    @staticmethod
    def forward(ctx, x, n):
        k = 0
        prev = x.clone()
        cur = x.clone()
        while k < n:
            prev, cur = cur, prev
            cur.copy_(prev).mul_(0.5)
            k += 1
        return cur + prev

    @staticmethod
    def backward(ctx, g):
        return g, None


class StarArgs(Function):
    @staticmethod
    def forward(ctx, *xs):
        ctx.n = len(xs)
        acc = xs[0].clone()
        for x in xs[1:]:
            acc.add_(x)
        return acc

    @staticmethod
    def backward(ctx, g):
        return (g,) * ctx.n


class Cumul(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        acc = torch.zeros(x.size(0))
        for j in range(x.size(1)):
            acc = acc * 0.5 + x[:, j]
            out[:, j] = acc
        return out

    @staticmethod
    def backward(ctx, g):
        gx = torch.empty_like(g)
        acc = torch.zeros_like(g[:, 0])
        for j in range(g.size(1) - 1, -1, -1):
            acc = acc * 0.5 + g[:, j]
            gx[:, j].copy_(acc)
        return gx


class Cumul2(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.zeros_like(x)
        acc = torch.zeros(x.size(0))
        for j in range(x.size(1)):
            acc.mul_(0.5).add_(x[:, j])
            out[:, j] = acc
        return out

    @staticmethod
    def backward(ctx, g):
        return g


class Cumul3(Function):
    @staticmethod
    def forward(ctx, x):
        outs = []
        acc = torch.zeros(x.size(0))
        for j in range(x.size(1)):
            acc.mul_(0.5).add_(x[:, j])
            outs.append(acc)
        return torch.stack(outs, 1)

    @staticmethod
    def backward(ctx, g):
        return g


class SetterThenRead(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        ctx.save_for_backward(y)
        z = y * 1
        y = y + 1
        y.mul_(2)
        return y + z

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        out = g * y
        y2 = y.clone()
        y2 -= 1
        return out + y2 * 0


def write_into(x, out):
    out.copy_(2 * x)


WRITERS = {"into": write_into}


class WriterFromDict(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        WRITERS["into"](x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class WriterInLambda(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        write = lambda: write_into(x, y)
        write()
        return y

    @staticmethod
    def backward(ctx, g):
        return 2 * g
