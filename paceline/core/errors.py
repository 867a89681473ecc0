"""The one error tree. A user sees `str(error)`: one line that names the field, the value and the fix.

PacelineError
├── ConfigError      a flag or configuration value is wrong (exit code 2)
├── RequestError     an HTTP request is wrong; carries the status, the code and the field
├── CheckpointError  a model file is missing, cut short, or does not hold what it says
├── CapacityError    the model, the context or the load does not fit the device
├── EngineError      the engine process failed; nothing is wrong with the request
└── TrainingError    a training stage cannot go on
"""


class PacelineError(Exception):
    """Base of every error that is meant for a person to read."""


class ConfigError(PacelineError):
    """`field` had a value that cannot be used; `fix` says what to do about it."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field, self.value, self.fix = field, value, fix
        super().__init__(f"{field} = {value}: {fix}")


class RequestError(PacelineError):
    """A request that is refused. `param` is the JSON path of the field, or None for the whole body."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
    ) -> None:
        self.message, self.param, self.code, self.status, self.kind = message, param, code, status, kind
        super().__init__(message)


class CheckpointError(PacelineError):
    """A checkpoint cannot be read; the message names the file, the tensor or key, and the fix."""


class CapacityError(PacelineError):
    """Something does not fit; the message says how many bytes or tokens are short and which flag helps."""


class EngineError(PacelineError):
    """The engine process died or refused; requests in flight end with this."""


class TrainingError(PacelineError):
    """A training stage cannot go on; the message names the stage and the fix."""
