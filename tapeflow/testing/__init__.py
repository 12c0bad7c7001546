"""What tests of programs of tensors are made of. Nothing here is imported by tapeflow itself.

- `tapeflow.testing.oracle`: values and gradients in plain Python floats, under tapeflow's names
- `tapeflow.testing.strategies`: hypothesis strategies for tensors, shapes, indices and whole programs; needs hypothesis
- `tapeflow.testing.programs`: how a program is made from numbers, for examples that are kept
- `tapeflow.testing.layouts`: the ways to hold the same values in memory, and the values worth trying

A test of a function of your own, against the oracle, at 100 inputs of every layout, kinks included:

    import numpy as np
    import tapeflow as tp
    from hypothesis import given
    from tapeflow.testing import oracle, strategies as tps

    def f(m, x):
        return m.sum(m.tanh(x) * m.maximum(x, 0.5))

    @given(tps.tensors(dtype="float64", values=tps.elements("float64", points=(0.0, 0.5))))
    def test_f(x):
        leaf = oracle.tensor(x.numpy())
        [want] = oracle.gradients(f(oracle, leaf), [leaf])
        got = tp.grad(lambda x: f(tp, x))(x)
        assert np.all(abs(got.numpy() - want.value) <= 1e-12 * (1 + want.mass))
"""
