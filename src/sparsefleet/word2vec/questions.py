"""Analogy questions: `a b c d` a line ("a is to b as c is to d"), in sections that begin with `: name`."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet.core.errors import DataError
from sparsefleet.data.files import check_file


@dataclass(frozen=True)
class Section:
    name: str
    questions: tuple[tuple[str, str, str, str], ...]


def read_questions(path: str) -> list[Section]:
    """The sections of a file such as questions-words.txt."""
    check_file(path)
    found: list[tuple[str, list[tuple[str, str, str, str]]]] = []
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.startswith(":"):
                    found.append((line[1:].strip(), []))
                elif words := line.split():
                    if len(words) != 4:
                        raise DataError(
                            f"{path}, line {number}: a question is four words, `a b c d`, or a section's name, "
                            f"`: name`; got {line.strip()!r:.80}"
                        )
                    if not found:
                        found.append(("questions", []))
                    a, b, c, d = words
                    found[-1][1].append((a, b, c, d))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: questions are UTF-8 text, `a b c d` a line: {error}") from error
    sections = [Section(name, tuple(questions)) for name, questions in found if questions]
    if not sections:
        raise DataError(f"{path}: there are no questions in it; a question is four words a line, `a b c d`")
    return sections
