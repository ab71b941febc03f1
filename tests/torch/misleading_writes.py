"""Functions whose writes a translator could take for bindings, and must not.

Each has its forward under its name, and then its backward: see `texts.functions`.
"""

HELPERS = """\
def double_(t):
    t.mul_(2)
    return t

def part(t):
    return t[0]

def fresh(t):
    return t * 2

def write_into(x, out):
    out.copy_(2 * x)

WRITERS = {"into": write_into}
"""

FUNCTIONS = """\
def AliasAug(ctx, x):
    y = x.clone()
    z = y
    z += 1
    ctx.save_for_backward(y)
    return y * 2
def backward(ctx, g):
    (y,) = ctx.saved_tensors
    return g * y

def ViewWrite(ctx, x):
    y = x * 1
    v = y[0]
    v.mul_(3)
    return y
def backward(ctx, g):
    g = g.clone()
    g[0] *= 3
    return g

def Chained(ctx, x):
    y = x.clone().add_(1).mul_(2).clamp_(min=0)
    z = y.sub_(1).abs_()
    ctx.save_for_backward(y, z)
    return y + z
def backward(ctx, g):
    y, z = ctx.saved_tensors
    return g.mul(y).add_(z, alpha=2)

def OutKw(ctx, x):
    y = torch.empty_like(x)
    torch.exp(x, out=y)
    z = torch.zeros_like(x)
    torch.mul(x, y, out=z[:])
    return y + z
def backward(ctx, g):
    out = g.new_empty(g.shape)
    torch.add(g, g, alpha=3, out=out)
    return out

def Nested(ctx, x):
    total = torch.zeros_like(x)

    def add(v):
        total.add_(v)
        return total

    for k in range(3):
        add(x * k)
    return total
def backward(ctx, g):
    acc = g
    for k in range(2):
        acc = acc + g
    return acc

def LoopAlias(ctx, x):
    state = x.clone()
    history = []
    for _ in range(3):
        state *= 0.5
        history.append(state)
    return torch.stack(history)
def backward(ctx, g):
    out = torch.zeros_like(g[0])
    for i in reversed(range(3)):
        out += g[i] * 0.125
    return out

def ListAlias(ctx, x):
    parts = [x.clone(), x.clone()]
    a = parts[0]
    a.mul_(2)
    return parts[0] + parts[1]
def backward(ctx, g):
    d = {"g": g.clone()}
    h = d["g"]
    h *= 3
    return d["g"]

def CtxAlias(ctx, x):
    y = x.clone()
    ctx.y = y
    y.mul_(2)
    return y.sum()
def backward(ctx, g):
    return g * ctx.y

def SaveThenWrite(ctx, x):
    y = x.exp()
    ctx.save_for_backward(y)
    return y.add_(1)
def backward(ctx, g):
    (y,) = ctx.saved_tensors
    return g * y

def InplaceArg(ctx, x):
    ctx.mark_dirty(x)
    x.mul_(2)
    return x
def backward(ctx, g):
    return g.mul_(2)

def GradAlias(ctx, x, y):
    return x + y
def backward(ctx, g):
    h = g
    h.mul_(2)
    return g, h

def TupleSwap(ctx, x):
    a, b = x[0].clone(), x[1].clone()
    a, b = b, a
    a += 1
    b *= 2
    return a, b
def backward(ctx, ga, gb):
    return torch.stack([gb * 2, ga])

def Cond(ctx, x, flag=True, scale=2.0):
    if flag:
        y = x * scale
    else:
        y = x
    y += 1
    return y
def backward(ctx, g):
    return g * 2, None, None

def LambdaAlias(ctx, x):
    y = x.clone()
    z = y
    f = lambda: z
    y.add_(1)
    return f() * 2
def backward(ctx, g):
    return g * 2

def ClosureReturn(ctx, x):
    total = x * 1

    def get():
        return total

    z = get()
    z += 1
    return total + z
def backward(ctx, g):
    return g * 2

def DictGet(ctx, x):
    d = {"a": x.clone()}
    z = d.get("a")
    z.mul_(3)
    return d["a"] + z
def backward(ctx, g):
    return g * 6

def SwapAlias(ctx, x):
    a, b = x * 1, x * 2
    c = a
    a, b = b, a
    b += 1
    return c + a
def backward(ctx, g):
    return g * 3

def Helpers(ctx, x):
    y = x.clone()
    z = double_(y)
    w = fresh(x)
    p = part(w)
    return y + z + w * p
def backward(ctx, g):
    return double_(g.clone()) + g

def HelperWrites(ctx, x):
    y = x.clone()
    double_(y)
    return y
def backward(ctx, g):
    g = g.clone()
    double_(part(g))
    return g

def ListMul(ctx, x):
    zs = [torch.zeros_like(x)] * 3
    for k, z in enumerate(zs):
        z += x * k
    return torch.stack(zs)
def backward(ctx, g):
    return g.sum(0) * 3

def LoopParts(ctx, x):
    parts = [x * 1, x * 2]
    for p in parts:
        p.mul_(2)
    rows = [r * 2 for r in x]
    return parts[0] + parts[1] + torch.stack(rows)
def backward(ctx, g):
    return g * 8

def CondAlias(ctx, x, flag):
    base = x * 1
    y = base if flag else base.clone()
    y.add_(1)
    return base + y
def backward(ctx, g):
    return g * 2, None

def DataWrite(ctx, x):
    y = x * 2
    y.data[0] = 0
    z = x * 1
    z.data = y.data
    return y + z
def backward(ctx, g):
    return g

def ReluInplace(ctx, x):
    y = x.clone()
    F.relu(y, inplace=True)
    torch.relu_(y)
    z = x.clone()
    torch.Tensor.add_(z, y)
    return y + z
def backward(ctx, g):
    return g * 2

def ShapeInplace(ctx, x):
    y = x.clone().unsqueeze_(0)
    y.squeeze_()
    y.t_()
    y.transpose_(0, 1)
    return y
def backward(ctx, g):
    return g.t_().contiguous().t()

def WhileLoop(ctx, x, n):
    k = 0
    prev = x.clone()
    cur = x.clone()
    while k < n:
        prev, cur = cur, prev
        cur.copy_(prev).mul_(0.5)
        k += 1
    return cur + prev
def backward(ctx, g):
    return g, None

def StarArgs(ctx, *xs):
    ctx.n = len(xs)
    acc = xs[0].clone()
    for x in xs[1:]:
        acc.add_(x)
    return acc
def backward(ctx, g):
    return (g,) * ctx.n

def Cumul(ctx, x):
    out = torch.empty_like(x)
    acc = torch.zeros(x.size(0))
    for j in range(x.size(1)):
        acc = acc * 0.5 + x[:, j]
        out[:, j] = acc
    return out
def backward(ctx, g):
    gx = torch.empty_like(g)
    acc = torch.zeros_like(g[:, 0])
    for j in range(g.size(1) - 1, -1, -1):
        acc = acc * 0.5 + g[:, j]
        gx[:, j].copy_(acc)
    return gx

def Cumul2(ctx, x):
    out = torch.zeros_like(x)
    acc = torch.zeros(x.size(0))
    for j in range(x.size(1)):
        acc.mul_(0.5).add_(x[:, j])
        out[:, j] = acc
    return out
def backward(ctx, g):
    return g

def Cumul3(ctx, x):
    outs = []
    acc = torch.zeros(x.size(0))
    for j in range(x.size(1)):
        acc.mul_(0.5).add_(x[:, j])
        outs.append(acc)
    return torch.stack(outs, 1)
def backward(ctx, g):
    return g

def SetterThenRead(ctx, x):
    y = x.clone()
    ctx.save_for_backward(y)
    z = y * 1
    y = y + 1
    y.mul_(2)
    return y + z
def backward(ctx, g):
    (y,) = ctx.saved_tensors
    out = g * y
    y2 = y.clone()
    y2 -= 1
    return out + y2 * 0

def WriterFromDict(ctx, x):
    y = torch.empty_like(x)
    WRITERS["into"](x, y)
    return y
def backward(ctx, g):
    return 2 * g

def WriterInLambda(ctx, x):
    y = torch.empty_like(x)
    write = lambda: write_into(x, y)
    write()
    return y
def backward(ctx, g):
    return 2 * g
"""
