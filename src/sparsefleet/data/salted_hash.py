"""Finds calls of Python's own `hash` in a user's data code.

`hash` of text is salted: it differs in every process unless PYTHONHASHSEED is set. Keys made of it are those of one
process: trainers would not agree on them, and a saved model would score noise. No value tells, so the code is looked
at: the function, what is defined in it, and the functions, methods and objects of the user's own that it refers to.

Used by data generators, which must start in milliseconds: imports nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST = 400
"""Functions looked at: a script's own code is small, and what it imports is not followed far."""


def salted() -> bool:
    """Whether `hash` of text differs between this process and the next."""
    return sys.flags.hash_randomization != 0 and not os.environ.get("PYTHONHASHSEED", "").isdecimal()


def find_hash(code_of: Any, methods: tuple[str, ...] = ("__call__", "__iter__", "__next__")) -> str | None:
    """Where this function, or these methods of an object, call `hash`: "file:line, in name"; None: nowhere."""
    todo: list[tuple[Any, tuple[str, ...]]] = [(code_of, methods)]
    seen = set[int]()
    while todo and len(seen) < MOST:
        for function, owner in _functions(*todo.pop(0)):
            if id(function) in seen:
                continue
            seen.add(id(function))
            names = function.__globals__
            codes = list(_codes(function.__code__))
            for code in codes:
                if "hash" in code.co_names and "hash" not in names:
                    return f"{code.co_filename}:{_line(code)}, in {code.co_name}"
            used = tuple(name for code in codes for name in code.co_names)
            todo += [
                (item, used) for item in (*_referred(used, names), *_enclosed(function), owner) if item is not None
            ]
    return None


def _enclosed(function: Any) -> list[Any]:
    """What a closure holds, and what a decorator has wrapped."""
    found = [getattr(function, "__wrapped__", None)]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return found


def _referred(used: tuple[str, ...], names: dict[str, Any]) -> list[Any]:
    """What of the user's own these names stand for, in the module or in modules that it has imported."""
    found = []
    for name in used:
        item = names.get(name)
        if type(item) is type(sys):
            file = getattr(item, "__file__", None) or "site-packages"
            if "site-packages" not in file and item.__name__.split(".")[0] not in (
                "sparsefleet",
                *sys.stdlib_module_names,
            ):
                found += [vars(item)[inner] for inner in used if inner in vars(item)]
        elif item is not None and _own(item):
            found.append(item)
    return found


def _functions(item: Any, used: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """The Python functions behind an item, each with the object or class that it is a method of.

    An item is a function, a method, a partial, or an object or class of the user's: then its methods called as `used`.
    """
    if hasattr(item, "__func__"):  # a method
        yield item.__func__, item.__self__
    elif hasattr(item, "func") and hasattr(item, "args"):  # functools.partial
        for part in (item.func, *item.args):
            yield from _functions(part, used)
    elif hasattr(item, "__code__") and hasattr(item, "__globals__"):
        yield item, None
    else:
        for owner in (item if isinstance(item, type) else type(item)).__mro__:
            members = vars(owner) if _own(owner) else {}
            for name in (*used, "__init__"):
                member = getattr(members.get(name), "__func__", members.get(name))  # static and class methods
                if hasattr(member, "__code__"):
                    yield member, item


def _own(item: Any) -> bool:
    """Whether this may be the user's: not a module, nor of the standard library or an installed package."""
    given = getattr(item, "__module__", None)
    name = given if isinstance(given, str) else str(type(item).__module__)
    if name.split(".")[0] in ("builtins", "sparsefleet", *sys.stdlib_module_names) and name != "__main__":
        return False
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or ""
    return module is None or "site-packages" not in file


def _codes(code: Any) -> Iterator[Any]:
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _codes(constant)


def _line(code: Any) -> int:
    """The line of the call, where the interpreter tells it; else the function's first."""
    try:
        import dis

        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            if instruction.starts_line is not None and not isinstance(instruction.starts_line, bool):
                line = instruction.starts_line
            if instruction.argval == "hash" and "LOAD" in instruction.opname:
                positions = instruction.positions
                return (positions.lineno if positions and positions.lineno else None) or line
    except Exception:  # only to say where: never in the way of what is said
        pass
    return int(code.co_firstlineno)
