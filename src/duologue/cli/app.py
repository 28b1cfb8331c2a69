"""All commands and their options. What they do is in the other files of this package."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from duologue.cli.fault import explain
from duologue.sim.command import sim_app

DEFAULT_URL = "ws://127.0.0.1:8765"

app = typer.Typer(
    name="duologue",
    help="Full-duplex speech: an engine and server for conversations in which the machine listens while it speaks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(help="Work with configuration files.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(sim_app, name="sim")

ApiKey = Annotated[str | None, typer.Option(envvar="DUOLOGUE_API_KEY", help="Key of the server.")]
Url = Annotated[str, typer.Option(help="Address of the server.")]
ConfigFile = Annotated[Path | None, typer.Argument(metavar="[CONFIG.YAML]", help="Configuration; none: the defaults.")]


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Only declares --debug: `main` takes it from anywhere on the line before this is reached."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"duologue {installed_version('duologue')}")


@app.command()
def serve(
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Interface to listen on (default: loopback only).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (0: any free one).", min=0, max=65535)] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(envvar="DUOLOGUE_API_KEY", help="Key that clients must show; repeatable.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve until Ctrl-C, then end every session in order."""
    from duologue.cli.serve import run_serve

    run_serve(config, host=host, port=port, api_keys=tuple(api_key or ()), log_level=log_level)


@app.command()
def setup(
    models: Annotated[Path | None, typer.Option(help="Folder for the model files.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what is missing; fetch nothing.")] = False,
) -> None:
    """Fetch the model files of the embedded default (about 170 MB), once."""
    from duologue.cli.setup import run_setup_command

    raise typer.Exit(run_setup_command(models, check_only=check))


@app.command()
def doctor(
    models: Annotated[Path | None, typer.Option(help="Folder of the model files.")] = None,
    port: Annotated[int, typer.Option(help="Port that the server would use.")] = 8765,
) -> None:
    """Say what is installed, what is missing, and what to type."""
    from duologue.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(models, port))


@app.command()
def talk(
    wav: Annotated[Path | None, typer.Option(help="Say what is in this WAV file.")] = None,
    mic: Annotated[bool, typer.Option("--mic", help="Talk through microphone and loudspeaker (extra: mic).")] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    out: Annotated[Path | None, typer.Option(help="Write the answer to this WAV file.")] = None,
    realtime: Annotated[
        bool, typer.Option("--realtime/--fast", help="Send the file as it is spoken, or at once.")
    ] = True,
    instructions: Annotated[str | None, typer.Option(help="How the assistant should behave.")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for an answer.", min=1)] = 30.0,
) -> None:
    """Talk to a server: with a WAV file, or with your own voice."""
    from duologue.cli.exchange import TalkOptions
    from duologue.cli.talk import run_talk

    options = TalkOptions(
        url=url,
        api_key=api_key,
        wav=wav,
        mic=mic,
        out=out,
        realtime=realtime,
        instructions=instructions,
        timeout_s=timeout_s,
    )
    raise typer.Exit(run_talk(options))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the recording and the report.")] = Path("out/demo"),
    models: Annotated[Path | None, typer.Option(help="Folder of the model files.")] = None,
    config: Annotated[Path | None, typer.Option(help="Server configuration; none: the embedded default.")] = None,
    kill_worker: Annotated[
        bool, typer.Option("--kill-worker", help="Kill a stage worker in the second turn and watch the recovery.")
    ] = False,
) -> None:
    """Hold a real spoken conversation with a server of its own, and report on it."""
    from duologue.cli.demo import run_demo_command

    raise typer.Exit(run_demo_command(out, models, config, kill_worker=kill_worker))


@config_app.command("check")
def config_check(file: Annotated[Path, typer.Argument(metavar="CONFIG.YAML")]) -> None:
    """Say whether a configuration file can be used."""
    from duologue.cli.serve import check_config

    check_config(file)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of configuration files, for editors."""
    from duologue.config.schema import config_schema as schema

    typer.echo(schema())


def main() -> None:
    """Entry point of the console script. Exits with 0, 1 (failed) or 2 (used wrongly)."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        app(args=arguments, prog_name="duologue")
    except Exception as fault:
        if debug:
            raise
        print(explain(fault), file=sys.stderr)
        sys.exit(1)
