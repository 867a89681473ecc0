"""The same text, counts and finish for every run length: speculation must not show in what a client gets."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.live_server import MODEL, LiveServer
from tests.kit.scripted import ALL_AT_ONCE
from tests.server.scripts import STORY, Dialogue

RUNS = [1, 2, 3, 5, 8, ALL_AT_ONCE]
STORY_MESSAGES: Any = [{"role": "user", "content": "story"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "stop in a word": {"stop": "op he"},
    "stop of several bytes": {"stop": ["日本"]},
    "stop at the end": {"stop": "🙃 text"},
    "stop at the start": {"stop": "G"},
    "nearly a stop": {"stop": ["</s> and less", "quick brown fix"]},
    "nested stops": {"stop": ["the END of", "END"]},
    "limit inside a character": {"max_tokens": 3},
    "limit at a stop": {"max_tokens": len(STORY.split("Stop")[0].encode()) + 4, "stop": "Stop"},
    "limit inside a stop": {"max_tokens": len(STORY.split("Stop")[0].encode()) + 3, "stop": "Stop"},
    "one token": {"max_tokens": 1},
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, dialogue: Dialogue) -> dict[int, dict[str, Any]]:
    """Run length → name → what the client and the log say."""
    return {run: _answers(tmp_path_factory.mktemp(f"run{run}"), dialogue, run) for run in RUNS}


def _answers(folder: Path, dialogue: Dialogue, run: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with LiveServer(folder, dialogue.script(run=run), {"draft_tokens": 15}, {}) as server:
        for name, fields in REQUESTS.items():
            whole = server.client.chat.completions.create(model=MODEL, messages=STORY_MESSAGES, **fields)
            chunks = list(
                server.client.chat.completions.create(
                    model=MODEL, messages=STORY_MESSAGES, stream=True, stream_options={"include_usage": True}, **fields
                )
            )
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert whole.usage is not None
            assert text == whole.choices[0].message.content
            assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
            server.wait_idle()
            done = server.log("request_done")[-1]
            assert done["result"]["completion_tokens"] == whole.usage.completion_tokens
            found[name] = (text, whole.choices[0].finish_reason, done["result"], done["speculative"])
        server.check_log()
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_run_length_changes_nothing(answers: dict[int, dict[str, Any]], name: str) -> None:
    plain = answers[1][name][:3]
    for run in RUNS:
        assert answers[run][name][:3] == plain, f"run {run}"


def test_what_the_answers_are(answers: dict[int, dict[str, Any]]) -> None:
    texts = {name: (text, finish) for name, (text, finish, _, _) in answers[1].items()}
    assert texts == {
        "whole": (STORY, "stop"),
        "stop in a word": (STORY.split("op he")[0], "stop"),
        "stop of several bytes": (STORY.split("日本")[0], "stop"),
        "stop at the end": (STORY.split("🙃 text")[0], "stop"),
        "stop at the start": ("", "stop"),
        "nearly a stop": (STORY, "stop"),
        "nested stops": (STORY.split("END")[0], "stop"),
        "limit inside a character": ("Gr\ufffd", "length"),
        "limit at a stop": (STORY.split("Stop")[0], "stop"),
        "limit inside a stop": (STORY.split("Stop")[0] + "Sto", "length"),
        "one token": ("G", "length"),
    }


def test_reasons_and_counts_in_the_log(answers: dict[int, dict[str, Any]]) -> None:
    reasons = {name: result["finish_reason"] for name, (_, _, result, _) in answers[3].items()}
    assert reasons["whole"] == "stop_token"
    assert reasons["limit at a stop"] == "stop_string"
    assert reasons["limit inside a stop"] == "output_limit"
    for run in RUNS:
        for _, _, result, speculative in answers[run].values():
            emitted = 1 + speculative["rounds"] + speculative["accepted_tokens"]
            # The last round may end inside its accepted drafts; then the target's own token was not emitted.
            assert 0 <= emitted - result["completion_tokens"] <= 1
            assert sum(speculative["accepted_per_position"]) == speculative["accepted_tokens"]
            assert len(speculative["accepted_per_position"]) == 15
            assert run != 1 or speculative["accepted_tokens"] == 0
