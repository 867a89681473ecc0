"""How drafters should draw: four rules beside the optimum of rejection sampling, on the same logits of real drafters.

docs/draft-rules.md says what is compared and shows the tables that this prints. Writes results/draft_rules.json, for
another model results/draft_rules-MODEL.json. Usage, from the repository's root:
python -m benchmarks.draft_rules [MODEL --drafter NAME --draft-tokens K --drafter-path FOLDER]
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.agreement import coupled, dense, overlap, tokens_per_round
from benchmarks.cpu import provenance
from benchmarks.windows import Line, Place, Reply, places, replies
from paceline.build import EngineOptions, configure, open_text
from paceline.core.config import EngineConfig
from paceline.core.request import Request, SamplingParams
from paceline.measure.fixtures import load_workloads
from paceline.sampling.filters import keep, pick

RESULTS = Path(__file__).parent / "results"
MODEL = "embedded"
PAIRS = {"mtp": 3, "dflash": 7, "dflash2": 7}
STANDARD: dict[str, Any] = {"top_p": 0.95, "top_k": 20, "presence_penalty": 1.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "standard T=0.6": {"temperature": 0.6, **STANDARD},
    "standard T=1.0": {"temperature": 1.0, **STANDARD},
    "plain T=0.6": {"temperature": 0.6},
    "plain T=1.0": {"temperature": 1.0},
}
RULES = ("argmax", "shared", "independent", "penalised")
# 1 − TV with the drafter's own distribution, and with the penalised one: each rule looks at one of them.
OPTIMA = {"optimum of shared": ("argmax", "shared", "independent"), "optimum": ("penalised",)}
# Makes `independent` draw from another stream than the target's.
OTHER_STREAM = 0x5DEECE66D
# Temperature of the draft ÷ the request's; 0 is the argmax after penalties.
SHARPEN = (0.0, 0.5, 0.7, 0.85, 1.0, 1.15, 1.4)
# A drafter made worse: Gaussian noise of these standard deviations on its logits, seeded with NOISE_SEED.
NOISE, NOISE_SEED = (0.0, 0.5, 1.0, 2.0, 4.0), 1
OVERLAPS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
# Temperatures and noise are tried on every so-many-th window: they need less data, being sums over all noise.
STRIDE = 4
PROMPTS = 3  # of each workload; the sampling seed is the request's number
MOST_TOKENS = 128

Means = dict[str, float]


def proposal(place: Place, line: Line, penalised: bool, sharpen: float = 1.0) -> Line:
    """What a rule draws from: (logit/T [n], ids [n]) after the request's filters, and after its penalties if they apply."""
    logits, ids = line
    sampler = place.view.sampler
    if penalised and sampler.penalties.active:
        logits = sampler.penalties.apply_ahead(logits, ids, place.drafted)
    values, kept = keep(logits / (sampler.params.temperature * sharpen), sampler.params)
    return values, ids[kept]


def expected(place: Place, line: Line) -> Means:
    """The optimum, and each rule's acceptance over all noise, with the drafter's logits `line`."""
    p = place.p
    raw, own = (dense(*proposal(place, line, penalised), len(p)) for penalised in (False, True))
    return {
        "optimum": overlap(p, own),
        "optimum of shared": overlap(p, raw),
        "argmax": float(p[line[1][line[0].argmax()]]),
        "shared": float(coupled(p, raw).sum()),
        "independent": float((p * raw).sum()),
        "penalised": float(coupled(p, own).sum()),
    }


def drawn(place: Place) -> Means:
    """1 where the rule's draft is the target's token under the request's noise. The optimum's is a chance, given the token."""
    logits, ids = place.line
    params, index = place.view.sampler.params, place.view.index + len(place.drafted)
    values, kept = proposal(place, place.line, False)
    own = dense(*proposal(place, place.line, True), len(place.p))
    drafts = {
        "argmax": int(ids[logits.argmax()]),
        "shared": pick(values, kept, params.seed, index),
        "independent": pick(values, kept, params.seed ^ OTHER_STREAM, index),
        "penalised": place.view.draw(logits, place.drafted, ids),
    }
    chance = min(1.0, float(own[place.x] / place.p[place.x]))
    return {"optimum": chance} | {rule: float(draft == place.x) for rule, draft in drafts.items()}


def sharpened(place: Place, share: float) -> float:
    """The penalised rule's acceptance over all noise, with the draft's temperature multiplied by `share`."""
    if share == 0:
        values, ids = proposal(place, place.line, True)
        return float(place.p[ids[values.argmax()]])
    return float(coupled(place.p, dense(*proposal(place, place.line, True, share), len(place.p))).sum())


def requests(config: EngineConfig, setting: str) -> list[Request]:
    tokenizer, template, _ = open_text(config)
    jobs = [(w.max_tokens, f.prompt) for w in load_workloads() for f in w.fixtures[:PROMPTS]]
    return [
        Request(
            id=i,
            prompt=tokenizer.encode(template.render([{"role": "user", "content": prompt}], {})),
            max_tokens=min(limit, MOST_TOKENS),
            sampling=SamplingParams(seed=i, **SETTINGS[setting]),
            stop_ids=tokenizer.generation.eos_ids,
        )
        for i, (limit, prompt) in enumerate(jobs, 1)
    ]


class Study:
    """Collects one drafter under one setting, reply by reply."""

    def __init__(self) -> None:
        self.expected: list[list[Means]] = []  # by draft position
        self.drawn: list[list[Means]] = []
        self.chains: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.sharpened: list[Means] = []
        self.noisy: list[Means] = []
        self.noise = torch.Generator().manual_seed(NOISE_SEED)

    def add(self, reply: Reply) -> None:
        windows: dict[str, list[list[float]]] = defaultdict(list)
        for number, window in enumerate(places(reply)):
            hits = [drawn(place) for place in window]
            for i, place in enumerate(window):
                if i == len(self.expected):
                    self.expected.append([])
                    self.drawn.append([])
                self.expected[i].append(expected(place, place.line))
                self.drawn[i].append(hits[i])
                if number % STRIDE == 0:
                    self._vary(place)
            for key in hits[0]:
                windows[key].append([hit[key] for hit in hits])
        for key, chances in windows.items():
            self.chains[key].append(tokens_per_round(chances, len(reply.ids)))
        self.chains["engine"].append((reply.rounds, reply.accepted))

    def _vary(self, place: Place) -> None:
        self.sharpened.append({f"{share:g}": sharpened(place, share) for share in SHARPEN})
        logits, ids = place.line
        for deviation in NOISE:
            worse = logits + deviation * torch.randn(len(logits), generator=self.noise)
            self.noisy.append(expected(place, (worse, ids)))

    def summary(self) -> dict[str, Any]:
        over_all = mean(row for position in self.expected for row in position)
        real = mean(row for position in self.drawn for row in position)
        return {
            "positions": sum(map(len, self.drawn)),
            "optimum": over_all.pop("optimum"),
            "optimum of shared": over_all.pop("optimum of shared"),
            "measured": {rule: real[rule] for rule in RULES},
            "expected": over_all,
            "by position": [
                {"windows": len(hits), "measured": mean(hits), "expected": mean(sums)}
                for hits, sums in zip(self.drawn, self.expected, strict=True)
            ],
            "tokens/round": {
                key: 1 + sum(accepted for _, accepted in chain) / sum(rounds for rounds, _ in chain)
                for key, chain in self.chains.items()
            },
            "draft temperature": mean(self.sharpened),
        }


def mean(rows: Iterable[Means]) -> Means:
    rows = list(rows)
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}


def by_overlap(rows: list[Means]) -> list[dict[str, float]]:
    """Each rule's acceptance ÷ the optimum of the distribution that it looks at, in ranges of that optimum.

    Ranges of one rule's optimum would pick the places where just this one is bad.
    """
    ranges = []
    for low, high in pairwise(OVERLAPS):
        entry = {"from": low, "to": high}
        for optimum, rules in OPTIMA.items():
            inside = [row for row in rows if low <= row[optimum] < high or row[optimum] >= high == 1.0]
            entry[f"positions by {optimum}"] = len(inside)
            total = sum(row[optimum] for row in inside)
            if total > 0:
                entry |= {rule: sum(row[rule] for row in inside) / total for rule in rules}
        ranges.append(entry)
    return ranges


@torch.inference_mode()
def measure(model: str, pairs: dict[str, int], drafter_path: str | None) -> dict[str, Any]:
    studies: dict[str, list[dict[str, Any]]] = {}
    noisy: dict[str, list[Means]] = defaultdict(list)
    for drafter, k in pairs.items():
        options = EngineOptions(
            model=model,
            weights="bf16",
            drafter=drafter,
            drafter_path=drafter_path,
            draft_tokens=k,
            max_concurrency=1,
            max_context=1024,
        )
        config = configure(options)
        for setting in SETTINGS:
            print(f"{drafter} K={k}, {setting} …", file=sys.stderr)
            study = Study()
            for reply in replies(config, requests(config, setting)):
                study.add(reply)
            studies.setdefault(f"{drafter} K={k}", []).append({"setting": setting, **study.summary()})
            noisy[setting] += study.noisy
    return {"drafters": studies, "by overlap": {setting: by_overlap(rows) for setting, rows in noisy.items()}}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(figures: dict[str, Any]) -> list[str]:
    """The tables of docs/draft-rules.md, in its order."""
    studies = [(name, study) for name, settings in figures["drafters"].items() for study in settings]

    def rules(row: dict[str, Any]) -> list[str]:
        return [f"{row['measured'][rule]:.3f} ({row['expected'][rule]:.3f})" for rule in RULES]

    acceptance = [
        [
            name,
            study["setting"],
            f"{study['optimum']:.3f}",
            f"{study['optimum of shared']:.3f}",
            *rules(study),
            f"{study['expected']['penalised'] / study['optimum']:.3f}",
        ]
        for name, study in studies
    ]
    rounds = [
        [name, study["setting"], *(f"{study['tokens/round'][key]:.2f}" for key in ("optimum", *RULES, "engine"))]
        for name, study in studies
    ]
    positions = [
        [name, study["setting"], str(i), f"{row['expected']['optimum']:.3f}", *rules(row)]
        for name, study in studies
        if study["setting"].startswith("standard")
        for i, row in enumerate(study["by position"], 1)
        if i in (1, 2, 3, 5, 7)
    ]
    ranges = [
        [setting, f"{row['from']:g} – {row['to']:g}", f"{row['positions by optimum']:,}"]
        + [f"{row[rule]:.3f}" if rule in row else "–" for rule in RULES]
        for setting, rows in figures["by overlap"].items()
        for row in rows
    ]
    temperatures = [
        [name, study["setting"], *(f"{study['draft temperature'][f'{share:g}']:.4f}" for share in SHARPEN)]
        for name, study in studies
    ]
    where = ("drafter", "setting")
    return [
        table((*where, "optimum", "without penalties", *RULES, "penalised ÷ optimum"), acceptance),
        table((*where, "optimum", *RULES, "engine"), rounds),
        table((*where, "draft", "optimum", *RULES), positions),
        table(("setting", "1 − TV", "positions", *RULES), ranges),
        table((*where, *(f"× {share:g}" for share in SHARPEN)), temperatures),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=MODEL, help="a known name or a model folder")
    parser.add_argument("--drafter", choices=PAIRS, help="one drafter; without it, those of the default model")
    parser.add_argument("--draft-tokens", type=int, default=7, help="K of that drafter")
    parser.add_argument("--drafter-path", help="the folder of that drafter's checkpoint")
    given = parser.parse_args()
    chosen = {given.drafter: given.draft_tokens} if given.drafter else PAIRS
    setup = {"settings": SETTINGS, "prompts": PROMPTS, "most tokens": MOST_TOKENS, "noise": NOISE, "stride": STRIDE}
    about = {"model": given.model, "command": " ".join(["python -m benchmarks.draft_rules", *sys.argv[1:]])}
    measured = measure(given.model, chosen, given.drafter_path)
    default = given.model == MODEL and chosen == PAIRS
    result = RESULTS / ("draft_rules.json" if default else f"draft_rules-{Path(given.model).name}.json")
    result.write_text(json.dumps({**provenance(), **about, **setup, **measured}, indent=1) + "\n")
    print("\n\n".join(tables(measured)))
