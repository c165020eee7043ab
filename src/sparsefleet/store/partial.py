"""What a partial load takes of a checkpoint: same-named tables and parameters of the same shape, into another network.

The plan is a function of the checkpoint and of what the job's processes hold, so a trainer and all servers come to the
same one by themselves.

- A table of the same name and width is taken. Where its rule has another kind of state, the values are, and the
  optimizer starts afresh.
- A dense parameter of the same name and shape is taken. The dense block has one optimizer and one count of steps: its
  state is taken where all of the block is and the rule is the same, else it starts afresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import Layout
from sparsefleet.store.partition import Share
from sparsefleet.store.rates import never_lowered
from sparsefleet.store.shards import HeldBlock, load_block, load_table
from sparsefleet.table.sparse import SparseTable
from sparsefleet.table.spec import TableSpec


@dataclass(frozen=True)
class PartialPlan:
    tables: Mapping[str, bool]
    """Tables to take, and whether with their optimizer's state."""
    blocks: Mapping[str, bool]
    """Dense blocks to take something of, and whether as a whole and with state."""
    parameters: tuple[str, ...]
    """Dense parameters to take."""
    taken: tuple[str, ...] = field(default=())
    left: tuple[str, ...] = field(default=())
    """In the checkpoint, and not taken; each with the reason."""
    afresh: tuple[str, ...] = field(default=())
    """In the model, and not filled: they begin as in a new model; optimizers that do, too."""


def plan_of(
    checkpoint: Checkpoint,
    specs: Iterable[TableSpec],
    blocks: Iterable[tuple[str, Layout, UpdateRule]],
    *,
    values_only: bool = False,
) -> PartialPlan:
    manifest = checkpoint.manifest
    taken: list[str] = []
    left: list[str] = []
    afresh: list[str] = []
    tables: dict[str, bool] = {}
    saved_tables = {info.name: info for info in manifest.tables}
    for spec in specs:
        info = saved_tables.pop(spec.name, None)
        if info is None:
            afresh.append(f"table {spec.name!r} (the checkpoint has none)")
        elif info.dim != spec.dim:
            left.append(f"table {spec.name!r} (rows of {info.dim} values; the model's have {spec.dim})")
            afresh.append(f"table {spec.name!r}")
        else:
            fits = info.rule["name"] == spec.rule.name and info.state_width == spec.rule.state_width(spec.dim)
            same = fits and not values_only
            tables[spec.name] = same
            rows = checkpoint.row_count(spec.name)
            taken.append(f"table {spec.name!r} ({rows:,} rows{'' if same else ', values only'})")
            if not same:
                why = "as asked for" if fits else f"{info.rule['name']} there, {spec.rule.name} here"
                afresh.append(f"the optimizer of table {spec.name!r} ({why})")
    left += [f"table {name!r} (the model has none)" for name in saved_tables]

    chosen: dict[str, bool] = {}
    parameters: list[str] = []
    saved_blocks = {info.name: info for info in manifest.blocks}
    for name, layout, rule in blocks:
        block = saved_blocks.pop(name, None)
        there = dict(block.layout) if block is not None else {}
        mine = {parameter: tuple(shape) for parameter, shape in layout}
        fitting = [parameter for parameter, shape in mine.items() if there.get(parameter) == shape]
        parameters += fitting
        taken += [f"parameter {parameter}" for parameter in fitting]
        for parameter, shape in there.items():
            if parameter not in mine:
                left.append(f"parameter {parameter} (the model has none)")
            elif mine[parameter] != shape:
                left.append(f"parameter {parameter} ({list(shape)}; the model's is {list(mine[parameter])})")
        afresh += [f"parameter {parameter}" for parameter in mine if parameter not in fitting]
        if block is not None and fitting:
            dense = rule.for_dense()
            whole = list(there.items()) == list(mine.items())
            same = block.rule["name"] == dense.name and block.state_width == dense.state_width(1)
            chosen[name] = whole and same and not values_only
            if not chosen[name]:
                why = f"{block.rule['name']} there, {dense.name} here" if not same else "not all parameters were taken"
                why = "as asked for" if same and whole else why
                afresh.append(f"the optimizer of the dense parameters ({why})")
    left += [
        f"parameter {parameter} (the model has none)" for info in saved_blocks.values() for parameter, _ in info.layout
    ]
    return PartialPlan(tables, chosen, tuple(parameters), tuple(taken), tuple(left), tuple(afresh))


def load_partially(
    checkpoint: Checkpoint,
    tables: Sequence[SparseTable],
    blocks: Sequence[HeldBlock],
    *,
    share: Share | None = None,
    values_only: bool = False,
) -> PartialPlan:
    """Fill what fits; the rest stays as it is. Returns the plan, which is that of all processes of the job.

    values_only: optimizers start afresh. Learning rates do in any case: what another run has lowered is its own.
    """
    plan = plan_held(checkpoint, tables, blocks, values_only=values_only)
    for block in blocks:
        if plan.blocks.get(block.table.name):
            load_block(checkpoint, block)
            block.table.rule = never_lowered(block.table.rule)
        elif block.table.name in plan.blocks:
            _fill_pieces(checkpoint, block, set(plan.parameters))
    for table in tables:
        if table.spec.name in plan.tables:
            load_table(checkpoint, table, share=share, values_only=not plan.tables[table.spec.name])
            table.spec = replace(table.spec, rule=never_lowered(table.spec.rule))
    return plan


def plan_held(
    checkpoint: Checkpoint, tables: Sequence[SparseTable], blocks: Sequence[HeldBlock], *, values_only: bool = False
) -> PartialPlan:
    """The plan for what a process holds; raises where a table cannot be filled now."""
    plan = plan_of(
        checkpoint,
        [table.spec for table in tables],
        [(block.table.name, block.layout, block.table.rule) for block in blocks],
        values_only=values_only,
    )
    for table in tables:
        if table.spec.name in plan.tables:
            table.check_clearable()
    return plan


def _fill_pieces(checkpoint: Checkpoint, block: HeldBlock, chosen: set[str]) -> None:
    table = block.table
    saved = {name: start for name, start, _ in _places(checkpoint.manifest.block(table.name).layout)}
    for name, start, size in _places(block.layout):
        first, last = max(start, block.start), min(start + size, block.start + len(table))
        if name in chosen and first < last:
            shift = saved[name] - start
            piece = checkpoint.dense_cut(table.name, first + shift, last + shift, read_state=False)
            table.values[first - block.start : last - block.start] = piece.values
    table.state[:] = table.rule.initial_state()
    table.step = 0


def _places(layout: Layout) -> Iterator[tuple[str, int, int]]:
    """Name, first value and number of values of each parameter of a flat block."""
    start = 0
    for name, shape in layout:
        size = prod(shape)
        yield name, start, size
        start += size
