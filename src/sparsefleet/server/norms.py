"""Norms: before a round of sync is applied, the norm of its gradients; for clipping.

A norm is of the sum over all trainers and of all servers' shares, so nobody can tell it alone. Every trainer hands in
its part of the round first; a server answers with the sum of squares of its own share of the total, and keeps the parts
(`Account.held`). Trainers add up what the servers say, all the same numbers in the same order, and ask each server to
apply what it holds, times the factor that this makes. So gradients travel once, and a step costs one more answer.

Parts are gathered as those of a round are (`server/rounds.py`): who left is not waited for, who is lost is named or
left out. If one is lost between the two, its gradients are still in the norm and no longer in the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparsefleet.core.errors import StoreError
from sparsefleet.server.gate import OnWait
from sparsefleet.server.holdings import Bound
from sparsefleet.server.ledger import Account, Step
from sparsefleet.server.rounds import Round, Rounds, summed
from sparsefleet.store.norms import scaled, squares


class Norms(Rounds):
    def squares(
        self, account: Account, sequence: int, parts: Sequence[Bound], clip_norm: float, on_wait: OnWait
    ) -> float:
        """The sum of squares of this server's share of all trainers' gradients, once all have handed in theirs."""
        account.clip_norm = clip_norm
        if not self._made_before(account, sequence):  # else what it brought is held, or applied already
            account.held = parts
        self.contribute(Step(account, sequence, 0), parts, on_wait)
        return account.squares[1]

    def _made_before(self, account: Account, sequence: int) -> bool:
        return sequence <= account.squares[0]

    def _apply(self, current: Round, on_wait: OnWait) -> None:
        contributions = [current.contributions[worker] for worker in sorted(current.contributions)]
        error, total = _disagreement([one.step.account for one in contributions]), 0.0
        try:
            total = squares(part.values for part in summed([one.parts for one in contributions]))
        except Exception as problem:
            error = StoreError(f"the norm of round {current.number} failed on this server: {problem!r}")
        with self._sessions.changed:
            for one in contributions if error is None else ():
                one.step.account.squares = (one.step.sequence, total)
            self._close(current, error)


def _disagreement(accounts: Sequence[Account]) -> StoreError | None:
    if len({account.clip_norm for account in accounts}) <= 1:
        return None
    wanted = ", ".join(f"worker {account.worker} {account.clip_norm:g}" for account in accounts)
    return StoreError(f"trainers clip gradients at different norms: {wanted}; give all of them the same clip_norm")


def held_parts(account: Account, sequence: int, factor: float) -> Sequence[Bound]:
    """What a trainer has handed in for the norm, times the factor; nothing where that was applied before."""
    if sequence <= account.sequence:
        return ()
    if account.held is None:
        raise StoreError(
            f"worker {account.worker} asks to apply gradients that this server does not hold: a norm comes first"
        )
    return [replace(part, values=scaled(part.values, factor)) for part in account.held]
