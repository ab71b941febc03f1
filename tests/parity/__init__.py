"""The same programs in PyTorch and in jaxfn, row by row.

Each row is one behaviour of `torch.autograd.Function`. What torch does is recorded in
`data/` by `python -m tests.parity.record`; jaxfn is compared with the record.
"""
