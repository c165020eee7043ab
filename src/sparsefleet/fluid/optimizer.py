"""fluid.optimizer: the update rules under Fluid's names, with Fluid's arguments.

Of these, the ones that are not needed here are noted in the log, and those that mean something else are refused with
what to write. What a script leaves out is as in Fluid, not as in `sparsefleet.optim`. Whatever our own rules take
(`schedule`, `weight_decay`, `exact`) is taken too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from sparsefleet import optim
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.notes import note
from sparsefleet.optim import RowwiseAdagrad
from sparsefleet.optim.base import UpdateRule

__all__ = [
    "SGD",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "Ftrl",
    "FtrlOptimizer",
    "RowwiseAdagrad",
    "SGDOptimizer",
]

Rule = TypeVar("Rule", bound=UpdateRule)


def SGD(*given: Any, **settings: Any) -> optim.SGD:
    """learning_rate."""
    return _made(optim.SGD, "SGD", 1, given, settings)


def Adagrad(*given: Any, **settings: Any) -> optim.Adagrad:
    """learning_rate, epsilon."""
    start = settings.pop("initial_accumulator_value", None)
    if start is not None:
        if "initial_accumulator" in settings:
            raise ConfigError(
                "fluid.optimizer.Adagrad: initial_accumulator_value and initial_accumulator mean the same thing; leave "
                "one of them out"
            )
        note("Adagrad(initial_accumulator_value=…): the setting is called initial_accumulator here, and means the same")
        settings["initial_accumulator"] = start
    return _made(optim.Adagrad, "Adagrad", 2, given, settings, epsilon=1e-6)


def Adam(*given: Any, **settings: Any) -> optim.Adam:
    """learning_rate, beta1, beta2, epsilon."""
    lazy = settings.pop("lazy_mode", None)
    if lazy is True and settings.get("exact"):
        raise ConfigError("fluid.optimizer.Adam: lazy_mode=True and exact=True contradict each other; leave one out")
    if lazy is True:
        note("Adam(lazy_mode=True) is not needed: a step moves only the rows of its batch, unless exact=True")
    elif lazy is not None:
        raise ConfigError(
            f"fluid.optimizer.Adam: lazy_mode={lazy!r:.60}; where every step is to move every row of a table, write "
            "exact=True (docs/exact.md); where only the rows of its batch, leave lazy_mode out"
        )
    return _made(optim.Adam, "Adam", 4, given, settings, learning_rate=1e-3)


def Ftrl(*given: Any, **settings: Any) -> optim.FTRL:
    """learning_rate, l1, l2."""
    power = settings.pop("lr_power", None)
    if power is not None:
        if power != -0.5:
            raise ConfigError(
                f"fluid.optimizer.Ftrl: lr_power={power!r:.60}; here rates fall with the root of the sum of squares, "
                "which is lr_power=-0.5: leave it out"
            )
        note("Ftrl(lr_power=-0.5) is not needed: rates fall so anyway")
    made = _made(optim.FTRL, "Ftrl", 3, given, settings, beta=0.0)
    return replace(made, l2=2 * made.l2)  # Fluid's formula has it twice


AdamOptimizer, AdagradOptimizer, SGDOptimizer, FtrlOptimizer = Adam, Adagrad, SGD, Ftrl

_OF_ALL = ("parameter_list", "regularization", "grad_clip", "name")
"""Arguments that each of Fluid's optimizers has; None, their default, means the same here."""


def _made(
    rule: type[Rule], name: str, shared: int, given: tuple[Any, ...], settings: Mapping[str, Any], **defaults: float
) -> Rule:
    """shared: how many of Fluid's arguments, from the first, are the rule's own; what comes behind them is not the same
    in all releases of Fluid. defaults: Fluid's, where the rule has others."""
    call = f"fluid.optimizer.{name}"
    known = [field.name for field in fields(rule)]
    # `schedule` and `exact` are of all rules and by name only: dataclasses put them behind the others.
    by_position = [field.name for field in fields(rule) if not field.kw_only][:shared]
    if len(given) > shared:
        raise ConfigError(
            f"{call}: {len(given)} arguments by position; give those after {by_position[-1]} by name, such as "
            f"{next(each for each in known if each not in by_position)}=…"
        )
    own: dict[str, Any] = dict(zip(by_position, given, strict=False))
    for setting, value in settings.items():
        if setting in own:
            raise ConfigError(f"{call}: {setting} is given twice; leave one of them out")
        if setting in known:
            own[setting] = value
        elif setting not in _OF_ALL:
            raise ConfigError(f"{call}: there is no setting {setting}; there are {', '.join(known)}")
        elif value is not None:
            _leave_out(call, rule, setting)
    if texts := [f"{setting}={value!r:.60}" for setting, value in own.items() if isinstance(value, str)]:
        raise ConfigError(f"{call}: {', '.join(texts)} must be a number, not a text: write float(…) around it")
    return rule(**{**defaults, **own})


def _leave_out(call: str, rule: type[UpdateRule], setting: str) -> None:
    """Note, or refuse, what the rules here do not have."""
    if setting == "name":
        note(f"{call} needs no name: an optimizer's state belongs to its table or parameter")
        return
    if setting == "parameter_list":
        instead = (
            "all parameters of the model are trained; leave it out, and call parameter.requires_grad_(False) for those "
            "that are to stay as they are"
        )
    elif setting == "grad_clip":
        instead = (
            "write fleet.distributed_optimizer(optimizer, fleet.DistributedStrategy(clip_norm=…)) for what "
            "GradientClipByGlobalNorm does; other clipping is not here (docs/exact.md)"
        )
    elif "weight_decay" in {field.name for field in fields(rule)}:
        instead = (
            "write weight_decay=c for L2Decay(c) where the loss was a sum over the batch (reduce_sum), and c times the "
            "batch size where it was a mean; with exact=True it reaches rows that a batch does not have, too"
        )
    else:
        instead = "the rule has l1 and l2 of its own; leave it out"
    raise ConfigError(f"{call}: {setting} is not here: {instead}")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ConfigError(f"fluid.optimizer.{name} is not here; choose {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
