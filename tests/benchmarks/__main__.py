"""Print the benchmarks as ratios: `python -m tests.benchmarks`."""

from tests.benchmarks import eager
from tests.benchmarks.timing import interleaved

for title, calls, repeats in (
    ("plain eager call", eager.calls(), 200),
    ("eager gradient", eager.gradients(), 20),
):
    times = interleaved(calls, repeats=repeats)
    ours = times["Function.apply"]
    print(f"{title}: Function.apply {1e6 * ours:.1f} us")
    for name, seconds in times.items():
        print(f"  {ours / seconds:6.2f} x {name} ({1e6 * seconds:.1f} us)")
