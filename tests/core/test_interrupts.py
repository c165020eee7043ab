"""Interrupts that wait until something short is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparsefleet.core.interrupts import interrupts_held_off, sigterm_interrupts


def held_off(*acts: Callable[[], object]) -> None:
    with interrupts_held_off():
        for act in acts:
            act()


def interrupt(number: signal.Signals = signal.SIGINT) -> Callable[[], None]:
    return lambda: signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_the_block_is_done(number: signal.Signals) -> None:
    done: list[str] = []
    with sigterm_interrupts():
        before = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt):
            held_off(interrupt(number), lambda: done.append("the rest"))
        assert done == ["the rest"]
        assert signal.getsignal(number) is before


def test_the_second_one_does_not_wait() -> None:
    done: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        held_off(interrupt(), interrupt(), lambda: done.append("the rest"))
    assert done == []
    assert signal.getsignal(signal.SIGINT) is before


def test_one_that_comes_before_all_are_held_off_leaves_none_held_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM just as SIGINT's handler is ours: Ctrl-C would else be noted from then on, by nobody who looks."""
    real = signal.signal

    def set_handler(number: int, handler: Any) -> Any:
        before = real(number, handler)
        if number == signal.SIGINT and terms:
            signal.raise_signal(terms.pop())
        return before

    before, terms = signal.getsignal(signal.SIGINT), [signal.SIGTERM]
    with sigterm_interrupts():
        monkeypatch.setattr(signal, "signal", set_handler)
        with pytest.raises(KeyboardInterrupt):
            held_off()
        assert signal.getsignal(signal.SIGINT) is before


def test_an_error_of_the_block_is_not_hidden_by_it() -> None:
    with pytest.raises(KeyError, match="no such row"):
        held_off(interrupt(), lambda: {}["no such row"])


@pytest.fixture
def default_sigterm() -> Iterator[None]:
    """As a process begins; a test of Ray leaves a handler of Ray's own."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("default_sigterm")
def test_what_ends_the_process_at_once_still_does_and_other_threads_change_nothing() -> None:
    seen: list[object] = []

    def look() -> None:
        held_off(lambda: seen.extend(map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))))

    at_first = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    look()
    assert seen[0] is not at_first[0]
    assert seen[1] is at_first[1], "SIGTERM is nobody's here: it ends the process"
    seen.clear()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    assert seen == at_first
