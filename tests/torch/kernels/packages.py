"""Functions of liger-kernel and fla, with arguments and formulas.

Each formula gives the same outputs in double precision, with plain torch.
"""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

_RANDOM = torch.Generator()


def normal(*shape, scale=1.0, dtype=torch.float32):
    return (torch.randn(shape, generator=_RANDOM) * scale).to(dtype)


def below(n, *shape):
    return torch.randint(0, n, shape, generator=_RANDOM)


@dataclasses.dataclass
class Case:
    """A Function with what it is called with.

    Attributes:
        name: Name of the case.
        path: Module and class.
        make: Makes arguments, the same at each call.
        formula: The outputs, in double precision.
        by: Positions that are differentiated; None for all float tensors.
        tolerance: Greatest error, relative to the greatest number of an array.
    """

    name: str
    path: str
    make: Callable[[], list[Any]]
    formula: Callable[..., Any]
    by: tuple[int, ...] | None = None
    tolerance: float = 3e-5

    def load(self):
        module, name = self.path.split(":")
        return getattr(importlib.import_module(module), name)

    def arguments(self, seed=1):
        _RANDOM.manual_seed(seed)
        return self.make()

    def positions(self, arguments):
        return [
            i
            for i, x in enumerate(arguments)
            if isinstance(x, torch.Tensor)
            and (x.is_floating_point() or x.is_complex())
            and (self.by is None or i in self.by)
        ]

    @property
    def is_here(self):
        return importlib.util.find_spec(self.path.split(".")[0]) is not None


CASES: list[Case] = []


def liger(where, make, formula, label="", **options):
    name = where.split(":")[1] + label
    CASES.append(Case(name, "liger_kernel.ops." + where, make, formula, **options))


def fla(where, make, formula, label="", **options):
    name = "fla " + where.rsplit(".", 1)[-1] + label
    options = {"tolerance": 3e-4, **options}
    CASES.append(Case(name, "fla." + where, make, formula, **options))


# ---- liger-kernel


def unit(x, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def some_ignored():
    y = below(30, 6)
    y[2] = -100
    return y


def two_copies(x):
    return torch.cat([x, x], -1)


def rope_arguments():
    angle = normal(1, 5, 4)
    cos, sin = two_copies(angle.cos()), two_copies(angle.sin())
    return [normal(2, 3, 5, 8), normal(2, 2, 5, 8), cos, sin]


def rope(q, k, cos, sin):
    cos, sin = cos[:, None, :, :4], sin[:, None, :, :4]
    return turned(q, cos, sin), turned(k, cos, sin)


def complex_rope(q, k, factor):
    def one(x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * factor[:, None]).flatten(-2)

    return one(q), one(k)


def capped_cross_entropy(x, y, *_):
    x = 10 * torch.tanh(x / 10)
    return F.cross_entropy(x, y, reduction="sum", label_smoothing=0.1)


def distance(x, z, y):
    apart = (x.softmax(-1) - z.softmax(-1)).abs().sum(-1) / 2
    return F.cross_entropy(x, y, reduction="none"), apart


def coefficients(x, phi, b, pre, post, res, _, rounds, e, pre_e, se, times):
    m = unit(x.flatten(1), e) @ phi
    w = (res * m[:, 8:] + b[8:]).unflatten(1, (4, 4)).softmax(-1) + se
    w = w / (w.sum(1, keepdim=True) + se)
    for _ in range(rounds - 1):
        w = w / (w.sum(2, keepdim=True) + se)
        w = w / (w.sum(1, keepdim=True) + se)
    before = (pre * m[:, :4] + b[:4]).sigmoid() + pre_e
    return before, times * (post * m[:, 4:8] + b[4:8]).sigmoid(), w


def neighborhood(q, k, v, size, _):
    apart = (torch.arange(16)[:, None] - torch.arange(16)).abs()
    scores = (q @ k.mT / 4).masked_fill(apart > size // 2, float("-inf"))
    return scores.softmax(-1) @ v


def blended(v, q, w, e):
    return ((unit(v, e) * w @ q).softmax(0)[..., None] * v).sum(0)


RMS = "rms_norm:LigerRMSNormFunction"
for mode, offset, in_place, rows in (
    ("llama", 0.0, False, True),
    ("gemma", 1.0, True, None),
    ("none", 0.0, True, True),
):
    liger(
        RMS,
        lambda m=mode, o=offset, i=in_place, r=rows: [
            normal(3, 4, 20), normal(20), 1e-6, o, m, i, r
        ],
        lambda x, w, e, o, *_: unit(x, e) * (w + o),
        label=f" {mode}",
    )  # fmt: skip
HALF = {"dtype": torch.bfloat16}
liger(
    RMS,
    lambda: [normal(3, 4, 20, **HALF), normal(20, **HALF), 1e-6, 0.0, "llama", True],
    lambda x, w, e, *_: unit(x, e) * w,
    label=" bfloat16",
    tolerance=2e-2,
)
liger(
    "layer_norm:LigerLayerNormFunction",
    lambda: [normal(3, 4, 20), normal(20), normal(20), 1e-5],
    lambda x, w, b, e: F.layer_norm(x, x.shape[-1:], w, b, e),
)
liger(
    "swiglu:LigerSiLUMulFunction",
    lambda: [normal(3, 4, 20), normal(3, 4, 20)],
    lambda a, b: F.silu(a) * b,
)
liger(
    "swiglu:LigerFusedGateUpSiLUMulFunction",
    lambda: [normal(3, 40)],
    lambda x: F.silu(x[:, :20]) * x[:, 20:],
)
liger(
    "geglu:LigerGELUMulFunction",
    lambda: [normal(3, 4, 20), normal(3, 4, 20)],
    lambda a, b: F.gelu(a, approximate="tanh") * b,
)
ENTROPY = "cross_entropy:LigerCrossEntropyFunction"
liger(
    ENTROPY,
    lambda: [normal(6, 30), some_ignored(), None, -100, 0.0, 0.0, "mean", None, False],
    lambda x, y, *_: F.cross_entropy(x, y),
)
liger(
    ENTROPY,
    lambda: [normal(6, 30), some_ignored(), None, -100, 0.0, 0.1, "sum", 10.0, False],
    capped_cross_entropy,
    label=" capped",
)
liger("rope:LigerRopeFunction", rope_arguments, rope, by=(0, 1))
liger(
    "llama4_rope:LigerLlama4RopeFunction",
    lambda: [
        normal(2, 5, 3, 8),
        normal(2, 5, 2, 8),
        torch.polar(torch.ones(5, 4), normal(5, 4)),
    ],
    complex_rope,
    by=(0, 1),
)
liger("softmax:LigerSoftmaxFunction", lambda: [normal(5, 37)], lambda x: x.softmax(-1))
liger(
    "dyt:LigerDyTFunction",
    lambda: [normal(3, 4, 20), normal(1), normal(20), normal(20)],
    lambda x, a, g, b: g * torch.tanh(a * x) + b,
)
liger(
    "fused_add_rms_norm:LigerFusedAddRMSNormFunction",
    lambda: [
        normal(3, 4, 20), normal(3, 4, 20), normal(20), 1e-6, 0.0, "llama", True
    ],
    lambda x, r, w, e, *_: (unit(x + r, e) * w, x + r),
)  # fmt: skip
liger(
    "relu_squared:LigerReLUSquaredFunction",
    lambda: [normal(3, 4, 20)],
    lambda x: x.relu() ** 2,
)
liger(
    "kl_div:LigerKLDivLossFunction",
    lambda: [normal(6, 20).log_softmax(-1), normal(6, 20).softmax(-1), "batchmean"],
    lambda a, b, *_: F.kl_div(a, b, reduction="batchmean"),
    by=(0,),
)
liger(
    "fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction",
    lambda: [normal(6, 8), normal(30, 8), some_ignored(), normal(30)],
    lambda x, w, y, b: F.cross_entropy(x @ w.T + b, y),
)
liger(
    "fused_linear_kl_div:LigerFusedLinearKLDivFunction",
    lambda: [normal(6, 8), normal(20, 8), normal(6, 20).softmax(-1), None],
    lambda x, w, q, _: F.kl_div((x @ w.T).log_softmax(-1), q, reduction="batchmean"),
    by=(0, 1),
)
liger(
    "fused_ce_tvd:LigerFusedCETVDFunction",
    lambda: [normal(6, 20), normal(6, 20), below(20, 6)],
    distance,
    by=(0,),
)
liger(
    "mhc:LigerMHCPreFunction",
    lambda: [normal(6, 4, 16), normal(6, 4)],
    lambda x, h: (x * h[..., None]).sum(1),
)
liger(
    "mhc:LigerMHCCoeffsFunction",
    lambda: [
        normal(6, 4, 16), normal(64, 24), normal(24), normal(1)[0], normal(1)[0],
        normal(1)[0], True, 5, 1e-6, 1e-6, 1e-6, 2.0,
    ],
    coefficients,
    tolerance=3e-4,
)  # fmt: skip
liger(
    "attn_res:LigerAttnResFunction",
    lambda: [normal(3, 2, 4, 16), normal(16), normal(16), 1e-6],
    blended,
    tolerance=1e-4,
)
liger(
    "fused_neighborhood_attention:LigerFusedNeighborhoodAttentionFunction",
    lambda: [normal(1, 2, 16, 16), normal(1, 2, 16, 16), normal(1, 2, 16, 16), 3, 1],
    neighborhood,
    tolerance=1e-4,
)


# ---- fla


def heads(scale=0.5):
    return normal(1, 20, 2, 16, scale=scale)


def keys():
    return F.normalize(normal(1, 20, 2, 16), dim=-1)


def decay(*shape):
    return F.logsigmoid(normal(*shape))


def start():
    return normal(1, 2, 16, 16, scale=0.3)


def outer(a, b):
    return a[..., :, None] * b[..., None, :]


def read(state, k):
    return torch.einsum("bhk,bhkv->bhv", k, state)


def recurrent(q, k, v, state, scale, step):
    out = []
    for i in range(q.shape[1]):
        state = step(state, k[:, i], v[:, i], i)
        out.append(scale * read(state, q[:, i]))
    return torch.stack(out, 1), state


def gated(q, k, v, g, scale, state, *_):
    def step(state, k, v, i):
        return state * g[:, i].exp()[..., None] + outer(k, v)

    return recurrent(q, k, v, state, scale, step)


def simple(q, k, v, g, _, scale, state, *__):
    return gated(q, k, v, g[..., None], scale, state)


def delta(q, k, v, b, scale, state, *_):
    def step(state, k, v, i):
        return state + outer(k, b[:, i, :, None] * (v - read(state, k)))

    return recurrent(q, k, v, state, scale, step)


def gated_delta(q, k, v, g, b, scale, state, *_):
    def step(state, k, v, i):
        state = state * g[:, i].exp()[..., None, None]
        return state + outer(k, b[:, i, :, None] * (v - read(state, k)))

    return recurrent(q, k, v, state, scale, step)


def rwkv6(q, k, v, w, u, scale, state, *_):
    out = []
    for i in range(q.shape[1]):
        kv = outer(k[:, i], v[:, i])
        out.append(scale * read(state + u[None, :, :, None] * kv, q[:, i]))
        state = state * w[:, i].exp()[..., None] + kv
    return torch.stack(out, 1)


def linear(x, g, h, _):
    out = []
    for i in range(x.shape[1]):
        h = g[:, i].exp() * h + x[:, i]
        out.append(h)
    return torch.stack(out, 1), h


def attention(q, k, v, _, __, scale, *___):
    scores = torch.einsum("bihk,bjhk->bhij", q, k) * scale
    later = torch.ones(20, 20).triu(1).bool()
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    return torch.einsum("bhij,bjhv->bihv", weights, v)


def slots(q, k, v, s, g, scale, *_):
    def write(state, k, s, i):
        return state * g[:, i].exp()[..., None, :] + outer(k, s)

    def recall(state, s, v, i):
        return state * g[:, i].exp()[..., None] + outer(s, v)

    empty = torch.zeros_like(outer(k[:, 0], s[:, 0]))
    seen, _ = recurrent(q, k, s, empty, scale, write)
    empty = torch.zeros_like(outer(s[:, 0], v[:, 0]))
    return recurrent(seen.softmax(-1), s, v, empty, 1.0, recall)[0]


def convolved(x, w, b, *_):
    x = F.pad(x.mT, (3, 0))
    return F.silu(F.conv1d(x, w[:, None], b, groups=16)).mT


fla(
    "modules.activations.ops:SwishFunction", lambda: [normal(3, 4, 20)], F.silu
)  # fmt: skip
fla(
    "modules.activations.ops:LogSigmoidFunction",
    lambda: [normal(3, 4, 20), 2.0],
    lambda x, s: F.logsigmoid(x) / s,
)
fla(
    "modules.activations.ops:SwiGLULinearFunction",
    lambda: [normal(3, 4, 20), normal(3, 4, 20), normal(8, 20), normal(8)],
    lambda x, y, w, b: (F.silu(x) * y) @ w.T + b,
)
fla(
    "modules.causal_conv1d.ops:CausalConv1dFunction",
    lambda: [
        normal(2, 20, 16), normal(16, 4), normal(16), None, None, False, "silu",
        None, None, None,
    ],
    convolved,
)  # fmt: skip
fla(
    "modules.fused_cross_entropy.ops:CrossEntropyLossFunction",
    lambda: [normal(6, 30), below(30, 6)],
    lambda x, y: F.cross_entropy(x, y, reduction="none"),
)
fla(
    "modules.norm.fused_norm_gate:LayerNormGatedFunction",
    lambda: [
        normal(2, 5, 20), normal(2, 5, 20), normal(20), None, "swish", None, 1e-6,
        False, False, True,
    ],
    lambda x, g, w, *_: unit(x) * w * F.silu(g),
)  # fmt: skip
fla(
    "modules.norm.l2norm:L2NormFunction",
    lambda: [normal(2, 5, 20), 1e-6, None],
    lambda x, e, _: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + e),
)
fla(
    "modules.norm.layernorm:LayerNormFunction",
    lambda: [normal(2, 5, 20), normal(20), normal(20), None, 1e-5],
    lambda x, w, b, r, e: F.layer_norm(x, (20,), w, b, e),
)
fla(
    "modules.norm.layernorm:LayerNormFunction",
    lambda: [
        normal(2, 5, 20), normal(20), None, normal(2, 5, 20), 1e-5, True, True, True
    ],
    lambda x, w, b, r, e, *_: (unit(x + r, e) * w, x + r),
    label=" added",
)  # fmt: skip
fla(
    "modules.rotary.ops:RotaryEmbeddingFunction",
    lambda: [normal(2, 5, 3, 16), normal(5, 8).cos(), normal(5, 8).sin()],
    lambda x, c, s: turned(x, c[:, None], s[:, None]),
    by=(0,),
)
fla(
    "modules.token_shift:TokenShift",
    lambda: [normal(2, 20, 16)],
    lambda x: F.pad(x, (0, 0, 1, -1)) - x,
)
fla(
    "ops.utils.pooling:MeanPoolingFunction",
    lambda: [normal(1, 20, 2, 16), 4],
    lambda x, n: x.unflatten(1, (-1, n)).mean(2),
)
fla(
    "ops.hgrn.fused_recurrent:FusedRecurrentHGRNFunction",
    lambda: [normal(2, 20, 16), decay(2, 20, 16), normal(2, 16), True],
    linear,
)
fla(
    "ops.common.fused_recurrent:FusedRecurrentFunction",
    lambda: [
        heads(), heads(), heads(), decay(1, 20, 2), None, None, None, 0.25, start(),
        True,
    ],
    lambda q, k, v, g, a, b, c, s, state, *_: simple(q, k, v, g, None, s, state),
)  # fmt: skip
fla(
    "ops.simple_gla.chunk:ChunkSimpleGLAFunction",
    lambda: [
        heads(), heads(), heads(), decay(1, 20, 2), None, 0.25, start(), True, False,
        None, None,
    ],
    simple,
)  # fmt: skip
fla(
    "ops.gla.chunk:ChunkGLAFunction",
    lambda: [
        heads(), heads(), heads(), decay(1, 20, 2, 16), 0.25, start(), True, False,
        None, None,
    ],
    gated,
)  # fmt: skip
fla(
    "ops.delta_rule.fused_recurrent:FusedRecurrentFunction",
    lambda: [
        heads(), keys(), heads(), normal(1, 20, 2).sigmoid(), 0.25, start(), True
    ],
    delta,
    label=" delta",
)  # fmt: skip
fla(
    "ops.delta_rule.chunk:ChunkDeltaRuleFunction",
    lambda: [
        heads(), keys(), heads(), normal(1, 20, 2).sigmoid(), 0.25, start(), True
    ],
    delta,
)  # fmt: skip
fla(
    "ops.gated_delta_rule.chunk:ChunkGatedDeltaRuleFunction",
    lambda: [
        heads(), keys(), heads(), decay(1, 20, 2), normal(1, 20, 2).sigmoid(), 0.25,
        start(), True,
    ],
    gated_delta,
)  # fmt: skip
fla(  # its backward leaves out what comes from the final state
    "ops.rwkv6.fused_recurrent:FusedRecurrentRWKV6Function",
    lambda: [
        heads(), heads(), heads(), decay(1, 20, 2, 16), normal(2, 16), 0.25, start(),
        False,
    ],
    rwkv6,
)  # fmt: skip
fla(
    "ops.attn.parallel:ParallelAttentionFunction",
    lambda: [heads(), heads(), heads(), None, None, 0.25, None, None],
    attention,
)
fla(
    "ops.gsa.chunk:ChunkGSAFunction",
    lambda: [
        heads(), heads(), heads(), heads().softmax(-1), decay(1, 20, 2, 16), 0.25,
        None, None, False, 1, None, None,
    ],
    slots,
)  # fmt: skip
