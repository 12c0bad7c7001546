"""Plans as text and as files.

A file is a magic line, a header in JSON (the program, operators by name, structures), the elements of constants and of
captured tensors, and a SHA-256 of all of it. Nothing in it is code, and nothing is trusted: what does not check out
is a PlanError.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from typing import Any

import numpy as np

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.errors import PlanError
from tapeflow.plan import passes as _passes
from tapeflow.plan.ir import CODES, CONST, DTYPES, GRAD, INPUT, IR, MADE, TENSOR, Instr, Value, name_of
from tapeflow.plan.plans import Plan
from tapeflow.plan.record import Recording

MAGIC = b"tapeflow plan\n"
VERSION = 1
_KINDS = {"tuple": tuple, "list": list, "dict": dict}


def save(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan with its constants and the present values of captured tensors."""
    ir = plan._ir
    if ir.generators or ir.grads or any(i.op < 0 and i.op != -1 for i in ir.instrs):
        raise PlanError(
            "[plan.save] the plan draws random numbers or uses .grad slots, which belong to this process. Save a plan "
            "of a function that takes its randomness as an argument and its gradients with tp.grad."
        )
    blobs: list[bytes] = []
    objects = {}
    used = {k for instr in ir.instrs for k in instr.ins} | set(ir.results()) | {n for _, n in _states(ir)}
    for k, x in ir.objects.items():
        if ir.values[k].kind in (CONST, TENSOR) and k in used:
            objects[k] = len(blobs)
            blobs.append(_core.bytes_of(x))
    header = {
        "name": plan.name,
        "values": [[v.kind, DTYPES[v.dtype], list(v.shape)] for v in ir.values],
        "instrs": [
            [name_of(i.op), list(i.params), list(i.ins), i.out, i.line, i.extra.hex() if i.extra else None]
            for i in ir.instrs
        ],
        "lines": [[file, number, name] for file, number, name in ir.lines],
        "inputs": ir.inputs,
        "outputs": ir.outputs,
        "states": [[n, k] for (_, k), (_, n) in zip(ir.states, _states(ir), strict=True)],
        "objects": objects,
        "blobs": [len(b) for b in blobs],
        "call": _call(plan._recording),
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    body = b"".join([MAGIC, VERSION.to_bytes(4, "little"), len(text).to_bytes(8, "little"), text, *blobs])
    with open(path, "wb") as file:
        file.write(body + hashlib.sha256(body).digest())


def _states(ir: IR) -> list[tuple[Tensor, int]]:
    """Of each tensor that is written: the number of the value it begins with."""
    first = {id(x): k for k, x in ir.objects.items() if ir.values[k].kind == TENSOR}
    found = []
    for t, _ in ir.states:
        if id(t) not in first:
            k = ir.new_value(Value(TENSOR, DTYPES.index(t.dtype.name), t.shape))
            ir.objects[k] = t
            first[id(t)] = k
        found.append((t, first[id(t)]))
    return found


def _call(r: Recording | None) -> Any:
    if r is None:
        return None
    return {
        "arguments": _tree(r.arguments),
        "static": [[i, _plain(x)] for i, x in r.static.items()],
        "dynamic": r.dynamic,
        "result": _tree(r.result),
        "leaves": [x if type(x) is list else {"is": _plain(x)} for x in r.leaves],
    }


def _tree(structure: Any) -> Any:
    if structure is None:
        return None
    kind, parts = structure
    name = kind.__name__
    if _KINDS.get(name) is not kind:
        raise PlanError(f"[plan.save] containers of type {name} cannot be saved. Use tuples, lists and dicts.")
    if kind is dict:
        return [name, [[_plain(key), _tree(part)] for key, part in parts]]
    return [name, [_tree(part) for part in parts]]


def _plain(x: Any) -> Any:
    if x is None or type(x) in (bool, int, str):
        return x
    if type(x) is float:
        return {"float": x.hex()}
    raise PlanError(f"[plan.save] a value of type {type(x).__name__} cannot be saved. Use numbers and strings.")


def _unplain(x: Any) -> Any:
    return float.fromhex(x["float"]) if isinstance(x, dict) else x


def _untree(tree: Any) -> Any:
    if tree is None:
        return None
    name, parts = tree
    if name == "dict":
        return dict, [(_unplain(key), _untree(part)) for key, part in parts]
    return _KINDS[name], [_untree(part) for part in parts]


# ---- reading


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan from a file that `plan.save` wrote. Captured tensors come as they were saved: see `plan.state`.

    Raises PlanError for a file that is damaged, no plan, or of a newer version.
    """
    with open(path, "rb") as file:
        data = file.read()
    head = len(MAGIC) + 12
    if len(data) < head + 32 or not data.startswith(MAGIC):
        raise PlanError(f"[load_plan] {os.fspath(path)!r} is no plan, or is cut short.")
    version = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise PlanError(f"[load_plan] {os.fspath(path)!r} is damaged: its checksum is wrong.")
    if version != VERSION:
        raise PlanError(f"[load_plan] the file has version {version}, this tapeflow reads {VERSION}. Update tapeflow.")
    n = int.from_bytes(data[len(MAGIC) + 4 : head], "little")
    try:
        return _read(json.loads(data[head : head + n]), data[head + n : -32])
    except (KeyError, IndexError, ValueError, TypeError, AssertionError) as error:
        raise PlanError(f"[load_plan] {os.fspath(path)!r} does not hold a program: {error}.") from None


def _read(header: dict[str, Any], blobs: bytes) -> Plan:
    values = [Value(kind, DTYPES.index(dtype), tuple(shape)) for kind, dtype, shape in header["values"]]
    starts = np.cumsum([0, *header["blobs"]]).tolist()
    objects: dict[int, Tensor] = {}
    for key, number in header["objects"].items():
        value = values[int(key)]
        elements = np.frombuffer(blobs[starts[number] : starts[number + 1]], DTYPES[value.dtype])
        objects[int(key)] = _core.from_numpy(elements.reshape(value.shape), True, "load_plan")
    instrs = [
        Instr(
            -1 if name == "guard" else CODES[name], tuple(params), tuple(ins), out, line, extra and bytes.fromhex(extra)
        )
        for name, params, ins, out, line, extra in header["instrs"]
    ]
    states = [(objects[n], k) for n, k in header["states"]]
    ir = IR(values, objects, instrs, header["inputs"], header["outputs"], states, [], [],
            [(file, number, name) for file, number, name in header["lines"]])  # fmt: skip
    _passes.verify(ir)
    return Plan(ir, _recording(ir, header["call"]), ("fuse",), name=header["name"])


def _recording(ir: IR, call: Any) -> Recording | None:
    if call is None:
        return None
    leaves = [x if isinstance(x, list) else _unplain(x["is"]) for x in call["leaves"]]
    static = {i: _unplain(x) for i, x in call["static"]}
    return Recording(
        ir, _untree(call["arguments"]), static, call["dynamic"], _untree(call["result"]), leaves, None,
        False, None,
    )  # fmt: skip


# ---- text

_INLINE = 64  # elements of a constant that stands in the text


def to_text(plan: Plan) -> str:
    """One line per constant, captured tensor and instruction; `parse_plan` reads it back."""
    ir = plan._ir

    def value(k: int) -> str:
        v = ir.values[k]
        return f"{DTYPES[v.dtype]}[{', '.join(map(str, v.shape))}]"

    used = {k for instr in ir.instrs for k in instr.ins} | set(ir.results())
    lines = [f"plan {plan.name}({', '.join(f'%{k} {value(k)}' for k in ir.inputs)})"]
    for k in sorted(used):
        kind = ir.values[k].kind
        if kind == CONST:
            lines.append(f"  %{k} = const  {value(k)}  {_elements(ir.objects[k])}")
        elif kind in (TENSOR, GRAD):
            lines.append(f"  %{k} = {'tensor' if kind == TENSOR else 'grad'}  {value(k)}")
    for instr in ir.instrs:
        file, number, _ = ir.lines[instr.line]
        where = f"{os.path.basename(file)}:{number}" if file else "?"
        params = f"[{', '.join(map(str, instr.params))}]" if instr.params else ""
        args = ", ".join(f"%{k}" for k in instr.ins)
        if instr.op < 0:
            seen = f"  {instr.extra.hex()}" if instr.op == -1 else ""
            lines.append(f"  {name_of(instr.op)}({args}){seen}  # {where}")
        else:
            nbytes = ir.values[instr.out].nbytes
            lines.append(
                f"  %{instr.out} = {name_of(instr.op)}{params}({args})  {value(instr.out)}  # {where}, {nbytes:,} B"
            )
    lines.append(f"  return {', '.join(f'%{k}' for k in ir.outputs)}")
    return "\n".join(lines)


def _elements(x: Tensor) -> str:
    if x.size > _INLINE:
        return "..."
    flat = np.frombuffer(_core.bytes_of(x), x.dtype)
    return " ".join(float(v).hex() if x.dtype.kind == "f" and math.isfinite(v) else str(v) for v in flat)


_VALUE = r"%(\d+) (\w+)\[([\d, ]*)\]"
_LINE = re.compile(
    r"  %(\d+) = (\w+)(?:\[([-\d, ]*)\])?(?:\(([%\d, ]*)\))?  (\w+)\[([\d, ]*)\](?:  ([^#]*))?(?:  # .*)?$"
)


def parse_plan(text: str) -> Plan:
    """The plan that a text of `print(plan)` describes: without captured tensors, .grad slots, guards and draws.

    Its constants must be small enough to stand in the text (64 elements). It is called with the inputs in order and
    returns a list of tensors.

    >>> plan = tp.freeze(lambda x: x + 1.0, tp.tensor([1.0]))
    >>> tp.parse_plan(str(plan))(tp.tensor([2.0]))[0].tolist()
    [3.0]
    """
    lines = text.strip("\n").splitlines()
    head = re.fullmatch(r"plan (.*?)\((.*)\)", lines[0]) if lines else None
    if head is None:
        raise PlanError("[parse_plan] the first line must be `plan name(inputs)`.")
    found: dict[int, Value] = {}
    objects: dict[int, Tensor] = {}
    instrs: list[Instr] = []
    inputs = []
    for number, dtype, shape in re.findall(_VALUE, head[2]):
        found[int(number)] = _value(INPUT, dtype, shape)
        inputs.append(int(number))
    for line in lines[1:-1]:
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise PlanError(f"[parse_plan] cannot read the line {line!r}.")
        out, name, params, ins, dtype, shape, elements = match.groups()
        if name == "const":
            found[int(out)] = _value(CONST, dtype, shape)
            objects[int(out)] = _constant(found[int(out)], elements or "", line)
        elif name in CODES and ins is not None:
            found[int(out)] = _value(MADE, dtype, shape)
            numbers = tuple([int(n) for n in (params or "").split(",") if n.strip()])
            instrs.append(Instr(CODES[name], numbers, tuple([int(n) for n in re.findall(r"\d+", ins)]), int(out), 0))
        else:
            raise PlanError(f"[parse_plan] {line.strip()!r} refers to something outside of the text.")
    outputs = [int(n) for n in re.findall(r"%(\d+)", lines[-1])]
    blank = Value(CONST, 0, (0,))
    values = [found.get(k, blank) for k in range(max([*found, 0]) + 1)]
    ir = IR(values, objects, instrs, inputs, outputs, [], [], [], [("", 0, "")])
    try:
        _passes.verify(ir)
    except AssertionError as error:
        raise PlanError(f"[parse_plan] {error}.") from None
    return Plan(ir, None, ("fuse",), name=head[1])


def _value(kind: int, dtype: str, shape: str) -> Value:
    if dtype not in DTYPES:
        raise PlanError(f"[parse_plan] unknown dtype {dtype!r}.")
    return Value(kind, DTYPES.index(dtype), tuple([int(n) for n in shape.split(",") if n.strip()]))


def _constant(value: Value, text: str, line: str) -> Tensor:
    words = text.split()
    dtype = np.dtype(DTYPES[value.dtype])
    if len(words) != value.size:
        raise PlanError(f"[parse_plan] the constant in {line.strip()!r} does not stand in the text.")
    if dtype.kind == "f":
        numbers = [float.fromhex(w) if "x" in w else float(w) for w in words]
    else:
        numbers = [w == "True" if dtype.kind == "b" else int(w) for w in words]
    return _core.from_numpy(np.array(numbers, dtype).reshape(value.shape), True, "parse_plan")
