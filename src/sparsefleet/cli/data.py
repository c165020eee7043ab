"""`sparsefleet data …`: make, prepare, fetch and look at data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparsefleet.cli.console import add_figures, console, errors_to_exit, figures, progress
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats import file_formats
from sparsefleet.data.formats.base import BadSamples

app = typer.Typer(help="Make, prepare, fetch and look at data.", no_args_is_help=True)


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
    overwrite: Overwrite = False,
) -> None:
    """Write Criteo-like rows with labels from a known model, and say the best AUC any model could reach."""
    from sparsefleet.datasets.synth import SynthSpec, synth

    spec = SynthSpec(rows, rows // 10 if test_rows is None else test_rows, parts, seed)
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


@app.command("prepare")
@errors_to_exit
def prepare_command(
    raw: Annotated[Path, typer.Argument(help="A raw Criteo file, or a folder of them; .gz too.")],
    out: Annotated[Path, typer.Option(help="Folder to write train/, test/ and schema.json to.")],
    test_share: Annotated[float, typer.Option(help="Share of the rows to hold out.")] = 0.1,
    parts: Annotated[int, typer.Option(help="Training part files.")] = 8,
    seed: Annotated[int, typer.Option(help="Decides which rows are held out.")] = 1,
    keep_constants: Annotated[
        bool,
        typer.Option("--keep-constants", help="Write the usual fixed constants into the schema, not measured ones."),
    ] = False,
    on_bad_row: BadRowPolicy = OnBadRow.error,
    overwrite: Overwrite = False,
) -> None:
    """Check raw Criteo rows, split them into train and test parts, and measure the normalisation."""
    from sparsefleet.datasets.prepare import PrepareReport, PrepareSpec, prepare

    def summary(report: PrepareReport) -> None:
        print(f"training rows  {report.train_rows:,} in {out / 'train'}")
        print(f"test rows      {report.test_rows:,}" + (f" in {out / 'test'}" if report.test_rows else ""))
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

    spec = PrepareSpec(test_share, parts, seed, keep_constants, on_bad_row.value)
    with progress("prepare", "bytes") as update:
        report = prepare(raw, out, spec, overwrite=overwrite, on_progress=update)
    summary(report)


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
        typer.Option(help="Schema file. [default: schema.json beside the file, else Criteo's]"),
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
