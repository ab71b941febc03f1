"""`from_torch`, also of whole modules and of functions on tensors.

- `api`: the function that users call; `graphs` has `explain`
- `module`: a module as a function of its parameters; `state` has what it writes to
- `operation`: an operation of torch.library as a torch Function
- `function`: a function on tensors, called with arrays; `results` has what it returns
- `rules`: its derivatives under JAX's transformations
- `joint`: forward and backward as two parts of one program
"""

from jaxfn.torch._model.api import from_torch
from jaxfn.torch._model.graphs import explain
from jaxfn.torch._model.module import TorchModel
