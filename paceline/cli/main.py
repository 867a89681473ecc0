"""The `paceline` command: the table of commands, and one line on stderr for every error a person can cause.

Exit codes: 0 done, 1 something failed, 2 a wrong flag or value, 130 interrupted.
"""

import sys

import typer

from paceline.cli.bench import bench
from paceline.cli.demo import demo
from paceline.cli.doctor import doctor
from paceline.cli.generate import generate
from paceline.cli.plan import plan
from paceline.cli.pull import pull
from paceline.cli.serve import serve
from paceline.cli.train_drafter import drafter
from paceline.cli.train_embedded import embedded
from paceline.core.errors import ConfigError, PacelineError

app = typer.Typer(
    name="paceline",
    help="Serve large language models with speculative decoding, and measure how to deploy them.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# typer keeps its parser's errors to itself; its one public error class leads to the base of them all.
UsageError: type[Exception] = typer.BadParameter.mro()[1]

for command in (demo, serve, generate, bench, plan, pull, doctor):
    app.command()(command)
train = typer.Typer(name="train", help="Train drafters, and the model that the package ships.", no_args_is_help=False)
train.command()(embedded)
train.command()(drafter)
app.add_typer(train)


def main() -> None:
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        sys.exit(_fail(_usage(error), 2))
    except ConfigError as error:
        sys.exit(_fail(str(error), 2))
    except PacelineError as error:
        sys.exit(_fail(str(error), 1))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Exception) -> str:
    """The parser's complaint with the value that was given, which it leaves out, and where to look."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    text = str(getattr(error, "format_message", error.__str__)())
    for flag in getattr(parameter, "opts", ()):
        for given, following in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
            if given == flag or given.startswith(f"{flag}="):
                text = f"{flag} = {given.partition('=')[2] or following}: {text}"
    return f"{text} (see {context.command_path if context else 'paceline'} --help)"


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
