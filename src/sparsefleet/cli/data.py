"""`sparsefleet data …`: make, prepare, fetch and look at data."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsefleet.cli.console import add_figures, console, errors_to_exit, figures, progress
from sparsefleet.cli.reading import SCHEMA
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats import file_formats
from sparsefleet.data.formats.base import BadSamples

if TYPE_CHECKING:
    from sparsefleet.datasets.prepare import PrepareReport, PrepareSpec
    from sparsefleet.datasets.split_table import SplitReport
    from sparsefleet.datasets.synth import SynthSpec

app = typer.Typer(help="Make, prepare, fetch and look at data.", no_args_is_help=True)


class SynthKind(StrEnum):
    criteo = "criteo"
    events = "events"


class OnBadRow(StrEnum):
    error = "error"
    skip = "skip"


FormatName = StrEnum("FormatName", file_formats())  # type: ignore[misc]  # typer shows an enum as choices
AUTO = FormatName("auto")

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run left in --out.")]
BadRowPolicy = Annotated[OnBadRow, typer.Option("--on-bad-row", help="Stop at a bad row, or skip and count it.")]


@app.command("synth")
@errors_to_exit
def synth_command(
    rows: Annotated[int, typer.Option(help="Training rows.")],
    out: Annotated[Path, typer.Option(help="Folder to write train/, test/ and schema.json to.")],
    parts: Annotated[int, typer.Option(help="Training part files.")] = 4,
    seed: Annotated[int, typer.Option(help="Another seed gives other rows and other effects.")] = 1,
    test_rows: Annotated[int | None, typer.Option(help="Held-out rows. [default: a tenth of --rows]")] = None,
    kind: Annotated[
        SynthKind,
        typer.Option(help="criteo: lines as Criteo's. events: CSV with users, their histories, clicks and buys."),
    ] = SynthKind.criteo,
    overwrite: Overwrite = False,
) -> None:
    """Write rows with labels from a known model, and say the best AUC any model could reach."""
    from sparsefleet.datasets.synth import SynthSpec, synth

    spec = SynthSpec(rows, rows // 10 if test_rows is None else test_rows, parts, seed)
    if kind == SynthKind.events:
        _synth_events(out, spec, overwrite)
        return
    with progress("synth") as update:
        report = synth(out, spec, overwrite=overwrite, on_progress=update)
    print(f"training rows      {report.rows:,}, {100 * report.click_rate:.1f} % clicks, in {out / 'train'}")
    if not report.test_rows:
        print("test rows          none, so the best possible AUC is not known")
        return
    print(
        f"test rows          {report.test_rows:,}, {100 * (report.test_click_rate or 0):.1f} % clicks, "
        f"in {out / 'test'}"
    )
    if report.best_auc is None:
        print("best possible AUC  unknown: the test rows all have the same label; ask for more of them")
    else:
        print(f"best possible AUC  {report.best_auc:.4f} on the test rows (log loss {report.best_logloss:.4f})")


def _synth_events(out: Path, spec: SynthSpec, overwrite: bool) -> None:
    from sparsefleet.datasets.events import synth_events

    with progress("synth") as update:
        report = synth_events(out, spec, overwrite=overwrite, on_progress=update)
    rates = f"{100 * report.click_rate:.1f} % clicks, {100 * report.buy_rate:.1f} % of them buys"
    print(f"training rows      {report.rows:,} of {report.users:,} users, {rates}, in {out / 'train'}")
    print(f"test rows          {report.test_rows:,}" + (f" in {out / 'test'}" if report.test_rows else ""))
    if report.best_auc is not None:
        print(f"best possible AUC  {report.best_auc:.4f} on the test rows (log loss {report.best_logloss:.4f})")
    if report.best_buy_auc is not None:
        print(f"of buys            {report.best_buy_auc:.4f} among clicked rows")
    print(f"schema             {out / 'schema.toml'}")


@app.command("inspect")
@errors_to_exit
def inspect_command(
    files: Annotated[
        list[str],
        typer.Argument(help="Files, folders or patterns: CSV, TSV, JSON lines, libsvm, libffm, MultiSlot or Parquet."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write the schema that this suggests to this .toml file, to be edited.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="The column that holds the label; of MultiSlot slot1, slot2, …. [default: guessed]"),
    ] = None,
    format: Annotated[str, typer.Option(help="auto, csv, jsonl, libsvm, libffm, multislot or parquet.")] = "auto",
    rows: Annotated[int, typer.Option(help="How many rows to look at, of all files together.")] = 100_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")] = False,
) -> None:
    """Look at a table of events: what each column is, how it relates to the label, and a schema for it."""
    from sparsefleet.cli.inspect_view import show_inspection
    from sparsefleet.datasets.inspect import inspect

    if out is not None and out.suffix != ".toml":
        raise ConfigError(f"--out {out}: the schema is written as TOML; give a name that ends in .toml")
    if out is not None and out.exists() and not overwrite:
        raise ConfigError(f"--out {out} exists; give another name, or --overwrite to replace it")
    found = inspect(files, label=label, format=format, rows=rows)
    if out is not None:  # first: who looks at the head of a long table closes the pipe
        _write_schema(out, found.text())
    show_inspection(found)
    if out is not None:
        print(f"schema  {out}")


def _write_schema(out: Path, text: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}; give another name") from None


@app.command("prepare")
@errors_to_exit
def prepare_command(
    raw: Annotated[
        str,
        typer.Argument(help="A raw Criteo file, or a folder of them; .gz too. With --schema, any table. Path or URI."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write train/, test/, valid/ and the schema to.")],
    schema: Annotated[
        Path | None,
        typer.Option(
            help="Schema (JSON or TOML) of CSV, JSON lines, libsvm, libffm, MultiSlot or Parquet files, as data "
            "inspect writes it."
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="With --schema: random, time (the latest) or group (whole groups).")
    ] = "random",
    test_share: Annotated[float, typer.Option(help="Share of the rows to hold out for a test.")] = 0.1,
    valid_share: Annotated[
        float, typer.Option(help="Share of the rows to hold out for train --valid-data (by time: before the test).")
    ] = 0.0,
    parts: Annotated[int, typer.Option(help="Training part files.")] = 8,
    seed: Annotated[int, typer.Option(help="Decides which rows are held out.")] = 1,
    workers: Annotated[
        int, typer.Option(help="With --schema: processes that share the work; the result is the same for any number.")
    ] = 1,
    keep_constants: Annotated[
        bool,
        typer.Option(
            "--keep-constants",
            help="Keep the numbers and kept values of --schema, and measure only what it lacks (tomorrow's data). "
            "Without --schema: write the usual fixed constants, not measured ones.",
        ),
    ] = False,
    on_bad_row: BadRowPolicy = OnBadRow.error,
    overwrite: Overwrite = False,
) -> None:
    """Check rows and split them into train and test parts, and validation parts with --valid-share.

    Measures on the way what the schema needs: of raw Criteo rows the normalisation, else the values that a min_count
    keeps, the bounds of quantiles, and minimum and diff of a measure. --keep-constants leaves what the schema knows.
    """
    from sparsefleet.datasets.prepare import PrepareSpec, not_held_out, prepare

    spec = PrepareSpec(test_share, parts, seed, keep_constants, on_bad_row.value, valid_share)

    if schema is not None:
        _split_table(raw, out, schema, split, spec, overwrite, workers)
        return
    if workers != 1:
        raise ConfigError("--workers needs --schema FILE; Criteo's lines without one are prepared by one process")
    if split != "random":
        raise ConfigError(f"--split {split} needs --schema FILE, which names the column")

    def summary(report: PrepareReport) -> None:
        _tell_rows(report, out)
        rows = report.train_rows + report.test_rows + (report.valid_rows or 0)
        for remark in not_held_out(spec, report.test_rows, report.valid_rows, rows):
            print(f"note           {remark}")
        for reason, count in report.skipped.items():
            print(f"skipped        {count:,}: {reason}")
        schema = Schema.load(out / "schema.json")
        table = figures("feature", ">blank", ">minimum", ">95th percentile", ">schema: minimum", ">diff")
        for stats, feature in zip(report.integers, schema.dense, strict=True):
            blank = 100 * stats.blanks / (stats.blanks + stats.values)
            measured = ("-" if value is None else f"{value:g}" for value in (stats.minimum, stats.p95))
            add_figures(table, stats.name, f"{blank:.1f} %", *measured, f"{feature.minimum:g}", f"{feature.diff:g}")
        console.print(table)
        print(f"schema         {out / 'schema.json'}")

    with progress("prepare", "bytes") as update:
        report = prepare(raw, out, spec, overwrite=overwrite, on_progress=update)
    summary(report)


def _tell_rows(report: PrepareReport | SplitReport, out: Path) -> None:
    print(f"training rows  {report.train_rows:,} in {out / 'train'}")
    print(f"test rows      {report.test_rows:,}" + (f" in {out / 'test'}" if report.test_rows else ""))
    if report.valid_rows is not None:
        print(f"valid rows     {report.valid_rows:,}" + (f" in {out / 'valid'}" if report.valid_rows else ""))


def _split_table(
    raw: str, out: Path, schema: Path, split: str, spec: PrepareSpec, overwrite: bool, workers: int
) -> None:
    from sparsefleet.datasets.split_table import split_table

    given = Schema.load(schema)
    known = [slot.name for slot in given.slots if slot.kept is not None or slot.buckets is not None]
    known += [feature.name for feature in given.dense if feature.measured]
    said = dict.fromkeys(known, ", as the schema had it") if spec.keep_constants else {}
    with progress("prepare", "bytes") as update:
        report = split_table(
            raw,
            out,
            given,
            spec,
            split=split,
            schema_file=schema,
            overwrite=overwrite,
            workers=workers,
            on_progress=update,
        )
    _tell_rows(report, out)
    if report.from_time is not None:
        when = datetime.fromtimestamp(report.from_time, UTC)
        print(f"test rows are those from {when:%Y-%m-%d %H:%M:%S} UTC on ({report.from_time} seconds since 1970)")
    if report.valid_from_time is not None:
        when = datetime.fromtimestamp(report.valid_from_time, UTC)
        until = "" if report.from_time is None else ", before the test rows"
        print(f"validation rows are those from {when:%Y-%m-%d %H:%M:%S} UTC on{until}")
    for reason, count in report.skipped.items():
        print(f"skipped        {count:,}: {reason}")
    for slot, count in report.kept.items():
        print(f"kept values    {count:,} of {slot}{said.get(slot, '')}")
    for slot, bounds in report.buckets.items():
        shown = f", bounds {bounds[0]:g} to {bounds[-1]:g}" if bounds else ""
        print(f"buckets        {len(bounds) + 1} of {slot}{shown}{said.get(slot, '')}")
    for feature, (minimum, diff) in report.scales.items():
        print(f"normalisation  {feature}: (x - {minimum:g}) / {diff:g}{said.get(feature, '')}")
    for remark in report.remarks:
        print(f"note           {remark}")
    print(f"schema         {out / 'schema.toml'}")


@app.command("download")
@errors_to_exit
def download_command(
    url: Annotated[str, typer.Option(help="http:// or https:// address of the file.")],
    out: Annotated[Path, typer.Option(help="Folder to put it into.")],
    sha256: Annotated[str | None, typer.Option(help="Check the file against this sum.")] = None,
    unpack: Annotated[bool, typer.Option(help="Unpack .tar.gz, .tgz, .tar, .zip and .gz.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds without a byte before trying again.")] = 30.0,
    retries: Annotated[int, typer.Option(help="Failed attempts in a row before giving up.")] = 5,
    overwrite: Overwrite = False,
) -> None:
    """Fetch a file, going on where an earlier attempt stopped; check it, and unpack it."""
    from sparsefleet.datasets.download import DownloadSpec, download

    def retry(reason: str, pause: float) -> None:
        console.print(f"{reason}; trying again in {pause:g} s", markup=False)

    spec = DownloadSpec(url, sha256, unpack, timeout, retries)
    with progress("download", "bytes") as update:
        report = download(
            spec,
            out,
            overwrite=overwrite,
            on_progress=update,
            on_unpack=update.another("unpack"),
            on_retry=retry,
        )
    print(f"file      {report.file} ({report.bytes:,} bytes, {report.fetched:,} of them fetched now)")
    print(f"sha256    {report.sha256}" + (" as expected" if sha256 else " (not checked: no --sha256)"))
    if report.unpacked:
        print(f"unpacked  {', '.join(report.unpacked[:10])}" + (", …" if len(report.unpacked) > 10 else ""))


@app.command("show")
@errors_to_exit
def show_command(
    file: Annotated[str, typer.Argument(help="The file to read.")],
    format: Annotated[FormatName, typer.Option(help="What the file holds.")] = AUTO,
    rows: Annotated[int | None, typer.Option(help="Stop after so many rows. [default: all]")] = None,
    pipe_command: Annotated[
        str | None, typer.Option(help="Send the file through this command, which prints MultiSlot text.")
    ] = None,
    sparse_feature_dim: Annotated[
        int | None,
        typer.Option(help="Fold keys into so many rows; 0 keeps 64 bits. [default: the schema's]"),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(help=SCHEMA),
    ] = None,
    on_bad_row: BadRowPolicy = OnBadRow.error,
) -> None:
    """Print the parsed rows in MultiSlot form."""
    from sparsefleet.datasets.show import show

    bad_samples = BadSamples(on_bad_row.value)
    lines = show(
        file,
        format=format.value,
        rows=rows,
        pipe_command=pipe_command,
        schema=Schema.load(schema) if schema else None,
        sparse_feature_dim=sparse_feature_dim,
        bad_samples=bad_samples,
    )
    for line in lines:
        print(line)
    for reason, count in bad_samples.counts.items():
        console.print(f"skipped {count:,}: {reason}", markup=False)


if __name__ == "__main__":
    app()
