"""Plans with mistakes: texts and files of plans in which one number, name or operand is another one, each read and run.

Run as a process of its own (test_plan_types.py), so that a crash is seen and named: before each case its description
goes to a file. A case is refused as a PlanError, or the plan runs, with the results of the same ops in eager mode.
"""

import hashlib
import itertools
import json
import os
import random
import re
import resource
import sys

import numpy as np

import tapeflow as tp
from tapeflow import _core
from tapeflow.plan import files
from tapeflow.plan.interpret import Interpreter
from tapeflow.plan.ir import DTYPES, name_of

LARGEST = 1 << 28  # bytes of a plan that is run
NUMBERS = (0, 1 << 31, (1 << 62) + 1, -1)
NUMBER = re.compile(r"-?\d+")


def other_numbers(n):
    return [m for m in (n + 1, n - 1, *NUMBERS) if m != n]


def changed_lines(line):
    """A line of a text with each of its numbers, dtypes, operands and parameters changed, left out or repeated."""
    code, mark, comment = line.partition("  #")
    for match in NUMBER.finditer(code):
        if code[match.start() - 1] not in "xp+" and not code[: match.start()].endswith("float"):
            for n in other_numbers(int(match[0])):
                yield code[: match.start()] + str(n) + code[match.end() :] + mark + comment
    for match in re.finditer("|".join(DTYPES), code):
        for dtype in DTYPES:
            yield code[: match.start()] + dtype + code[match.end() :] + mark + comment
    for match in re.finditer(r"([(\[])([^()\[\]]*)([)\]])", code):
        items = [item for item in match[2].split(", ") if item]
        lists = [items[:n] + items[n + 1 :] for n in range(len(items))]
        lists += [[*items, items[-1]], [*items[1:], items[0]]] if items else [["1"], ["%0"]]
        for new in lists:
            yield code[: match.start()] + match[1] + ", ".join(new) + match[3] + code[match.end() :] + mark + comment


def changed_texts(text, ops):
    """A text with one line changed in each way: those of these ops, and those that are no instruction."""
    lines = text.split("\n")
    for n, line in enumerate(lines):
        found = re.search(r"= (\w+)(\[[-\d, ]*\])?\(", line)
        if found is None or found[1] in ops:
            for new in changed_lines(line):
                yield "\n".join([*lines[:n], new, *lines[n + 1 :]])


def randomly_changed(text, rng):
    """A text with up to three lines changed in some way."""
    lines = text.split("\n")
    for _ in range(rng.randint(1, 3)):
        n = rng.randrange(len(lines))
        lines[n] = rng.choice([*changed_lines(lines[n]), lines[n]])
    return "\n".join(lines)


def changed_headers(tree, at=()):
    """A tree of JSON with each of its leaves changed, and each of its lists shorter or longer."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            for new in changed_headers(part, (*at, key)):
                yield {**tree, key: new}
    elif isinstance(tree, list):
        for n, part in enumerate(tree):
            for new in changed_headers(part, (*at, n)):
                yield [*tree[:n], new, *tree[n + 1 :]]
        if tree:
            yield tree[:-1]
            yield [*tree, tree[-1]]
    elif type(tree) is bool or tree is None:
        yield 1
        yield not tree
    elif type(tree) is int:
        yield from (tree + 1, -1, 1 << 62, float(tree), None)
    else:
        yield from ("float64", "add", "", 1) if at[0] != "lines" else ()


def sealed(header, blobs):
    text = json.dumps(header).encode()
    head = files.MAGIC + files.VERSION.to_bytes(4, "little") + len(text).to_bytes(8, "little")
    body = head + text + blobs
    return body + hashlib.sha256(body).digest()


def arguments(plan):
    rng = np.random.default_rng(1)
    return [tp.tensor((rng.uniform(size=v.shape) * 3).astype(DTYPES[v.dtype])) for v in plan._inputs]


def run(read):
    """A plan's results are those of eager ops; True where it was accepted."""
    try:
        plan, again = read(), read()
    except (tp.PlanError, MemoryError):
        return False
    if plan.nbytes > LARGEST or sum(v.nbytes for v in plan._ir.values) > LARGEST:
        return True
    xs = arguments(plan)
    outcomes = []
    for call in (lambda: plan._replay(xs), lambda: Interpreter(again._ir).run(xs)):
        try:
            outcomes.append([(y.dtype, y.shape, _core.bytes_of(y)) for y in call()])
        except tp.TapeflowError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1] or may_differ(plan), outcomes
    return True


def may_differ(plan):
    """Of the default generator two runs have other draws; a divisor of var is the number of elements less a number."""
    drawn = tp.random.default_generator in plan.generators.values()
    return drawn or any(name_of(instr.op) in ("var", "std") for instr in plan.instructions)


def main(folder, examples, step):
    """Every step-th case of those that change one thing, and as many random ones."""
    if "ASAN_OPTIONS" not in os.environ:  # which maps terabytes
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    with open(f"{folder}/bases.json") as file:
        bases = json.load(file)
    _core.disturb_runs(poison=True)
    accepted = count = 0

    now = os.open(f"{folder}/case", os.O_WRONLY | os.O_CREAT)

    def attempt(what, read):
        nonlocal accepted, count
        os.truncate(now, os.pwrite(now, what.encode(), 0))
        accepted += run(read)
        count += 1

    for text, ops in bases["texts"]:
        for case in itertools.islice(changed_texts(text, ops), 0, None, step):
            attempt(case, lambda case=case: tp.parse_plan(case))
    rng = random.Random(5)
    for _ in range(examples):
        case = randomly_changed(rng.choice(bases["texts"])[0], rng)
        attempt(case, lambda case=case: tp.parse_plan(case))
    for name in bases["files"]:
        with open(name, "rb") as file:
            data = file.read()[:-32]
        start = len(files.MAGIC) + 12
        stop = start + int.from_bytes(data[start - 8 : start], "little")
        for header in itertools.islice(changed_headers(json.loads(data[start:stop])), 0, None, step):
            with open(f"{folder}/case.plan", "wb") as file:
                file.write(sealed(header, data[stop:]))
            attempt(json.dumps(header), lambda: tp.load_plan(f"{folder}/case.plan"))
    print(count, accepted)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
