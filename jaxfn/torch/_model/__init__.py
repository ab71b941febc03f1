"""`from_torch`, also of whole modules and of functions on tensors.

- `api`: the functions that users call, `from_torch` and `explain`
- `module`: a module as a function of its parameters; `state` has what it writes to
- `function`: a function on tensors, called with arrays, and what it returns
- `rules`: its derivatives under JAX's transformations
- `joint`: forward and backward as two parts of one program
"""

from jaxfn.torch._model.api import explain, from_torch
from jaxfn.torch._model.module import TorchModel
