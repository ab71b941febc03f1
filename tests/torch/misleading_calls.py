"""Functions whose calls a translator could take for others, and must not.

Each has its forward under its name, and then its backward: see `texts.functions`.
"""

HELPERS = """\
SCALE = 3

TABLE = [1.0, 2.0, 4.0]
"""

FUNCTIONS = """\
def ViewOfT(ctx, x):
    return x.t().contiguous().view(-1)
def backward(ctx, g):
    return g.view(3, 2).t()

def Reshape2(ctx, x):
    ctx.shape = x.shape
    return x.transpose(0, 1).reshape(-1)
def backward(ctx, g):
    return g.reshape(ctx.shape[1], ctx.shape[0]).transpose(0, 1)

def IntDiv(ctx, x, n):
    k = n // 2
    idx = torch.arange(x.size(-1)) // 2
    ctx.k = k
    return (
        x * idx
        + torch.div(x, 0.7, rounding_mode="trunc")
        + torch.div(x, 0.7, rounding_mode="floor")
    )
def backward(ctx, g):
    idx = torch.arange(g.size(-1)) // 2
    return g * idx * ctx.k, None

def FloorDivNeg(ctx, x):
    a = torch.arange(-4, 2)
    return x.sum() * (a // 3) + (a % 3) + torch.remainder(a, -3) + torch.fmod(a, 3)
def backward(ctx, g):
    return g.sum() * torch.ones(2, 3)

def Unbiased(ctx, x):
    ctx.save_for_backward(x)
    return (
        x.std(-1, unbiased=False)
        + x.var(dim=1, correction=0)
        + x.std(dim=(0, 1), keepdim=False)
        + x.var(0, False)[:1]
        + x.std(1, True)
    )
def backward(ctx, g):
    (x,) = ctx.saved_tensors
    return g.unsqueeze(1).expand_as(x).clone()

def WhereScalar(ctx, x):
    y = torch.where(x > 0, 1.0, 0.0)
    z = torch.where(x > 0, 1, 0)
    w = torch.where(x > 0, x, 0)
    ctx.save_for_backward(z)
    return y + z / 2 + w
def backward(ctx, g):
    (z,) = ctx.saved_tensors
    return torch.where(z.bool(), g, -g)

def Promote(ctx, x, n):
    i = torch.tensor([1, 2, 3])
    h = i / 2
    b = (x > 0) + (x > 1)
    s = torch.tensor(2.0)
    return (
        x.half() * s,
        i * 2.5,
        h,
        b,
        i.float().mean(),
        (x > 0).sum(),
        i.sum() / 2,
        torch.true_divide(i, 2),
        i**2,
        2**i,
        i.pow(2.0),
    )
def backward(ctx, *gs):
    return gs[0].float(), None

def NoneGrad(ctx, x, y):
    ctx.save_for_backward(x, y)
    ctx.set_materialize_grads(False)
    return x * y, x + y
def backward(ctx, g1, g2):
    x, y = ctx.saved_tensors
    gx = gy = None
    if g1 is not None:
        gx = g1 * y
        if ctx.needs_input_grad[1]:
            gy = g1 * x
    if g2 is not None:
        gx = g2 if gx is None else gx + g2
        gy = g2 if gy is None else gy + g2
    return gx, gy

def Shadow(ctx, x):
    torch_sum = x.sum
    sum = torch_sum(1)
    max = x.max(1).values
    jnp = x * 2
    F = jnp + 1
    ctx.save_for_backward(F)
    return sum + max + F.sum(0)[:2]
def backward(ctx, g):
    (F,) = ctx.saved_tensors
    jax = g.unsqueeze(-1)
    return torch.relu(F) * jax

def Indexing(ctx, x, idx):
    ctx.save_for_backward(idx)
    ctx.n = x.shape[0]
    return (
        x.index_select(0, idx)
        + x[idx]
        + x.gather(0, idx.unsqueeze(1).expand(-1, x.size(1)))
    )
def backward(ctx, g):
    (idx,) = ctx.saved_tensors
    out = g.new_zeros(ctx.n, g.size(1))
    out.index_add_(0, idx, g)
    out2 = torch.zeros(ctx.n, g.size(1)).scatter_add_(
        0, idx.unsqueeze(1).expand_as(g), g
    )
    out3 = torch.zeros_like(out).index_add(0, idx, g, alpha=0.5)
    return out + out2 + out3 * 2, None

def DupWrite(ctx, x, idx):
    y = torch.zeros(4, x.size(1))
    y[idx] += x
    return y
def backward(ctx, g):
    return torch.ones(3, g.size(1)), None

def Slices(ctx, x):
    y = torch.zeros(4, 6)
    y[1:3, ::2] = x
    y[:, 1::2] += 1
    y[-1] = 5
    y[0, 0] -= 2
    y[..., 3] /= 2
    y[:, 4] **= 2
    return y
def backward(ctx, g):
    return g[1:3, ::2].clone()

def Roll(ctx, x):
    return (
        torch.roll(x, 1, -1)
        + x.flip(-1)
        + torch.flip(x, [0, 1])
        + x.roll((1, 2), (0, 1))
    )
def backward(ctx, g):
    return (
        torch.roll(g, shifts=-1, dims=-1)
        + g.flip([-1])
        + g.flip(0, 1)
        + g.roll((-1, -2), dims=(0, 1))
    )

def Einsum(ctx, x, w):
    ctx.save_for_backward(x, w)
    return (
        torch.einsum("ij,kj->ik", x, w)
        + F.linear(x, w)
        + torch.addmm(torch.ones(2, 2), x, w.t(), beta=0.5, alpha=2)
        + torch.matmul(x, w.mT)
        + x.mm(w.t())
    )
def backward(ctx, g):
    x, w = ctx.saved_tensors
    return torch.mm(g, w) * 5, torch.einsum("ij,ik->jk", [g, x]) * 5

def Clamps(ctx, x, lo):
    return (
        x.clamp(-1, 1)
        + x.clamp_min(0.2)
        + torch.clamp(x, max=0.5)
        + x.clip(min=lo)
        + x.clamp(lo, 1.0)
        + x.clamp(max=lo)
    )
def backward(ctx, g):
    return g.clamp_(min=0), None

def Rounding(ctx, x):
    return (
        x.round()
        + torch.round(x, decimals=1)
        + x.trunc()
        + x.frac()
        + torch.sign(x)
        + torch.heaviside(x, torch.tensor(0.5))
        + x.sgn()
    )
def backward(ctx, g):
    return g.sign() * g

def Alpha(ctx, x, y):
    return (
        torch.add(x, y, alpha=2)
        - torch.sub(x, y, alpha=3)
        + x.addcmul(x, y, value=0.5)
        + torch.addcdiv(x, y, y + 3, value=2)
        + torch.lerp(x, y, 0.3)
        + torch.rsub(x, y)
    )
def backward(ctx, g):
    return g.add(g, alpha=2), torch.sub(g, g, alpha=4)

def Splits(ctx, x):
    a, b, c = x.chunk(3, dim=-1)
    d, e = x.split([1, 2], dim=1)
    f = x.unbind(0)
    g, h = torch.split(x, 2, dim=-1)
    return (
        a
        + b * 2
        + c * 3
        + d
        + e.sum(1, True)
        + f[0].sum()
        + g.sum(-1, keepdim=True)
        + h
    )
def backward(ctx, g):
    return torch.cat([g, g * 2, g * 3], -1)

def Uneven(ctx, x):
    a, b = x.chunk(2, dim=1)
    return a.sum(1) + 2 * b.sum(1)
def backward(ctx, g):
    return g[:, None].repeat(1, 3)

def DtypeCheck(ctx, x):
    ctx.dtype = x.dtype
    if x.dtype == torch.float32:
        return x * 2
    return x * 3
def backward(ctx, g):
    return (2 * g).to(ctx.dtype)

def Expand(ctx, x):
    y = torch.zeros(3).expand(2, 3).clone()
    y += x
    z = x.sum(0, keepdim=True).expand(2, -1)
    return (
        y
        + z
        + x.new_full((3,), 2)
        + x.new_tensor([1, 2, 3])
        + torch.full((3,), 1.5)
        + torch.arange(3)
        + torch.linspace(0, 1, 3)
        + torch.eye(3)[:2]
    )
def backward(ctx, g):
    return g + g.sum(0)

def HalfPlus(ctx, x):
    h = x.half()
    h += x
    h.mul_(x)
    h2 = x.half()
    h2[0] = x[1]
    h2[h2 > 0] = 1.00001
    return h, h2
def backward(ctx, g, g2):
    return g.float() + g2.float()

def ZeroDim(ctx, x):
    s = torch.tensor(0.1, dtype=torch.float32)
    h = x.half()
    return h * s, torch.where(h > 0, h, s), h + x.sum(), torch.maximum(h, s.half())
def backward(ctx, a, b, c, d):
    return (a + b + c + d).float()

def IntMask(ctx, x):
    i = torch.arange(6).view(2, 3)
    i[i > 3] = 2.7
    b = x > 0
    b[0, 0] = 1
    b[b] = 0
    c = torch.zeros(2, 3, dtype=torch.int32)
    c[x > 0] = 1.9
    return x * i, b, c
def backward(ctx, g, _, __):
    return g

def Walrus(ctx, x):
    if (n := x.size(0)) > 1:
        y = x * n
    else:
        y = x
    ctx.n = n
    return y
def backward(ctx, g):
    return g * ctx.n

def MaskReads(ctx, x):
    m = x > 0
    y = x[m].sum() + x[~m].mean()
    z = torch.zeros_like(x)
    z[m] = x[m] * 2
    z[~m] += 1
    return z + y
def backward(ctx, g):
    g = g.clone()
    g[g > 0.5] = 0
    return g

def Builtins(ctx, x):
    n = len(x)
    s = sum([x[0], x[1]])
    t = sum(r.sum() for r in x)
    k = max(n, 2) + min(3, x.dim()) + abs(-2)
    return (
        s * k + t + int(x.shape[1]) / 2 + float(n) + round(2.5) + TABLE[1] * SCALE
    )
def backward(ctx, g):
    return g.expand(2, 3) * 2

def DeviceBranch(ctx, x):
    if x.is_cuda:
        y = x * 100
    elif x.device.type == "cuda":
        y = x * 1000
    else:
        y = x * 2
    if x.device != torch.device("cpu"):
        y = y * 5
    return y
def backward(ctx, g):
    if not g.is_cuda:
        return g * 2
    return g

def Hist(ctx, x):
    e, v = x[:, :2].mT @ x[:, :2], None
    w, q = torch.linalg.eigh(e + 3 * torch.eye(2))
    L = torch.linalg.cholesky(e + torch.eye(2))
    return (
        w.sum()
        + L.diagonal().log().sum() * 2
        - torch.logdet(e + torch.eye(2))
        + torch.diag(L).prod()
        + L.tril(-1).sum()
        + torch.trace(e)
    )
def backward(ctx, g):
    return g * torch.ones(2, 3)

def KwDefault(ctx, x, p=2, dim=-1, eps=1e-6):
    n = x.norm(p, dim, True)
    ctx.save_for_backward(x, n)
    ctx.eps = eps
    return x / (n + eps)
def backward(ctx, g):
    x, n = ctx.saved_tensors
    return g / (n + ctx.eps), None, None, None

def MultiOut(ctx, x):
    idx = x.argmax(1)
    ctx.mark_non_differentiable(idx)
    ctx.save_for_backward(idx)
    ctx.shape = tuple(x.shape)
    return x.max(1)[0], idx
def backward(ctx, g, _):
    (idx,) = ctx.saved_tensors
    out = torch.zeros(ctx.shape)
    out.scatter_(1, idx.unsqueeze(1), g.unsqueeze(1))
    return out

def IndexPut(ctx, x):
    idx = torch.tensor([0, 1, 1])
    y = torch.zeros(2, 3)
    y.index_put_((idx, torch.tensor([0, 1, 1])), torch.ones(3), accumulate=True)
    y[idx, torch.tensor([2, 2, 2])] = x[0]
    y[[0, 1], [1, 0]] += 5
    return y + x[:, [2, 0, 1]]
def backward(ctx, g):
    return g[:, [1, 2, 0]]

def Asking(ctx, x):
    if not (x > 100).any() and x.dim() == 2:
        x = x * 2
    return x if hasattr(x, "storage") else x * 3
def backward(ctx, g):
    if len(g) > 1 and 0 < g.sum() < 1e9:
        g = g * max(g.max(), 2.0)
    return g

def MedianOfNan(ctx, x):
    gap = torch.where(x > x.min(), x, x.new_tensor(float("nan")))
    return torch.isnan(gap.median()) * x.median() + x.argsort(-1).median()
def backward(ctx, g):
    return g * torch.ones(2, 3)

def NarrowSum(ctx, x):
    return torch.full((4,), 100).to(torch.int8).cumsum(0) * x.sum()
def backward(ctx, g):
    return g.sum() * torch.ones(2, 3)

def EmptyDim(ctx, x):
    return x * x.sum(dim=())
def backward(ctx, g):
    return g
"""
