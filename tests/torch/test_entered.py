"""How much of jaxfn the smallest gradient of a torch class runs through."""

import json
import subprocess
import sys

from tests.package import test_entered

# Most files of jaxfn that it may enter. Lower the limit when it can be.
MOST_FILES = 35

PROGRAM = (
    test_entered.PROGRAM.replace("import jaxfn\n", "import jaxfn, jaxfn.torch, torch\n")
    .replace("class Exp(jaxfn.Function)", "class Exp(torch.autograd.Function)")
    .replace("jnp.exp(x)\n        ctx", "x.exp()\n        ctx")
    .replace("x, codes =", "Exp = jaxfn.torch.from_torch(Exp)\nx, codes =")
)


def test_a_compiled_gradient_enters_few_files():
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    entered = json.loads(run.stdout)
    assert "torch/_trace/tracer.py" in entered
    assert len(entered) <= MOST_FILES, sorted(entered)
