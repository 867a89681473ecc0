"""The HTTP server's own settings, resolved before it starts and written whole into the log's `server_start` line."""

import msgspec


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`max_pending` requests may wait beyond those that run; each waits at most `pending_timeout_s` for its slot.

    `log_path` None writes no log. `default_max_tokens` is the output limit of a request that names none.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    public_model_id: str
    max_pending: int = 16
    pending_timeout_s: float = 30.0
    max_request_bytes: int = 16 * 2**20
    default_max_tokens: int = 8192
    log_path: str | None = None
    log_token_ids: bool = False
