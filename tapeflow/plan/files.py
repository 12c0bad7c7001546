"""Plans as files.

A file is a magic line, a version, a header in JSON (the program, operators by name, structures, states of generators),
the elements of constants, of captured tensors and of their .grad, and a SHA-256 of all of it. Nothing in it is code,
and what does not check out is a PlanError.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import numpy as np

from tapeflow import _core, random
from tapeflow._core import Tensor
from tapeflow.errors import PlanError, TapeflowError
from tapeflow.plan import passes as _passes
from tapeflow.plan.ir import CODES, CONST, DTYPES, GRAD, GRAD_GUARD, GUARD, IR, Instr, Rewrite, Value, name_of
from tapeflow.plan.plans import Plan
from tapeflow.plan.record import Recording
from tapeflow.plan.types import BOOL

MAGIC = b"tapeflow plan\n"
VERSION = 1
_KINDS = {"tuple": tuple, "list": list, "dict": dict}


def save(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan with its constants and what is outside of it now: captured tensors, their .grad, generators. It is
    what the passes left of it, or, where it is to be differentiated, the program as it was noted."""
    ir = plan.noted() if plan.differentiable else plan._ir
    if plan.differentiable and ir.hooks:
        raise PlanError(
            "[plan.save] a hook (register_hook) is code, which no file holds. Freeze the function without "
            "differentiable=True."
        )
    if plan.differentiable and ir.regions:
        raise PlanError(
            f"[plan.save] the rule of {ir.regions[0].rule.name} (tp.custom_vjp) is code, which no file holds. Freeze "
            "the function without differentiable=True."
        )
    blobs: list[bytes] = []

    def blob(x: Tensor) -> int:
        blobs.append(_core.bytes_of(x))
        return len(blobs) - 1

    used = ir.used()
    tensors = ir.tensors()
    number = {id(t): k for k, t in tensors.items()}
    held = {k: x for k, x in ir.objects.items() if k in used}
    generators = list(plan.generators.values())
    header = {
        "name": plan.name,
        "values": [[v.kind, DTYPES[v.dtype], list(v.shape)] for v in ir.values],
        "instrs": [[name_of(i.op), list(i.params), list(i.ins), i.out, i.line, _seen(i, number)] for i in ir.instrs],
        "lines": [list(line) for line in ir.lines],
        "rewrites": ir.rewrites,
        "inputs": ir.inputs,
        "outputs": ir.outputs,
        "states": [[number[id(t)], k] for t, k in ir.states],
        "grads": [[number[id(t)], k] for t, k in ir.grads],
        "constants": [[k, blob(x)] for k, x in held.items() if ir.values[k].kind == CONST],
        "tensors": [
            [k, t.is_leaf and t.requires_grad, blob(t), None if t.grad is None else blob(t.grad)]
            for k, t in tensors.items()
        ],
        "slots": [[k, number[id(t)]] for k, t in held.items() if ir.values[k].kind == GRAD],
        "generators": [None if g is random.default_generator else list(g.state) for g in generators],
        "stretches": [[[g is s[0] for g in generators].index(True), *s[1:]] for s in ir.generators],
        "call": _call(plan._recording),
        "noted": {"ungraded": sorted(ir.ungraded), "passes": plan.passes} if plan.differentiable else None,
        "blobs": [len(b) for b in blobs],
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    body = b"".join([MAGIC, VERSION.to_bytes(4, "little"), len(text).to_bytes(8, "little"), text, *blobs])
    with open(path, "wb") as file:
        file.write(body + hashlib.sha256(body).digest())


def _seen(instr: Instr, number: dict[int, int]) -> Any:
    """What a guard compares with: the bytes of a value, or a tensor and whether its .grad was there."""
    if instr.op == GRAD_GUARD:
        return [number[id(instr.extra[0])], instr.extra[1]]
    return instr.extra.hex() if instr.op == GUARD else None


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
    """A plan from a file that `plan.save` wrote; no code of the function is needed.

    Captured tensors and their .grad come as they were saved and belong to the plan: see `plan.state`. So do generators,
    see `plan.generators`; only what drew from the default generator goes on with that of this process.

    Raises PlanError for a file that is damaged, no plan, or of another version, or whose instructions do not fit what
    they read.
    """
    with open(path, "rb") as file:
        data = file.read()
    head = len(MAGIC) + 12
    if len(data) < head + 32 or not data.startswith(MAGIC):
        raise PlanError(f"[load_plan] {os.fspath(path)!r} is no plan, or is cut short.")
    version = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    if version != VERSION:
        raise PlanError(f"[load_plan] the file has version {version}, this tapeflow reads {VERSION}. Update tapeflow.")
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise PlanError(f"[load_plan] {os.fspath(path)!r} is damaged: its checksum is wrong.")
    n = int.from_bytes(data[len(MAGIC) + 4 : head], "little")
    try:
        return _read(json.loads(data[head : head + n]), data[head + n : -32])
    except (PlanError, MemoryError):
        raise
    except (
        TapeflowError,
        LookupError,
        ArithmeticError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise PlanError(f"[load_plan] {os.fspath(path)!r} does not hold a program: {error}.") from None


def _read(header: dict[str, Any], blobs: bytes) -> Plan:
    values = [Value(kind, DTYPES.index(dtype), tuple(shape)) for kind, dtype, shape in header["values"]]
    starts = np.cumsum([0, *header["blobs"]]).tolist()

    def tensor(k: int, number: int) -> Tensor:
        data = blobs[starts[number] : starts[number + 1]]
        elements = np.frombuffer(data, DTYPES[values[k].dtype])
        if values[k].dtype == BOOL and max(data, default=0) > 1:
            raise ValueError("an element is neither True nor False")
        return _core.from_numpy(elements.reshape(values[k].shape), True, "load_plan")

    objects = {k: tensor(k, number) for k, number in header["constants"]}
    for k, leaf, number, grad in header["tensors"]:
        objects[k] = tensor(k, number).requires_grad_(leaf)
        objects[k].grad = None if grad is None else tensor(k, grad)
    objects.update({k: objects[t] for k, t in header["slots"]})
    states = [(objects[t], k) for t, k in header["states"]]
    grads = [(objects[t], k) for t, k in header["grads"]]
    instrs = [_instr(objects, *spec) for spec in header["instrs"]]
    made = [random.default_generator if state is None else _generator(state) for state in header["generators"]]
    stretches = [[made[g], *rest] for g, *rest in header["stretches"]]
    lines = [(file, number, name) for file, number, name in header["lines"]]
    ir = IR(values, objects, instrs, header["inputs"], header["outputs"], states, grads, stretches, lines)
    ir.rewrites = [_rewrite(lines, *rewrite) for rewrite in header.get("rewrites", ())]
    _passes.trust(ir, "load_plan")
    recording = _recording(ir, header["call"])
    noted = header.get("noted")
    if noted is None:
        return Plan(ir, recording, ("fuse",), name=header["name"])
    if recording is None:
        raise ValueError("what is to be differentiated has no call")
    ir.ungraded = set(noted["ungraded"])
    recording.again = ir.copy
    return Plan(ir.copy(), recording, tuple(noted["passes"]), name=header["name"], differentiable=True)


def _instr(
    objects: dict[int, Tensor], name: str, params: list[int], ins: list[int], out: int, line: int, seen: Any
) -> Instr:
    if name == name_of(GRAD_GUARD):
        return Instr(GRAD_GUARD, (), (), out, line, (objects[seen[0]], seen[1]))
    if name == name_of(GUARD):
        return Instr(GUARD, (), tuple(ins), out, line, bytes.fromhex(seen))
    return Instr(CODES[name], tuple(params), tuple(ins), out, line)


def _rewrite(lines: list[tuple[str, int, str]], name: str, what: str, line: int) -> Rewrite:
    if not (isinstance(name, str) and isinstance(what, str) and 0 <= line < len(lines)):
        raise ValueError("what a pass did has no name, words and line")
    return Rewrite(name, what, line)


def _generator(state: list[int]) -> random.Generator:
    made = random.Generator(state[0])
    made.state = (state[0], state[1])
    return made


def _recording(ir: IR, call: Any) -> Recording | None:
    if call is None:
        return None
    leaves = [x if isinstance(x, list) else _unplain(x["is"]) for x in call["leaves"]]
    static = {i: _unplain(x) for i, x in call["static"]}
    arguments, dynamic, result = _untree(call["arguments"]), call["dynamic"], _untree(call["result"])
    places = [place for x in leaves if isinstance(x, list) for place in x]
    if (
        sorted([*static, *dynamic]) != list(range(_leaves(arguments)))
        or dynamic != sorted(dynamic)
        or len(dynamic) != len(ir.inputs)
        or len(leaves) != _leaves(result)
        or not all(len(x) == 1 for x in leaves if isinstance(x, list))
        or not all(type(place) is int and 0 <= place < len(ir.outputs) for place in places)
    ):
        raise ValueError("the arguments or the result of a call are not those of the program")
    return Recording(ir, arguments, static, dynamic, result, leaves, False, None)


def _leaves(structure: Any) -> int:
    """How many leaves a structure has."""
    if structure is None:
        return 1
    kind, parts = structure
    return sum([_leaves(part[1] if kind is dict else part) for part in parts])
