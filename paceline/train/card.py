"""The model card of the embedded model, from what the stages reported."""

from typing import cast

Results = dict[str, dict[str, object]]
_INTRODUCTION = """# embedded

A very small hybrid language model (Gated DeltaNet and gated attention, 3:1) for demonstrations and tests of speculative
decoding. It knows five kinds of chat (structured output, small Python functions, translation, worked arithmetic, short
stories) and nothing else. It is not useful for real work.

## Data

Chats written by the generators in `paceline/train/workloads`, a few short functions from the Python standard library
(PSF licence), and, where the data folder was given, GSM8K's training part (MIT) and tinyshakespeare (public domain).
Drafters were trained on the target's own replies to the corpus' prompts.
"""
_MEASURED = """Greedy, on held-out prompts of the same generators (never in the corpus), offline: tokens per round and, for
every draft position, the share of rounds that accepted at least that many drafts (joint)."""
_STAGES = ("target", "mtp", "dflash", "dflash2")


def model_card(results: Results) -> str:
    corpus, answers = results.get("corpus", {}), results.get("answers", {})
    lines = [
        _INTRODUCTION,
        f"Corpus: {corpus.get('tokens', 0):,} tokens. Replies of the target: {answers.get('replies', 0):,} with "
        f"{answers.get('reply_tokens', 0):,} tokens.",
    ]
    lines += [
        "",
        "## Training",
        "",
        "| part | parameters | steps | tokens | seconds | final loss |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for stage in _STAGES:
        if stage in results:
            r = results[stage]
            lines.append(
                f"| {stage} | {r['parameters']:,} | {r['steps']:,} | {r['tokens']:,} | {r['seconds']} | {r['loss']} |"
            )
    lines += ["", "## Acceptance", "", _MEASURED, "",
              "| drafter | workload | tokens/round | joint |", "| --- | --- | --- | --- |"]  # fmt: skip
    for drafter, found in results.get("eval", {}).items():
        for kind, report in cast(Results, found).items():
            joint = " ".join(f"{x:.2f}" for x in cast(list[float], report["joint"]))
            lines.append(f"| {drafter} | {kind} | {report['tokens_per_round']} | {joint} |")
    return "\n".join(lines) + "\n"
