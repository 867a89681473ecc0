"""One tokenizer, and one idle fast server, for all server tests."""

from collections.abc import Iterator

import pytest

from paceline.text.template import ChatTemplate
from paceline.text.tokenizer import Tokenizer
from tests.kit import text_model
from tests.kit.live_server import LiveServer
from tests.kit.scripted import Script
from tests.server.scripts import Dialogue


@pytest.fixture(scope="session")
def dialogue(tmp_path_factory: pytest.TempPathFactory) -> Dialogue:
    folder = text_model.build(tmp_path_factory.mktemp("model"))
    tokenizer = Tokenizer.load(folder)
    return Dialogue(tokenizer, ChatTemplate.load(folder, tokenizer))


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory, dialogue: Dialogue) -> Iterator[LiveServer]:
    """Two at a time, context 1024; answers "story" with STORY. Tests leave it idle."""
    folder = tmp_path_factory.mktemp("live")
    with LiveServer(folder, dialogue.script(), {}, {}) as server:
        yield server
        server.check_empty()
        server.check_log()


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One at a time, 20 ms a step, prompts in chunks of 64, two may wait for half a second."""
    folder = tmp_path_factory.mktemp("slow")
    script = Script(vocab=text_model.VOCAB, step_delay_s=0.02)
    engine = {"max_concurrency": 1, "prefill_chunk": 64, "max_context": 4096, "kv_capacity": 8192}
    with LiveServer(folder, script, engine, {"max_pending": 2, "pending_timeout_s": 0.5}) as server:
        yield server
        server.check_empty()
        server.check_log()
