"""The commands of the simulator: run, replay, shrink, soak, mutations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from duologue.sim.board import Board, Find
    from duologue.sim.mutations import Mutation
    from duologue.sim.plan import Plan
    from duologue.sim.soak import Progress

sim_app = typer.Typer(
    help="Run the real engine and server in virtual time, under seeded workloads and faults.", no_args_is_help=True
)

Seed = Annotated[int, typer.Argument(help="Number of the run.", min=0)]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="A plan or a regression from a file, not the seed's.")]
On = Annotated[list[str] | None, typer.Option("--on", help="A feature that is on, whatever the seed says.")]


@sim_app.command("run")
def run_command(
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 200,
    first: Annotated[int, typer.Option("--from", help="The first of them.", min=0)] = 0,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=64)] = 1,
    on: Annotated[
        list[str] | None, typer.Option("--on", help="A feature that is on in every seed; repeatable.")
    ] = None,
) -> None:
    """Run some seeds and say what failed, what it cost and what was exercised."""
    from duologue.sim import soak as soaking

    progress = soaking.Progress(first_seed=first, next_seed=first)
    soaking.soak(progress, seeds=seeds, jobs=jobs, minutes=minutes, also=_features(on))
    _report(progress)
    raise typer.Exit(1 if progress.failures else 0)


@sim_app.command("soak")
def soak_command(
    state: Annotated[Path, typer.Option(help="File that holds how far the run has come.")] = Path("out/sim/soak.json"),
    seeds: Annotated[int, typer.Option(help="How many seeds in all.", min=1)] = 100_000,
    first: Annotated[int, typer.Option("--from", help="The first of them.", min=0)] = 1_000_000,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes; the next call goes on.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=64)] = 1,
) -> None:
    """Run many seeds, in chunks; stop and go on at will."""
    from duologue.sim import soak as soaking

    state.parent.mkdir(parents=True, exist_ok=True)
    try:
        progress = soaking.load(state, first)
    except (ValueError, msgspec.ValidationError) as fault:
        raise typer.BadParameter(str(fault), param_hint="--state") from None

    def saved(now: soaking.Progress) -> None:
        soaking.save(now, state)
        typer.echo(f"{now.seeds} seeds, {len(now.failures)} failed, {now.cpu_s / max(now.seeds, 1):.3f} CPU s each")

    soaking.soak(progress, seeds=seeds, jobs=jobs, minutes=minutes, saved=saved)
    _report(progress)
    raise typer.Exit(1 if progress.failures else 0)


@sim_app.command("strike")
def strike_command(
    state: Annotated[Path, typer.Option(help="File that holds how far the run has come.")] = Path(
        "out/sim/strike.json"
    ),
    runs: Annotated[int, typer.Option(help="How many runs in all.", min=1)] = 10_000,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes; the next call goes on.")] = None,
) -> None:
    """Strike at every point at which engine, server and client wait, and count which were reached; stop and go on at will."""
    import gc
    import os

    from duologue.sim import strike as striking

    state.parent.mkdir(parents=True, exist_ok=True)
    progress = striking.Progress()
    if state.exists():
        progress = msgspec.json.decode(state.read_bytes(), type=striking.Progress)

    def saved(now: striking.Progress) -> None:
        beside = state.with_suffix(".tmp")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(now), indent=1))
        os.replace(beside, state)

    gc.collect()
    gc.freeze()  # a run leaves much garbage: what was there before need not be looked at again each time
    striking.storm(progress, runs=runs, minutes=minutes, saved=saved)
    typer.echo(striking.table(progress))
    each = progress.cpu_s / max(progress.runs, 1)
    typer.echo(
        f"{progress.runs} runs of {progress.plans} plans, {sum(progress.strikes.values())} strikes, "
        f"{len(progress.failures)} violations; {progress.cpu_s:.0f} CPU s ({each:.3f} a run)"
    )
    for failure in progress.failures[:50]:
        typer.echo(failure)
    raise typer.Exit(1 if progress.failures else 0)


@sim_app.command("mutations")
def mutations_command(
    state: Annotated[Path, typer.Option(help="File that holds what is known.")] = Path("out/sim/mutations.json"),
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes; the next call goes on.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=64)] = 1,
    name: Annotated[list[str] | None, typer.Option("--name", help="Only this one; repeatable.")] = None,
    limit: Annotated[int, typer.Option(help="Give up after so many seeds.", min=1)] = 2_000,
    anew: Annotated[bool, typer.Option("--anew", help="Forget first what is known of them.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Only print the table.")] = False,
) -> None:
    """Switch off safeguards, one at a time, and count the seeds until something is noticed; stop and go on at will."""
    from duologue.sim import board as boards
    from duologue.sim.mutations import MUTATIONS

    board = boards.load(state)
    board.limit = limit
    unknown = sorted(set(name or ()) - {mutation.name for mutation in MUTATIONS})
    if unknown:
        raise typer.BadParameter(f"There is no mutation {unknown[0]!r}.", param_hint="--name")
    wanted = [mutation for mutation in MUTATIONS if not name or mutation.name in name]
    if not show:
        state.parent.mkdir(parents=True, exist_ok=True)
        if anew:
            for mutation in wanted:
                board.finds.pop(mutation.name, None)
        _hunt(board, wanted, state, minutes, jobs)
    typer.echo(boards.table(board, wanted))
    failed = [seed for survey in board.surveys for seed in survey.failed]
    if failed:
        typer.echo(f"Seeds that fail without any mutation: {failed}")
        raise typer.Exit(1)


def _hunt(board: Board, wanted: Sequence[Mutation], state: Path, minutes: float | None, jobs: int) -> None:
    import time

    from duologue.sim import board as boards
    from duologue.sim.fresh import commit_of
    from duologue.sim.hunt import campaign

    def saved(find: Find, name: str) -> None:
        boards.save(board, state)
        seen = f"{find.seeds}: {' '.join(find.rules)}" if find.seeds is not None else f"not in {find.tried}"
        typer.echo(f"{name}, from {find.start}: {seen}")

    board.at(commit_of(Path.cwd())[:12])
    until = float("inf") if minutes is None else time.monotonic() + minutes * 60
    campaign(board, wanted, starts=boards.STARTS, jobs=jobs, until=until, saved=saved)
    boards.save(board, state)
    typer.echo(f"{board.cpu_s:.0f} CPU s in all")


@sim_app.command("fuzz")
def fuzz_command(
    target: Annotated[str, typer.Argument(help="Which decoder: ga, duplex, server, worker or engine.")],
    minutes: Annotated[float, typer.Option(help="How long.", min=0)] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the mutations.", min=0)] = 0,
) -> None:
    """Feed a decoder with ever stranger bytes, guided by what they reach."""
    from duologue.sim import fuzz as fuzzing

    if target not in fuzzing.TARGETS:
        raise typer.BadParameter(f"There are: {', '.join(fuzzing.TARGETS)}.", param_hint="TARGET")
    report = fuzzing.Fuzzer(target, seed).run(seconds=minutes * 60)
    typer.echo(
        f"{target}, seed {seed}: {report.runs} inputs in {report.seconds:.0f} s, {report.reached} lines, values and errors "
        f"reached from {report.corpus} inputs, {len(report.crashes)} crashes"
    )
    for crash in report.crashes:
        typer.echo(f"{crash.error}: {crash.data!r}")
    raise typer.Exit(1 if report.crashes else 0)


@sim_app.command("replay")
def replay_command(
    seed: Seed,
    plan_file: PlanFile = None,
    width: Annotated[int, typer.Option(help="Columns of a line.", min=40)] = 160,
    options: Annotated[bool, typer.Option("--options", help="Print the plan first.")] = False,
    on: On = None,
) -> None:
    """Run one seed again and print what happened, as a timeline."""
    from duologue.sim.outcome import judged, live
    from duologue.sim.plan import to_json
    from duologue.sim.trace import show

    plan = _plan(seed, plan_file, on)
    if options:
        typer.echo(to_json(plan).decode())
    begin = time.process_time()
    world, found = live(plan)
    for entry in world.trace.entries if world is not None else ():
        typer.echo(show(entry, width))
    outcome = judged(plan, world, found, begin)
    typer.echo(f"seed {outcome.seed}  digest {outcome.digest}  features {' '.join(plan.keeps)}")
    for violation in outcome.violations:
        typer.echo(f"{violation.rule}: {violation.text}")
    raise typer.Exit(1 if outcome.failed else 0)


@sim_app.command("shrink")
def shrink_command(
    seed: Seed,
    plan_file: PlanFile = None,
    runs: Annotated[int, typer.Option(help="At most so many runs.", min=1)] = 600,
    keep: Annotated[Path | None, typer.Option(help="Write the result here, as a regression.")] = None,
    why: Annotated[str, typer.Option(help="What was wrong, for the regression.")] = "",
    on: On = None,
) -> None:
    """Find the smallest workload and fault set that still fails."""
    from duologue.sim.plan import to_json
    from duologue.sim.regression import Regression, save
    from duologue.sim.shrink import shrink

    try:
        plan, outcome, count = shrink(_plan(seed, plan_file, on), max_runs=runs)
    except ValueError as fault:
        raise typer.BadParameter(str(fault), param_hint="SEED") from None
    typer.echo(to_json(plan).decode())
    for violation in outcome.violations:
        typer.echo(f"{violation.rule}: {violation.text}")
    typer.echo(f"{count} runs; digest {outcome.digest}")
    if keep is not None:
        save(Regression(rule=outcome.violations[0].rule, why=why or f"Seed {seed}.", plan=plan), keep)


def _features(on: list[str] | None) -> frozenset[str]:
    from duologue.sim.swarm import FEATURES

    unknown = sorted(set(on or ()) - FEATURES.keys())
    if unknown:
        known = ", ".join(sorted(FEATURES))
        raise typer.BadParameter(f"There is no feature {unknown[0]!r}. There are: {known}.", param_hint="--on")
    return frozenset(on or ())


def _plan(seed: int, file: Path | None, on: list[str] | None) -> Plan:
    from duologue.sim.plan import from_json
    from duologue.sim.regression import load
    from duologue.sim.swarm import draw

    if file is None:
        return draw(seed, _features(on))
    try:
        return load(file).plan
    except msgspec.ValidationError:
        return from_json(file.read_bytes())


def _report(progress: Progress) -> None:
    from duologue.sim.coverage import table

    typer.echo(table(progress.counts))
    count = max(progress.seeds, 1)
    typer.echo(
        f"{progress.seeds} seeds from {progress.first_seed}: {len(progress.failures)} failed; "
        f"{progress.session_s / 60:.0f} session minutes, {progress.cpu_s:.0f} CPU s ({progress.cpu_s / count:.3f} a seed), "
        f"{progress.wall_s:.0f} s"
    )
    for failure in progress.failures[:50]:
        typer.echo(f"seed {failure.seed}: {' '.join(failure.rules)}: {failure.text}")
