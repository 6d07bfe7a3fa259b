"""Speaks to a running server with the `openai` package, as its users do.

Usage: openai_client.py BASE_URL MODEL API_KEY
"""

import sys

import openai

base_url, model, api_key = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key=api_key, max_retries=0)


def expect(condition, *what):
    if not condition:
        sys.exit("openai_client.py: " + " ".join(map(repr, what)))


names = [each.id for each in client.models.list()]
expect(names == [model], "models", names)

# Chat: whole, and the same in pieces.
question = {
    "model": model,
    "messages": [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the capital of France? Answer in one short sentence."},
    ],
    "temperature": 0,
    "max_tokens": 40,
}
whole = client.chat.completions.create(**question)
answer = whole.choices[0].message.content
expect("Paris" in answer, "chat", answer)
expect(whole.choices[0].finish_reason == "stop", "finish_reason", whole.choices[0])
usage = whole.usage
expect(usage.prompt_tokens > 10 and usage.completion_tokens > 2, "usage", usage)
expect(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "usage", usage)

pieces, finish_reasons, last_usage = [], [], None
for chunk in client.chat.completions.create(
    **question, stream=True, stream_options={"include_usage": True}
):
    if chunk.choices:
        pieces.append(chunk.choices[0].delta.content or "")
        finish_reasons.append(chunk.choices[0].finish_reason)
    last_usage = chunk.usage or last_usage
expect("".join(pieces) == answer, "streamed chat", pieces, answer)
expect(sum(1 for piece in pieces if piece) > 2, "it came in pieces", pieces)
expect([reason for reason in finish_reasons if reason] == ["stop"], "finish", finish_reasons)
expect(last_usage.completion_tokens == usage.completion_tokens, "usage", last_usage, usage)

# Completions: whole, and the same in pieces, with log-probabilities and a stop string.
prompt = {
    "model": model,
    "prompt": "One, two, three, four,",
    "temperature": 0,
    "max_tokens": 16,
    "logprobs": 3,
}
whole = client.completions.create(**prompt)
text = whole.choices[0].text
expect("five" in text, "completion", text)
logprobs = whole.choices[0].logprobs
expect("".join(logprobs.tokens) == text, "logprobs", logprobs.tokens, text)
expect(all(value <= 0 for value in logprobs.token_logprobs), "logprobs", logprobs)
pieces = [chunk.choices[0].text for chunk in client.completions.create(**prompt, stream=True)]
expect("".join(pieces) == text, "streamed completion", pieces, text)
stopped = client.completions.create(**prompt | {"stop": ["five"]})
expect("five" not in stopped.choices[0].text, "stop", stopped.choices[0])
expect(stopped.choices[0].finish_reason == "stop", "stop", stopped.choices[0])

# Log-probabilities of a chat, whole and in pieces.
asked = question | {"logprobs": True, "top_logprobs": 2}
whole = client.chat.completions.create(**asked).choices[0]
content = whole.logprobs.content
text = b"".join(bytes(token.bytes) for token in content).decode()
expect(text.startswith(whole.message.content), "chat logprobs", text)
expect(all(len(token.top_logprobs) == 2 for token in content), "top_logprobs", content)
best = [token.top_logprobs[0].token for token in content]
expect(best == [token.token for token in content], "greedy is the best", best)
chunks = [c.choices[0] for c in client.chat.completions.create(**asked, stream=True)]
streamed = [token for c in chunks if c.logprobs for token in c.logprobs.content]
expect([t.token for t in streamed] == best, "streamed logprobs", streamed)

# A stop string of a chat, in pieces: nothing of it is shown.
pieces = client.chat.completions.create(**question | {"stop": "Paris"}, stream=True)
pieces = [chunk.choices[0] for chunk in pieces]
shown = "".join(piece.delta.content or "" for piece in pieces)
expect(answer.startswith(shown) and "P" not in shown, "stop", shown, answer)
expect(pieces[-1].finish_reason == "stop", "stop", pieces[-1])

# Several answers of a chat in one stream are told apart, and end once each.
texts, ends = {}, []
for chunk in client.chat.completions.create(
    **question | {"temperature": 1.0, "max_tokens": 12}, n=3, seed=5, stream=True
):
    for choice in chunk.choices:
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        ends += [choice.index] if choice.finish_reason else []
expect(sorted(ends) == [0, 1, 2], "ends", ends)
whole = client.chat.completions.create(
    **question | {"temperature": 1.0, "max_tokens": 12}, n=3, seed=5
)
expect([choice.message.content for choice in whole.choices] == [texts[i] for i in range(3)], texts)

# Several answers; the same seed gives the same ones.
several = prompt | {"n": 3, "temperature": 1.0, "seed": 7}
first, second = (client.completions.create(**several) for _ in range(2))
expect(len({choice.text for choice in first.choices}) > 1, "n", first.choices)
expect([c.text for c in first.choices] == [c.text for c in second.choices], "seed", first, second)

# Errors arrive as the package's own types.
try:
    client.completions.create(**prompt | {"temperature": -1})
    expect(False, "a negative temperature was taken")
except openai.BadRequestError as error:
    expect("temperature" in str(error), "error", error)
try:
    client.completions.create(**prompt | {"model": "no-such-model"})
    expect(False, "an unknown model was served")
except openai.NotFoundError:
    pass
try:
    openai.OpenAI(base_url=base_url + "/v1", api_key="wrong", max_retries=0).models.list()
    expect(False, "a wrong key was taken")
except openai.AuthenticationError:
    pass

print("ok")
