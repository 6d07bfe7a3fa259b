"""What the `openai` package makes of requests that fail, and what the server
keeps of clients that give up: nothing.

Usage: openai_failures.py BASE_URL MODEL

The server computes nothing, takes 20 ms a token, and bodies of 1 MiB. When this
prints `kill`, the engine is to be killed.
"""

import asyncio
import sys
import time
import urllib.request

import openai

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="any", max_retries=0)
# Minutes, unless somebody ends it.
endless = {"model": model, "prompt": [5], "max_tokens": 7000, "extra_body": {"ignore_eos": True}}
chat = {"model": model, "messages": [{"role": "user", "content": "x"}]}
PATIENCE = 60


def expect(condition, *what):
    if not condition:
        sys.exit("openai_failures.py: " + " ".join(map(repr, what)))


def gauge(name):
    with urllib.request.urlopen(base_url + "/metrics", timeout=PATIENCE) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
    sys.exit("openai_failures.py: no gauge " + name)


def wait_until(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        expect(time.monotonic() < deadline, what, "did not come about")


def is_idle():
    names = ("running", "waiting")
    return all(gauge("vllm:num_requests_" + name) == 0 for name in names) and (
        gauge("vllm:kv_cache_usage_perc") == 0
    )


def raises(kind, call):
    try:
        call()
    except kind as error:
        expect(type(error) is kind, "expected", kind, "got", error)
        return error
    sys.exit(f"openai_failures.py: no {kind.__name__}")


# A client's own time-out frees what it asked for, streaming or not, and whether
# it ran or waited.
impatient = client.with_options(timeout=0.5)
raises(openai.APITimeoutError, lambda: impatient.completions.create(**endless))
wait_until("freed after a time-out", is_idle)
raises(openai.APITimeoutError, lambda: impatient.completions.create(**endless, n=64))
wait_until("freed after a time-out of 64 answers", is_idle)

# So does closing a stream, of either endpoint,
for create, asked in (
    (client.completions.create, endless | {"n": 3}),
    (client.chat.completions.create, endless | chat),
):
    asked.pop("prompt" if "messages" in asked else "", None)
    stream = create(**asked, stream=True)
    for _ in range(5):
        next(stream)
    expect(gauge("vllm:num_requests_running") > 0, "it runs")
    stream.close()
    wait_until("freed after a close", is_idle)


# and cancelling tasks. While there are so many that the server is full, it says so.
def open_sequences():
    return gauge("vllm:num_requests_running") + gauge("vllm:num_requests_waiting")


def while_full():
    wait_until("full", lambda: open_sequences() == 2048)
    error = raises(openai.RateLimitError, lambda: client.completions.create(**endless))
    expect(error.response.headers["retry-after"] == "1", error.response.headers)
    expect(error.code == "rate_limit_exceeded", error.code)


async def cancel():
    async with openai.AsyncOpenAI(base_url=base_url + "/v1", api_key="any") as own:
        tasks = [
            asyncio.create_task(own.completions.create(**endless, n=128, timeout=600))
            for _ in range(16)
        ]
        await asyncio.to_thread(while_full)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        expect(all(isinstance(end, asyncio.CancelledError) for end in ends), ends)


asyncio.run(cancel())
# A client that tries again is served as soon as there is room.
again = client.with_options(max_retries=20).completions.create(**endless | {"max_tokens": 2})
expect(again.usage.completion_tokens == 2, again)
wait_until("freed after a cancel", is_idle)

# What is wrong with a request is said, with its field.
for call, param in [
    (lambda: client.completions.create(**endless | {"max_tokens": 100_000}), "max_tokens"),
    (lambda: client.completions.create(**endless | {"prompt": ""}), "prompt"),
    (lambda: client.completions.create(**endless, stop=[""]), "stop"),
    (lambda: client.completions.create(**endless, logprobs=21), "logprobs"),
    (lambda: client.chat.completions.create(**chat | {"messages": []}), "messages"),
    (lambda: client.chat.completions.create(**chat, n=1000), "n"),
    (lambda: client.chat.completions.create(**chat, top_logprobs=3), "top_logprobs"),
    (
        lambda: client.chat.completions.create(**chat, response_format={"type": "json_object"}),
        "response_format",
    ),
    (
        lambda: client.chat.completions.create(
            **chat, tools=[{"type": "function", "function": {"name": "f"}}]
        ),
        "tools",
    ),
]:
    error = raises(openai.BadRequestError, call)
    expect(error.param == param and error.type == "invalid_request_error", param, error.body)
error = raises(
    openai.BadRequestError,
    lambda: client.completions.create(**endless | {"max_tokens": 100_000}),
)
expect(error.code == "context_length_exceeded", error.code)
error = raises(openai.NotFoundError, lambda: client.completions.create(**endless | {"model": "y"}))
expect(error.code == "model_not_found", error.code)
error = raises(
    openai.APIStatusError, lambda: client.completions.create(**endless | {"prompt": "x" * 2**21})
)
expect(error.status_code == 413, error)

# Nobody there.
nobody = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="any", max_retries=0)
raises(openai.APIConnectionError, lambda: nobody.completions.create(**endless))

# The engine dies while it answers.
stream = client.completions.create(**endless, stream=True)
next(stream)
print("kill", flush=True)
error = raises(openai.APIError, lambda: list(stream))
expect("engine" in error.message, error)
print("ok")
