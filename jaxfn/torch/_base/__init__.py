"""The common base of all packages of jaxfn.torch.

- `torch_module`, `torch_class`: torch itself; a torch class and its ctx
- `experimental`: the private names of torch, which no other module uses
- `decomposed`: operations that a trace writes by others, beside those of torch's list
- `dtypes`: conversion of dtypes and values between torch and JAX
- `flatten`, `cache_key`: arguments as templates and leaves; keys of traces
- `draws`, `refusal`: random draws; the error for what can't run in JAX
"""

from jaxfn.torch._base.cache_key import (
    READ,
    Same,
    fingerprint,
    names_kernel,
    settings_of,
)
from jaxfn.torch._base.draws import (
    BACKWARD,
    FORWARD,
    JVP,
    KEYS,
    VMAP,
    draws_by_torch,
    has_draws,
    key_name,
    next_draw,
)
from jaxfn.torch._base.dtypes import (
    X64,
    from_numpy,
    has_x64,
    is_inexact,
    to_jax,
    to_jax_dtype,
    to_numpy,
    to_torch_dtype,
)
from jaxfn.torch._base.experimental import TorchDispatchMode
from jaxfn.torch._base.flatten import (
    PLAIN,
    Flattener,
    Leaf,
    Rebuilt,
    closed_tensors,
    outputs_of,
    parameters_in,
    parts_of,
    sequence_like,
    unflatten,
)
from jaxfn.torch._base.refusal import (
    HOST,
    OR_HOST,
    TorchRefusal,
    is_in_message,
    is_ours,
    is_users,
    of_unused,
    place_now,
    place_of,
    raised_by_jaxfn,
    raised_by_statement,
    raised_by_user,
)
from jaxfn.torch._base.torch_class import (
    Ctx,
    attributes_of,
    backward_of,
    given_to,
    has_vmap,
    is_once_differentiable,
    is_separate,
    nests,
    type_test,
    without_once,
)
from jaxfn.torch._base.torch_module import (
    TorchFunctionMode,
    forward_ad,
    torch,
)
