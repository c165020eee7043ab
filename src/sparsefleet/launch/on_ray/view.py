"""What people see of a job on Ray: as of one on this host, with nodes; and an error that all roles have, once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sparsefleet.launch.process import RoleProcess
from sparsefleet.launch.view import PROGRAM, PlainView, View, state_of, view_for


def ray_view(*, program: str = PROGRAM, show_result: bool = True) -> View:
    if sys.stderr.isatty():
        return view_for(program=program, show_result=show_result)
    return RayPlainView(sys.stderr, program, show_result=show_result)


class RayPlainView(PlainView):
    def __init__(self, *arguments: object, show_result: bool = True, **named: object) -> None:
        super().__init__(*arguments, show_result=show_result, **named)  # type: ignore[arg-type]
        self._of_role: dict[str, str] = {}
        self._errors: dict[str, str] = {}

    def update(self, processes: Sequence[RoleProcess]) -> None:
        # By role: process numbers of different nodes may be the same.
        for process in processes:
            name, state = str(process.role), state_of(process)
            if self._of_role.get(name) != state:
                self._of_role[name] = state
                self.say(f"{name}: {state}, {self._more(process)}")

    def _more(self, process: RoleProcess) -> str:
        place = getattr(process, "place", None)
        if process.running and place is not None:
            return f"node {place.address}, pid {process.pid} there, log {process.log}"
        said = process.error_line() if process.failed else None
        if said is not None:
            first = self._errors.setdefault(said, str(process.role))
            if first != str(process.role):
                return f"after {process.seconds:.1f} s: the error of {first}"
        return super()._more(process)
