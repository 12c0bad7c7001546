"""The scalar functions of csrc as OpenCL C: the same text, taken apart, so that no formula is written twice.

The C headers are read as they are, together with kernels/prelude.cl, which comes first and wins: it has the types and
macros that make OpenCL C of them, and what float32 needs of its own where the C functions work in float64. `closure`
gives what some names need, in an order in which each is defined before it is used; so the text of a kernel has nothing
that it does not call. Conditionals of the preprocessor are decided here, and macros that make functions are expanded
here; other macros are left to the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tapeflow.backend.opencl.table import source

CSRC = Path(__file__).parents[2] / "csrc"
HEADERS = (
    "tpf_math.h", "tpf_math_more.h", "tpf_math_special.h", "tpf_composite.h", "tpf_integer.h", "cast.h",
    "normal_table.h", "random.h",
)  # fmt: skip

_WORD = re.compile(r"[A-Za-z_]\w*")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_DEFINE = re.compile(r"#\s*define\s+(\w+)(\([^)]*\))?\s*(.*)", re.S)
_RESERVED = re.compile(r"\b(?:half|kernel|global|local|constant|private)\b")  # names in C, words of OpenCL C
_LINKAGE = re.compile(r"^(?:TPF_INLINE|TPF_NOINLINE|static|inline)\s+")


class Item(NamedTuple):
    """A definition: its text, and the words in it."""

    text: str
    words: frozenset[str]


class Macro(NamedTuple):
    parameters: tuple[str, ...] | None  # None: it is no function
    body: str


def item(text: str) -> Item:
    text = _RESERVED.sub(r"\g<0>_", text)
    return Item(text, frozenset(_WORD.findall(text)))


@dataclass
class Library:
    """Definitions by name; whoever defines a name first keeps it."""

    items: dict[str, Item]
    macros: dict[str, Macro]

    @classmethod
    def read(cls, texts: Iterable[str]) -> Library:
        library = cls({}, {})
        for text in texts:
            library._add(list(_lines(text, library.macros)))
        return library

    def _add(self, lines: list[str]) -> None:
        at, text = 0, "\n".join(lines)
        while at < len(text):
            if text[at].isspace() or text[at] == ";":
                at += 1
            elif text[at] == "#":
                end = _end_of_line(text, at)
                self._define(text[at:end])
                at = end
            else:
                at = self._definition(text, at)

    def _define(self, line: str) -> None:
        match = _DEFINE.match(line)
        if match and match[1] not in self.items:
            parameters = None if match[2] is None else tuple(p.strip() for p in match[2][1:-1].split(",") if p.strip())
            self.macros.setdefault(match[1], Macro(parameters, match[3]))
            self.items[match[1]] = item(line.strip() + "\n")

    def _definition(self, text: str, at: int) -> int:
        """Note the definition that begins here; where it ends."""
        word = _WORD.match(text, at)
        macro = self.macros.get(word[0]) if word else None
        if word and macro and macro.parameters is not None and text[word.end() : word.end() + 1] == "(":
            end = closing(text, word.end())
            self._add(_expanded(macro, text[word.end() + 1 : end]).split("\n"))
            return end + 1
        brace, semicolon = text.find("{", at), text.find(";", at)
        is_function = 0 <= brace < semicolon and "=" not in text[at:brace] and "(" in text[at:brace]
        if is_function:
            end = closing(text, brace) + 1
            head = text[at:brace]
            names = _WORD.findall(head[: head.index("(")])[-1:]
        else:
            if 0 <= brace < semicolon:
                semicolon = text.index(";", closing(text, brace))
            end = semicolon + 1
            names = declared(text[at:end])
        definition = text[at:end]
        while _LINKAGE.match(definition):
            definition = _LINKAGE.sub("", definition)
        if is_function:
            definition = "static " + definition.replace("static const", "const")  # not allowed inside of one
        elif definition.startswith("const "):
            definition = "__constant " + definition[6:]
        for name in names:
            self.items.setdefault(name, item(definition + "\n"))
        return end

    def closure(self, names: Iterable[str], known: dict[str, Item] | None = None) -> dict[str, Item]:
        """What these names need, before what needs it; `known` are definitions beside those of the library."""
        found: dict[str, Item] = {}
        known = known or {}

        def visit(name: str) -> None:
            definition = known.get(name) or self.items.get(name)
            if definition is None or name in found or name in entered:
                return
            entered.add(name)
            for word in sorted(definition.words - {name}):
                visit(word)
            found[name] = definition

        entered: set[str] = set()
        for name in names:
            visit(name)
        return found


def _end_of_line(text: str, at: int) -> int:
    """The end of a directive, with the lines that follow a backslash."""
    while True:
        end = text.find("\n", at)
        if end < 0:
            return len(text)
        if text[end - 1] != "\\":
            return end
        at = end + 1


def closing(text: str, at: int) -> int:
    """Where the bracket at `at` is closed."""
    opening, level = text[at], 0
    closing = {"(": ")", "{": "}"}[opening]
    for k in range(at, len(text)):
        level += (text[k] == opening) - (text[k] == closing)
        if level == 0:
            return k
    raise ValueError(f"the {opening} in {text[at : at + 40]!r} is never closed")


def declared(text: str) -> list[str]:
    """The names of a typedef, a table or an enum."""
    if text.startswith("enum"):
        return _WORD.findall(text)[1:]
    return _WORD.findall(text.partition("=")[0].partition("[")[0] if "=" in text else text)[-1:]


def _expanded(macro: Macro, arguments: str) -> str:
    """A call of a macro, replaced."""
    assert macro.parameters is not None
    given = dict(zip(macro.parameters, _split(arguments), strict=True))
    body = re.sub(r"\\\n", "\n", macro.body)
    body = _WORD.sub(lambda match: given.get(match[0], match[0]), re.sub(r"\s*##\s*", "\x00", body))
    return body.replace("\x00", "")


def _split(arguments: str) -> list[str]:
    """At the commas that no bracket is around."""
    parts, level = [""], 0
    for letter in arguments:
        level += (letter in "([{") - (letter in ")]}")
        if letter == "," and level == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _lines(text: str, macros: dict[str, Macro]) -> Iterator[str]:
    """The lines that conditionals leave, without comments; a directive is one line."""
    text = COMMENT.sub(lambda match: " " + "\n" * match[0].count("\n"), text)
    values = dict(macros)
    taken = [True]  # whether the branch of each conditional around is the one, and all those further out
    done = [True]  # whether one of its branches has been
    for line in re.findall(r"(?:[^\n]*\\\n)*[^\n]*", text):
        directive = re.match(r"\s*#\s*(\w+)\s*(.*)", line, re.S)
        word, rest = (directive[1], directive[2]) if directive else ("", "")
        if word in ("if", "ifdef", "ifndef"):
            holds = (rest.strip() in values) == (word == "ifdef") if word != "if" else is_true(rest, values)
            taken.append(taken[-1] and holds)
            done.append(holds)
        elif word in ("elif", "else"):
            holds = not done[-1] and (word == "else" or is_true(rest, values))
            taken[-1] = taken[-2] and holds
            done[-1] = done[-1] or holds
        elif word == "endif":
            taken.pop()
            done.pop()
        elif taken[-1] and word not in ("include", "pragma", "undef"):
            match = _DEFINE.match(line.strip())
            if match:
                values.setdefault(match[1], Macro(None, match[3]))
            if line.strip():
                yield line.rstrip()


def is_true(condition: str, values: dict[str, Macro]) -> bool:
    """The value of a condition over `defined(...)` and whole numbers, none of them negative."""
    text = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda match: str(int(match[1] in values)), condition)
    text = _WORD.sub(lambda match: values[match[0]].body.strip() or "0" if match[0] in values else "0", text)
    text = text.replace("&&", " and ").replace("||", " or ").replace("!", " not ").replace(" not =", "!=")
    text = text.replace("/", "//")
    if not re.fullmatch(r"[\d\s()<>=!*/+-]*(?:(?:and|or|not)[\d\s()<>=!*/+-]*)*", text):
        raise ValueError(f"the condition {condition!r} cannot be decided")
    return bool(eval(text))


@cache
def library() -> Library:
    """Of kernels/prelude.cl and the headers of csrc."""
    return Library.read(
        [source("prelude.cl"), source("random.cl"), *((CSRC / name).read_text(encoding="utf-8") for name in HEADERS)]
    )
