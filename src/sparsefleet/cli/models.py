"""`sparsefleet models`: what `train --model` knows, each with a line, a reference and its settings."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape

from sparsefleet.cli.console import add_figures, errors_to_exit, figures, results


@errors_to_exit
def models(
    name: Annotated[
        str | None, typer.Argument(help="One of them, or a class of your own (my_model.py:MyNet): its settings.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object.")] = False,
) -> None:
    """List the models that `train --model` knows, with their settings."""
    from sparsefleet.models import SHELF
    from sparsefleet.models.choosing import choose

    chosen = dict(SHELF) if name is None else {_called(name): choose(name)}
    told = {each: _told(model) for each, model in chosen.items()}
    if json_output:
        print(json.dumps(told))
        return
    out = results()
    for each, facts in told.items():
        out.print(f"[bold]{escape(each)}[/]  {escape(facts['summary'])}", highlight=False)
        if facts["reference"]:
            out.print(f"  {facts['reference']}", style="dim", markup=False, highlight=False)
        if name is None:
            shown = "  ".join(f"{entry['name']}={entry['default']}" for entry in facts["settings"])
            out.print(f"  {shown}", markup=False, highlight=False)
            continue
        table = figures("--set", "default", "takes", "what it is")
        for entry in facts["settings"]:
            add_figures(table, entry["name"], entry["default"], entry["takes"], entry["help"])
        out.print(table)
    if name is None:
        out.print(
            "sparsefleet models NAME explains the settings; sparsefleet train --model NAME --set setting=value takes "
            "them",
            style="dim",
            markup=False,
            highlight=False,
        )


def _called(name: str) -> str:
    """The name that the table has for it, in place of another spelling."""
    from sparsefleet.models import SHELF
    from sparsefleet.models.choosing import choose

    return next((each for each, model in SHELF.items() if model is choose(name)), name)


def _told(model: type) -> dict[str, Any]:
    from sparsefleet.models.settings import described

    summary = getattr(model, "summary", "") or (model.__doc__ or "").strip().partition("\n")[0]
    settings = [
        {"name": entry.name, "default": entry.default, "takes": entry.kind, "help": entry.help}
        for entry in described(model)
    ]
    return {"summary": summary, "reference": getattr(model, "reference", ""), "settings": settings}
