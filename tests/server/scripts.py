"""What the scripted engine says in the server tests: prompts and replies in text, as ids of the test tokenizer."""

import time
from dataclasses import dataclass

import msgspec

from paceline.core.config import EngineConfig
from paceline.text.template import ChatTemplate
from paceline.text.tokenizer import Tokenizer
from tests.kit import text_model
from tests.kit.scripted import Script, ScriptedBackend, make_backend

SLOW_FACTORY = "tests.server.scripts:slow_to_start"
STORY = "Grüße 日本 🙂! the quick brown fox. Stop here; the END of the text </s> and more 🙃 text"


def slow_to_start(config: EngineConfig) -> ScriptedBackend:
    """A backend that loads for two seconds."""
    time.sleep(2)
    return make_backend(config)


@dataclass(frozen=True)
class Dialogue:
    tokenizer: Tokenizer
    template: ChatTemplate

    def chat_ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(self.template.render([{"role": "user", "content": text}], {}))

    def reply_ids(self, text: str) -> list[int]:
        """One token per byte: every character outside of ASCII is spread over several tokens."""
        single = {self.tokenizer.token_bytes(i): i for i in range(self.tokenizer.vocab_size)}
        return [single[bytes([byte])] for byte in text.encode()]

    def script(self, **fields: object) -> Script:
        """Answers the chat message and the prompt "story" with STORY."""
        reply = self.reply_ids(STORY)
        replies = [(self.chat_ids("story"), reply), (self.tokenizer.encode("story"), reply)]
        return msgspec.structs.replace(Script(vocab=text_model.VOCAB, replies=replies), **fields)
