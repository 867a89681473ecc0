"""What must not show in the tokens shows in the acceptance: a slot's former request, a cut window, the prompt's chunks.

The shipped model with its own drafters through the real scheduler. Acceptance is compared round by round.
"""

import pytest

from paceline.core.request import Request
from tests.kit import embedded
from tests.kit.run import Reply, run, sampling

K = 7
DRAFTERS = ("mtp", "dflash", "dflash2")
STORY, CODE = embedded.PROMPTS[4], embedded.PROMPTS[1]


def request(number: int, prompt: list[int], stop_ids: list[int], tokens: int = 48, hot: bool = False) -> Request:
    params = sampling(temperature=0.6, top_p=0.95, top_k=20, presence_penalty=1.0, seed=5) if hot else sampling()
    return Request(id=number, prompt=prompt, max_tokens=tokens, sampling=params, stop_ids=stop_ids)


def served(drafter: str, work: list[Request], chunk: int = 128, k: int = K) -> list[Reply]:
    return run(
        embedded.model(), work, embedded.maker(drafter),
        draft_tokens=k, max_concurrency=1, max_context=1024, prefill_chunk=chunk, threads=1,
    )  # fmt: skip


def long_prompt() -> list[int]:
    """Chats of the kinds that the model knows, one after another: longer than the drafters' window of 512, so that their
    rings turn over while the prompt comes in."""
    chats = [embedded.chat(prompt) for prompt in embedded.PROMPTS]
    replies = served("none", [request(i, chat, embedded.stop_ids()) for i, chat in enumerate(chats)], k=0)
    told = [token for chat, reply in zip(chats, replies, strict=True) for token in (*chat, *reply.ids)]
    prompt = [*told, *told, *chats[0]]
    assert 600 < len(prompt) < 900, len(prompt)
    return prompt


def cut_inside(reply: Reply) -> tuple[int, int]:
    """(token, its place) of an accepted draft that is not the last one of its window, and is new to the reply there."""
    at = 0
    for emitted, _, _ in reply.rounds:
        for place in range(at + 1, at + emitted - 2):
            if reply.ids[place] not in reply.ids[:place]:
                return reply.ids[place], place
        at += emitted
    raise AssertionError("no window of the reply has such a draft")


@pytest.mark.parametrize("hot", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_slot_forgets(drafter: str, hot: bool) -> None:
    """Requests in a row on the one slot, one of them cut by a stop id amid accepted drafts: each as if it were alone."""
    story, code = embedded.chat(STORY), embedded.chat(CODE)
    (whole,) = served(drafter, [request(0, story, [], hot=hot)])
    (other,) = served(drafter, [request(0, code, embedded.stop_ids(), hot=hot)])
    stop, place = cut_inside(whole)
    work = [
        request(0, story, [], hot=hot),
        request(1, story, [stop], hot=hot),
        request(2, code, embedded.stop_ids(), hot=hot),
        request(3, [*story, *whole.ids, *code, *other.ids] * 3, [], tokens=20, hot=hot),
        request(4, story, [stop], hot=hot),
        request(5, story, [], hot=hot),
    ]
    replies = served(drafter, work)
    for i, alone in ((0, whole), (2, other), (5, whole)):
        assert (replies[i].ids, replies[i].rounds) == (alone.ids, alone.rounds), i
    for i in (1, 4):
        reply, last = replies[i], replies[i].rounds[-1]
        assert (reply.ids, reply.reason) == (whole.ids[: place + 1], "stop_token")
        assert reply.rounds[:-1] == whole.rounds[: len(reply.rounds) - 1]
        emitted, _, accepted = last
        assert emitted == accepted < whole.rounds[len(reply.rounds) - 1][2], "the cut lies inside the accepted drafts"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_prompt_chunks_do_not_matter(drafter: str) -> None:
    """A long prompt in one chunk or many: the same tokens, and a drafter that accepts as much (rounding aside)."""
    prompt = long_prompt()
    work = [request(i, prompt, embedded.stop_ids(), hot=i > 0) for i in range(2)]
    (plain, plain_hot), shares = served("none", work, 512, k=0), []
    for chunk in (64, 192, 1024):
        replies = served(drafter, work, chunk)
        assert [reply.ids for reply in replies] == [plain.ids, plain_hot.ids], chunk
        drafts = [reply.tally.at(len(reply.ids)) for reply in replies]
        shares.append(sum(d.accepted for d in drafts) / sum(d.proposed for d in drafts))
    assert min(shares) > 0.1 and max(shares) - min(shares) < 0.05, shares


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_prefix_hit_is_drafted_like_a_cold_start(drafter: str) -> None:
    """What a drafter knows of the prompt comes back with the prefix: it proposes the same drafts, round by round."""
    prompt = long_prompt()
    work = [request(0, prompt[:-40], []), request(1, prompt, embedded.stop_ids()), request(2, prompt, [], hot=True)]
    settings = {"draft_tokens": K, "max_concurrency": 1, "max_context": 1024, "threads": 1}
    make = embedded.maker(drafter)
    cold = run(embedded.model(), work, make, -1, **settings, prefix_cache=False)  # type: ignore[arg-type]
    warm = run(embedded.model(), work, make, -1, **settings, state_checkpoints=8)  # type: ignore[arg-type]
    found = [reply.cached for reply in warm]
    assert found[0] == 0 and found[1] >= len(prompt) - 40 - 64 and found[2] == (len(prompt) - 1) // 64 * 64
    assert [reply.ids for reply in warm] == [reply.ids for reply in cold]
    assert [reply.rounds for reply in warm] == [reply.rounds for reply in cold]
    drafts = cold[1].tally.at(len(cold[1].ids))
    assert drafts.accepted > 0.1 * drafts.proposed, "a drafter that accepts nothing could not tell"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_paused_request_is_drafted_on(drafter: str) -> None:
    """Pauses cost rounds, not the drafter's memory: with a place for its state, acceptance stays what it was."""
    story, code = embedded.chat(STORY), embedded.chat(CODE)
    work = [request(0, [*story, *story], [], tokens=130), request(1, [*code, *code], [], tokens=130)]
    settings = {"draft_tokens": K, "max_context": 256, "threads": 1, "prefill_chunk": 64}
    make = embedded.maker(drafter)
    calm = run(embedded.model(), work, make, -1, **settings, max_concurrency=1, prefix_cache=False)  # type: ignore[arg-type]
    tight = run(
        embedded.model(),
        work,
        make,
        **settings,
        max_concurrency=2,
        kv_capacity=320,
        state_checkpoints=4,  # type: ignore[arg-type]
    )
    assert [reply.ids for reply in tight] == [reply.ids for reply in calm]
    for paused, alone in zip(tight, calm, strict=True):
        more = paused.tally.at(len(paused.ids)).rounds - alone.tally.at(len(alone.ids)).rounds
        assert more <= 4, "each pause begins with an empty window"
    assert len(tight[1].rounds) > len(calm[1].rounds), "nothing was paused"
