#!/usr/bin/env python3
"""Measures a server with nano-bench and with a few lines around the `openai`
package, in turn, and prints the numbers of both: the median of the rounds, and
their range.

Usage: compare-bench.py BASE_URL [ROUNDS [REQUESTS [CONCURRENCY]]]

NANO_BENCH names the program, target/release/nano-bench if unset. `openai` is in
the environment that scripts/test makes: target/venv/bin/python.
"""

import asyncio
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import openai

PROMPT_WORDS = 64
OUTPUT_TOKENS = 32
ROOT = pathlib.Path(__file__).resolve().parent.parent
NANO_BENCH = os.environ.get("NANO_BENCH", ROOT / "target/release/nano-bench")


def prompts(seed, count):
    """As long as each other, and none begins like another: no cache helps."""
    numbers = random.Random(seed)
    word = lambda: "".join(numbers.choices("abcdefghij", k=3))
    return [" ".join(word() for _ in range(PROMPT_WORDS)) for _ in range(count)]


def by_nano_bench(base_url, model, texts, concurrency):
    with tempfile.TemporaryDirectory() as temp:
        dataset = pathlib.Path(temp, "prompts.jsonl")
        dataset.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        command = [NANO_BENCH, "--base-url", base_url, "--model", model, "--dataset", dataset]
        command += ["--concurrency", str(concurrency), "--num-requests", str(len(texts))]
        command += ["--output-len", str(OUTPUT_TOKENS), "--ignore-eos", "--output-dir", temp]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads(pathlib.Path(temp, "result_summary.json").read_text())["loads"][0]
    if summary["requests"]["complete"] != len(texts):
        sys.exit(f"nano-bench: {summary['requests']}, {summary['failures']}")
    measured = {
        (name.upper(), which): summary[f"{name}_ms"][which]
        for name in ("ttft", "tpot", "e2e")
        for which in ("mean", "p50", "p90")
    }
    measured["output tokens/s", ""] = summary["throughput"]["output_tokens_per_s"]
    return measured


async def request(client, model, text):
    """TTFT, TPOT and E2E in ms, and the number of tokens."""
    begun, arrivals, usage = time.perf_counter(), [], None
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_tokens=OUTPUT_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            arrivals.append(time.perf_counter())
        usage = chunk.usage or usage
    ended, tokens = time.perf_counter(), usage.completion_tokens
    ttft, tpot = arrivals[0] - begun, (arrivals[-1] - arrivals[0]) / (tokens - 1)
    return [1e3 * ttft, 1e3 * tpot, 1e3 * (ended - begun), tokens]


async def by_openai(base_url, model, texts, concurrency):
    results, waiting = [], iter(texts)

    async def one_at_a_time():
        for text in waiting:
            results.append(await request(client, model, text))

    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        # nano-bench counts from its first request on, too.
        begun = time.perf_counter()
        await asyncio.gather(*(one_at_a_time() for _ in range(concurrency)))
        seconds = time.perf_counter() - begun
    measured = {}
    for name, values in zip(("TTFT", "TPOT", "E2E"), zip(*results)):
        ordered = sorted(values)
        rank = lambda percent: ordered[math.ceil(len(ordered) * percent / 100) - 1]
        of_name = {"mean": statistics.fmean(values), "p50": rank(50), "p90": rank(90)}
        measured |= {(name, which): value for which, value in of_name.items()}
    measured["output tokens/s", ""] = sum(tokens for *_, tokens in results) / seconds
    return measured


def main():
    base_url = sys.argv[1].rstrip("/").removesuffix("/v1") + "/v1"
    rounds, requests, concurrency = [*map(int, sys.argv[2:]), *(5, 24, 2)[len(sys.argv) - 2 :]]
    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        model = client.models.list().data[0].id
    rows = []
    # The first round warms up.
    for number in range(rounds + 1):
        texts = prompts(number, 2 * requests)
        of_nano_bench = by_nano_bench(base_url, model, texts[:requests], concurrency)
        of_openai = asyncio.run(by_openai(base_url, model, texts[requests:], concurrency))
        rows.append((of_nano_bench, of_openai))
    rows = rows[1:]
    print(f"{rounds} rounds of {requests} requests, {concurrency} at once, {OUTPUT_TOKENS} tokens each")
    print(f"{'':20}{'nano-bench':>26}{'openai':>28}")
    for name, which in rows[0][0]:
        columns = ""
        for client in zip(*rows):
            values = [measured[name, which] for measured in client]
            middle, low, high = statistics.median(values), min(values), max(values)
            columns += f"{middle:10.2f} ({low:.2f}..{high:.2f})".rjust(28)
        print(f"{name + ('' if not which else f' ms, {which}'):18}{columns}")


main()
