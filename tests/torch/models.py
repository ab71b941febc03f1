"""Whole models: a module and its arguments, small and with random weights."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch import nn

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
HAS_TIMM = importlib.util.find_spec("timm") is not None


class Surrogate(torch.autograd.Function):
    """A spike. Its gradient is not that of a step, and not that of a sigmoid."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g / (1 + x.abs()) ** 2


class Spiking(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.leave(Surrogate.apply(self.enter(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.a.bias.requires_grad_(False)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def _in_dict():
    """Keeps its parameter and its buffer in a dict of its own, too."""
    module = module_of(lambda self, x: x * self.own["w"] ** 2 + self.own["b"][0])
    module.w, module.own = nn.Parameter(torch.randn(4)), {}
    module.register_buffer("b", torch.randn(4))
    module.own.update(w=module.w, b=[module.b])
    return module


def _converting(self, x):
    self.layer = self.layer.to(torch.float32)  # it is that already
    return self.layer(x)


def _curvatures(self, x):
    net = lambda x: self.net(x).sum()  # noqa: E731
    each = torch.func.vmap(torch.func.jacfwd(torch.func.grad(net)))(x)
    return each, torch.func.hessian(net)(x), [torch.func.hessian(net)(y) for y in x]


def _weighted(self, weights):
    indices = torch.arange(12).reshape(3, 4) % 5
    return self.bag(indices, per_sample_weights=weights)


class First(nn.Module):
    """The first result of a module."""

    def __init__(self, module, n=1):
        super().__init__()
        self.module, self.n = module, n

    def forward(self, x):
        return self.module(*[x] * self.n)[0]


class Then(nn.Module):
    """A layer, and a function of its result and its argument."""

    def __init__(self, linear, run):
        super().__init__()
        self.linear, self.run = linear, run

    def forward(self, x):
        return self.run(self.linear(x), x)


def module_of(forward: Any, name: str = "Net", **parts: Any) -> Any:
    """A module with this forward and these parts: layers, parameters, plain values."""
    module = type(name, (nn.Module,), {"forward": forward})()
    for key, part in parts.items():
        setattr(module, key, part)
    return module


def _randn(*shape):
    return lambda: (torch.randn(shape),)


def _tokens(*shape):
    return lambda: (torch.randint(0, 10, shape),)


CONV = nn.Conv2d
NETWORKS: dict[str, tuple[Any, Any]] = {
    "mlp": (
        lambda: nn.Sequential(
            nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)
        ),
        _randn(3, 4),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            CONV(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            CONV(4, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        ),
        _randn(2, 3, 8, 8),
    ),
    "batch norm that is trained": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3)).eval(),
        _randn(2, 2, 9),
    ),
    "group norm": (
        lambda: nn.Sequential(
            CONV(4, 8, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.ConvTranspose2d(8, 3, 2, 2)
        ),
        _randn(2, 4, 4, 4),
    ),
    "LSTM": (lambda: First(nn.LSTM(4, 5, 2)), _randn(5, 2, 4)),
    "GRU": (lambda: First(nn.GRU(4, 5, bidirectional=True)), _randn(5, 2, 4)),
    "attention": (
        lambda: First(nn.MultiheadAttention(8, 2, batch_first=True), 3),
        _randn(2, 5, 8),
    ),
    "Transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True),
        lambda: (torch.randn(2, 5, 8), torch.randn(2, 4, 8)),
    ),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        _randn(2, 4),
    ),
    "spectral norm": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).eval(),
        _randn(2, 4),
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 2)),
        _tokens(2, 5),
    ),
    "bags, mean": (lambda: nn.EmbeddingBag(10, 3), _tokens(3, 4)),
    "bags, sum": (
        lambda: nn.EmbeddingBag(10, 3, mode="sum", padding_idx=2),
        _tokens(3, 4),
    ),
    "bags, weighted": (
        lambda: module_of(
            _weighted,
            bag=nn.EmbeddingBag.from_pretrained(
                torch.randn(5, 3), freeze=False, mode="sum", padding_idx=2
            ),
        ),
        _randn(3, 4),
    ),
    "bags, max": (lambda: nn.EmbeddingBag(10, 3, mode="max"), _tokens(3, 4)),
    "bags by offsets": (
        lambda: nn.EmbeddingBag(10, 3),
        lambda: (torch.randint(0, 10, (7,)), torch.tensor([0, 2, 2, 5])),
    ),
    "a surrogate gradient": (Spiking, _randn(3, 4)),
    "tied and frozen parameters": (Tied, _randn(3, 4)),
    "parameters in a dict": (_in_dict, _randn(3, 4)),
    "converts a part": (
        lambda: module_of(_converting, layer=nn.Linear(4, 2)), _randn(3, 4),
    ),
    "second derivatives inside": (
        lambda: module_of(
            _curvatures, net=nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        ),
        _randn(3, 2),
    ),
    "adaptive softmax": (  # one row in each cluster
        lambda: module_of(
            lambda self, x: self.of(x, torch.tensor([1, 7, 12])).loss,
            of=nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10], div_value=2),
        ),
        _randn(3, 8),
    ),
}  # fmt: skip

_SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_T5 = {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1}
_GPT2 = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_MIXTRAL = {**_SMALL, "num_key_value_heads": 2, "num_hidden_layers": 1}
_VIT = {**_SMALL, "image_size": 16, "patch_size": 8}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("ForCausalLM", {**_SMALL, "num_key_value_heads": 2}),
    "Gemma": ("ForCausalLM", {**_SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "GPT2": ("LMHeadModel", _GPT2),
    "Bert": ("ForMaskedLM", _SMALL),
    "Mamba": ("ForCausalLM", {**_SMALL, "state_size": 4, "num_hidden_layers": 1}),
    "Mixtral": ("ForCausalLM", {**_MIXTRAL, "num_local_experts": 3}),
    "T5": ("ForConditionalGeneration", {**_T5, "num_heads": 4}),
    "ViT": ("ForImageClassification", _VIT),
}


def transformer(name: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A model of transformers, and the keyword arguments of its forward."""
    library: Any = importlib.import_module("transformers")
    kind, config = TRANSFORMERS[name]
    made = getattr(library, f"{name}Config")(**{**config, **options})
    model = getattr(library, name + kind)(made).eval()
    if name == "ViT":
        return model, {"pixel_values": torch.randn(2, 3, 16, 16)}
    tokens = torch.randint(0, 97, (2, 9))
    kwargs = {"input_ids": tokens}
    return model, kwargs | ({"decoder_input_ids": tokens} if name == "T5" else {})
