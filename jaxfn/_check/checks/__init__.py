"""The checks, by what they are about; `runner.CHECKS` has them all."""
