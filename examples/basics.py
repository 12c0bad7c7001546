"""Ask a formula for its value and its slopes: three small programs, each a different way to a gradient.

    python -m examples.basics

How much does the result change when an input does? `formula` answers for F = 3 (a + b c), one backward for all three
inputs. `areas` answers for Y = (a + b) (b - c), whose input b is used twice, under a Tape, and shows the tape;
`frozen_areas` makes a plan of it, to be asked again and again. `constants` adds two constants: nothing to
differentiate, hence nothing recorded.
"""

import tapeflow as tp


def formula(a: float, b: float, c: float) -> tuple[float, list[float]]:
    """F = 3 (a + b c) and its derivatives by a, b and c."""
    leaves = [tp.tensor(value, requires_grad=True) for value in (a, b, c)]
    f = 3 * (leaves[0] + leaves[1] * leaves[2])
    f.backward()
    return f.item(), [leaf.grad.item() for leaf in leaves if leaf.grad is not None]


def areas(a: float, b: float, c: float) -> tuple[float, list[float], str]:
    """Y = (a + b) (b - c), its derivatives by a, b and c, and the tape that they were read from."""
    inputs = [tp.tensor(value) for value in (a, b, c)]
    with tp.Tape(watch=inputs) as tape:
        y = (inputs[0] + inputs[1]) * (inputs[1] - inputs[2])
    written = str(tape)
    return y.item(), [gradient.item() for gradient in tape.gradient(y, inputs)], written


def frozen_areas(*points: tuple[float, float, float]) -> tuple[list[tuple[float, list[float]]], tp.Plan]:
    """The same as a plan, recorded at the first point: Y and its derivatives at each point, and the plan."""
    value_and_slopes = tp.value_and_grad(lambda a, b, c: (a + b) * (b - c), argnums=(0, 1, 2))
    plan = tp.freeze(value_and_slopes, *map(tp.tensor, points[0]))
    answers = (plan(*map(tp.tensor, point)) for point in points)
    return [(y.item(), [slope.item() for slope in slopes]) for y, slopes in answers], plan


def constants() -> tp.Tensor:
    """A + B, of constants."""
    a, b = tp.tensor([[1.0, 2.0], [3.0, 4.0]]), tp.tensor([[10.0, 20.0], [30.0, 40.0]])
    return a + b


def main() -> None:
    """Print all of them."""
    f, slopes = formula(5.0, 3.0, 2.0)
    print(f"F = 3 (a + b c) at a = 5, b = 3, c = 2: {f:g}")
    print("dF/da = {:g}, dF/db = {:g}, dF/dc = {:g}".format(*slopes))
    y, slopes, tape = areas(2.0, 3.0, 1.0)
    print(f"\nY = (a + b) (b - c) at a = 2, b = 3, c = 1: {y:g}")
    print("dY/da = {:g}, dY/db = {:g}, dY/dc = {:g}".format(*slopes))
    print(tape)
    answers, plan = frozen_areas((2.0, 3.0, 1.0), (5.0, 3.0, 2.0))
    print("\nFrozen, at the same place and at a = 5, b = 3, c = 2:")
    for y, slopes in answers:
        print(f"{y:g}; " + "dY/da = {:g}, dY/db = {:g}, dY/dc = {:g}".format(*slopes))
    print(plan)
    c = constants()
    print(f"\nA + B =\n{c}\nrequires a gradient: {c.requires_grad}")


if __name__ == "__main__":
    main()
