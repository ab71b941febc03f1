"""The same programs in PyTorch and in jaxfn, row by row.

Each row is one behaviour of `torch.autograd.Function`. What torch does is recorded in
`data/` by `python -m tests.parity.record`; jaxfn is compared with the record.
`catalogue` does the same for whole Functions, of the kinds that people port.
"""
