"""Kernels taken out of their files, to be one program: what the preprocessor of C leaves, in definitions.

A file of kernels/ has many kernels, which options make of it, and compilers take tenths of a second for each. `merge`
gives the text of a program that has the kernels asked for, each with its options, and what they call, and nothing else;
what differs under one name gets another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tapeflow.backend.opencl.library import COMMENT, closing, declared, is_true

_TOKEN = re.compile(r'[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|"(?:\\.|[^"\\])*"|##|\s+|.', re.S)
_LINE = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n?")
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(.*)", re.S)
_DEFINE = re.compile(r"(\w+)(\([^)]*\))?\s*(.*)", re.S)
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINED = re.compile(r"defined\s*\(?\s*(\w+)\s*\)?")
_NOTHING: frozenset[str] = frozenset()

Token = tuple[str, frozenset[str]]  # with the macros that it is no longer to be replaced by


class Wanted(NamedTuple):
    """A kernel: the text that has it, its name there, options of the build, NumPy's types of its arguments."""

    source: str
    name: str
    options: tuple[str, ...] = ()
    argtypes: tuple[Any, ...] = ()


class Macro(NamedTuple):
    parameters: tuple[str, ...] | None  # None: it is no function
    body: tuple[str, ...]


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


class _Preprocessor:
    """The preprocessor of C (C99, 6.10), but for # of an argument and #include, which no kernel uses."""

    def __init__(self, options: Iterable[str]) -> None:
        self.macros: dict[str, Macro] = {}
        self.pragmas: dict[str, None] = {}
        for option in options:
            name, _, value = option.removeprefix("-D").partition("=")
            self.macros[name] = Macro(None, tuple(_tokens(value or "1")))

    def run(self, text: str) -> str:
        """The text that is left; pragmas between definitions are noted."""
        found: list[str] = []
        chunk: list[str] = []  # lines since the last directive: calls of macros go over several
        taken, done = [True], [True]  # as in library.py

        def end_chunk() -> None:
            found.append("".join([t for t, _ in self.expand([(t, _NOTHING) for t in _tokens("".join(chunk))])]))
            chunk.clear()

        for line in _LINE.findall(COMMENT.sub(lambda match: " " + "\n" * match[0].count("\n"), text)):
            directive = _DIRECTIVE.match(line) if "#" in line else None
            if directive is None:
                if taken[-1]:
                    chunk.append(line)
                continue
            word, rest = directive[1], directive[2].replace("\\\n", " ").strip()
            if word in ("if", "ifdef", "ifndef"):
                yes = self.holds(rest) if word == "if" else (rest in self.macros) == (word == "ifdef")
                taken.append(taken[-1] and yes)
                done.append(yes)
            elif word in ("elif", "else"):
                yes = not done[-1] and (word == "else" or self.holds(rest))
                taken[-1] = taken[-2] and yes
                done[-1] = done[-1] or yes
            elif word == "endif":
                taken.pop()
                done.pop()
            elif taken[-1]:
                end_chunk()
                self.directive(word, rest, found)
        end_chunk()
        return "".join(found)

    def directive(self, word: str, rest: str, found: list[str]) -> None:
        if word == "define":
            match = _DEFINE.match(rest)
            assert match is not None
            names = [p.strip() for p in match[2][1:-1].split(",") if p.strip()] if match[2] else None
            self.macros[match[1]] = Macro(None if names is None else tuple(names), tuple(_tokens(match[3].strip())))
        elif word == "undef":
            self.macros.pop(rest, None)
        elif word == "pragma" and rest.startswith("OPENCL"):
            self.pragmas[f"#pragma {rest}\n"] = None
        elif word == "pragma":
            found.append(f"\n#pragma {rest}\n")
        else:
            raise ValueError(f"the directive #{word} {rest!r} is unknown")

    def holds(self, condition: str) -> bool:
        text = _DEFINED.sub(lambda match: str(int(match[1] in self.macros)), condition)
        return is_true("".join([t for t, _ in self.expand([(t, _NOTHING) for t in _tokens(text)])]), {})

    def expand(self, tokens: list[Token]) -> list[Token]:
        """With macros replaced (by the algorithm of Prosser, X3J11/86-196)."""
        out: list[Token] = []
        stack = tokens[::-1]
        macros = self.macros
        while stack:
            token = stack.pop()
            macro = macros.get(token[0])
            if macro is None or token[0] in token[1]:
                out.append(token)
                continue
            if macro.parameters is None:
                stack += self.body(macro, {}, token[1] | {token[0]})[::-1]
                continue
            at = len(stack) - 1
            while at >= 0 and stack[at][0].isspace():
                at -= 1
            if at < 0 or stack[at][0] != "(":
                out.append(token)
                continue
            del stack[at:]
            arguments, hidden = _arguments(stack)
            given = dict(zip(macro.parameters, arguments, strict=True)) if macro.parameters else {}
            stack += self.body(macro, given, (token[1] & hidden) | {token[0]})[::-1]
        return out

    def body(self, macro: Macro, given: dict[str, list[Token]], hidden: frozenset[str]) -> list[Token]:
        """What stands in place of a call."""
        out: list[Token] = []
        body = macro.body
        joins = False  # the next token becomes one with the last
        for k, text in enumerate(body):
            if text == "##":
                while out and out[-1][0].isspace():
                    out.pop()
                joins = True
                continue
            if text.isspace():
                if not joins:
                    out.append((text, _NOTHING))
                continue
            if text in given:
                rest = [t for t in body[k + 1 : k + 3] if not t.isspace()]
                raw = joins or rest[:1] == ["##"]
                new = given[text] if raw else self.expand(given[text])
            else:
                new = [(text, _NOTHING)]
            if joins and out and new:
                out[-1] = (out[-1][0] + new[0][0], out[-1][1] & new[0][1])
                new = new[1:]
            joins = False
            out += new
        return [(text, own | hidden) for text, own in out]


def _arguments(stack: list[Token]) -> tuple[list[list[Token]], frozenset[str]]:
    """Those of a call whose bracket was taken off the stack, and what its end is not to be replaced by."""
    arguments: list[list[Token]] = [[]]
    level = 0
    while True:
        token = stack.pop()
        text = token[0]
        if text == ")" and level == 0:
            break
        level += (text == "(") - (text == ")")
        if text == "," and level == 0:
            arguments.append([])
        else:
            arguments[-1].append(token)
    for argument in arguments:
        while argument and argument[-1][0].isspace():
            argument.pop()
        while argument and argument[0][0].isspace():
            del argument[0]
    return arguments, token[1]


class Definition(NamedTuple):
    name: str
    text: str
    words: frozenset[str]


def _definitions(text: str) -> list[Definition]:
    """The functions, types and tables of a text without macros, in order."""
    found: list[Definition] = []
    at = 0
    while at < len(text):
        if text[at].isspace() or text[at] == ";":
            at += 1
            continue
        brace, semicolon = text.find("{", at), text.find(";", at)
        head = text[at:brace].rstrip() if 0 <= brace < semicolon or semicolon < 0 else ""
        if head.endswith(")") and "=" not in head:
            end = closing(text, brace) + 1
            name = _WORD.findall(head[: _opening(head)])[-1]
        else:
            if 0 <= brace < semicolon:
                semicolon = text.index(";", closing(text, brace))
            end = semicolon + 1
            (name,) = declared(text[at:end])[-1:]
        found.append(Definition(name, text[at:end] + "\n", frozenset(_WORD.findall(text[at:end]))))
        at = end
    return found


def _opening(head: str) -> int:
    """Where the bracket begins with which the head of a function ends."""
    level = 0
    for at in range(len(head) - 1, -1, -1):
        level += (head[at] == ")") - (head[at] == "(")
        if level == 0:
            return at
    raise ValueError(f"the head {head!r} has no list of parameters")


@lru_cache(maxsize=256)
def _parts(source: str, options: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[Definition, ...]]:
    """The pragmas and definitions that options make of a text."""
    preprocessor = _Preprocessor([o for o in options if o != "-w"])
    definitions = _definitions(preprocessor.run(source))
    return tuple(preprocessor.pragmas), tuple(definitions)


def can_merge(wanted: Wanted) -> bool:
    """Whether nothing but macros and silence is asked of the compiler."""
    return all(option.startswith("-D") or option == "-w" for option in wanted.options)


def merge(kernels: Sequence[Wanted]) -> tuple[str, list[str]]:
    """The text of a program of these kernels, and their names in it."""
    pragmas: dict[str, None] = {}
    program: dict[str, str] = {}  # definitions by name
    names = []
    for wanted in kernels:
        more, definitions = _parts(wanted.source, wanted.options)
        pragmas |= dict.fromkeys(more)
        renamed: dict[str, str] = {}
        for definition in _closure(definitions, wanted.name):
            text = definition.text
            if not renamed.keys().isdisjoint(definition.words):
                text = _WORD.sub(lambda match: renamed.get(match[0], match[0]), text)  # noqa: B023
            name, number = definition.name, 0
            own = text
            while program.get(name, own) != own:
                number += 1
                name = f"{definition.name}_{number}"
                own = re.sub(rf"\b{definition.name}\b", name, text)
            if number:
                renamed[definition.name] = name
            program[name] = own
        names.append(renamed.get(wanted.name, wanted.name))
    return "".join([*pragmas, *program.values()]), names


def _closure(definitions: Sequence[Definition], name: str) -> list[Definition]:
    """A definition and what it needs, in their order."""
    needed: list[Definition] = []
    words = {name}
    for definition in reversed(definitions):
        if definition.name in words:
            needed.append(definition)
            words |= definition.words
    return needed[::-1]
