// The official openai client against a running loom: LOOM_URL names it. Each check would fail if the server did not
// keep to the API as this client knows it.
import assert from "node:assert/strict";
import OpenAI from "openai";

const url = process.env.LOOM_URL;
for (let i = 0; !(await fetch(`${url}/health`)).ok; i++) {
  assert.ok(i < 1200, "the server was not ready in time");
  await new Promise((r) => setTimeout(r, 100));
}
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is a loom?" }];
// Greedy and short, so that two runs are the same answer; thinking off where the template knows the word.
const ask = { model, messages, temperature: 0, max_tokens: 24, chat_template_kwargs: { enable_thinking: false } };

async function collect(stream) {
  const out = { text: [], finish: [], usage: null, id: new Set(), chunks: 0 };
  for await (const chunk of stream) {
    out.chunks++;
    out.id.add(chunk.id);
    if (chunk.usage) out.usage = chunk.usage;
    for (const c of chunk.choices) {
      const piece = (c.delta ? c.delta.content : c.text) ?? "";
      assert.ok(!piece.includes("\ufffd"), "a broken character");
      out.text[c.index] = (out.text[c.index] ?? "") + piece;
      if (c.finish_reason) out.finish[c.index] = c.finish_reason;
    }
  }
  return out;
}

async function refused(promise) {
  try {
    await promise;
  } catch (e) {
    return e;
  }
  assert.fail("accepted");
}

async function metric(name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Number(text.match(new RegExp(`^${name} (.*)$`, "m"))[1]);
}

const checks = {
  async "models"() {
    const list = await client.models.list();
    assert.equal(list.data[0].object, "model");
    assert.equal((await client.models.list()).data[0].id, model);
  },
  async "chat, whole"() {
    const r = await client.chat.completions.create({ ...ask, seed: 5 });
    assert.equal(r.object, "chat.completion");
    assert.equal(r.choices[0].message.role, "assistant");
    assert.ok(["stop", "length"].includes(r.choices[0].finish_reason));
    assert.ok(r.usage.completion_tokens >= 1 && r.usage.completion_tokens <= 24);
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert.match(r._request_id, /^req_/);
  },
  async "chat, streamed: the same text and usage"() {
    const whole = await client.chat.completions.create(ask);
    const s = await collect(
      await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } }),
    );
    assert.equal(s.text[0], whole.choices[0].message.content);
    assert.equal(s.finish[0], whole.choices[0].finish_reason);
    assert.deepEqual(s.usage, whole.usage);
    assert.equal(s.id.size, 1);
    assert.ok(s.chunks > 3);
  },
  async "chat, streamed, without usage"() {
    const s = await collect(await client.chat.completions.create({ ...ask, stream: true }));
    assert.equal(s.usage, null);
    assert.ok(s.finish[0]);
  },
  async "the client's own stream helper"() {
    const r = await client.chat.completions.stream({ ...ask, stream: true }).finalChatCompletion();
    assert.equal(r.choices[0].message.role, "assistant");
  },
  async "stop string"() {
    const whole = (await client.chat.completions.create(ask)).choices[0].message.content;
    const at = Math.floor(whole.length / 2);
    const stop = whole.slice(at, at + 3);
    const r = await client.chat.completions.create({ ...ask, stop: [stop] });
    assert.equal(r.choices[0].message.content, whole.slice(0, whole.indexOf(stop)));
    assert.equal(r.choices[0].finish_reason, "stop");
  },
  async "a seed repeats, two choices differ"() {
    const hot = { ...ask, temperature: 1.5, top_p: 1, top_k: 0, n: 2, seed: 11 };
    const a = await client.chat.completions.create(hot);
    const b = await client.chat.completions.create(hot);
    assert.equal(a.choices.length, 2);
    assert.deepEqual(a.choices, b.choices);
    assert.notEqual(a.choices[0].message.content, a.choices[1].message.content);
    const s = await collect(await client.chat.completions.create({ ...hot, stream: true }));
    assert.deepEqual(s.text, a.choices.map((c) => c.message.content));
  },
  async "a stream that is broken off is cancelled"() {
    const before = await metric("loom_http_disconnects_total");
    const stream = await client.chat.completions.create({ ...ask, max_tokens: 4000, stream: true });
    for await (const chunk of stream) if (chunk.choices[0]?.delta) break;
    for (let i = 0; (await metric("loom_http_disconnects_total")) === before; i++) {
      assert.ok(i < 500, "the server did not see it");
      await new Promise((r) => setTimeout(r, 10));
    }
  },
  async "completions"() {
    const r = await client.completions.create({ model, prompt: "A loom", temperature: 0, max_tokens: 8 });
    assert.equal(r.object, "text_completion");
    const s = await collect(
      await client.completions.create({ model, prompt: "A loom", temperature: 0, max_tokens: 8, stream: true }),
    );
    assert.equal(s.text[0], r.choices[0].text);
    const two = await client.completions.create({ model, prompt: ["A loom", "Silk"], temperature: 0, max_tokens: 8 });
    assert.equal(two.choices.length, 2);
    assert.equal(two.choices[0].text, r.choices[0].text);
    const ids = await client.completions.create({ model, prompt: [5, 6, 7], temperature: 0, max_tokens: 2 });
    assert.equal(ids.usage.prompt_tokens, 3);
  },
  async "an unsupported parameter is named"() {
    const e = await refused(client.chat.completions.create({ ...ask, logit_bias: { 50: 1 } }));
    assert.ok(e instanceof OpenAI.BadRequestError);
    assert.equal(e.param, "logit_bias");
    assert.equal(e.code, "unsupported_parameter");
    assert.equal(e.type, "invalid_request_error");
    const u = await refused(client.chat.completions.create({ ...ask, frobnicate: 1 }));
    assert.equal(u.param, "frobnicate");
    assert.equal(u.code, "unknown_parameter");
  },
  async "what clients send by default is accepted"() {
    await client.chat.completions.create({
      ...ask, n: 1, user: "u", store: false, metadata: {}, logprobs: false, presence_penalty: 0, frequency_penalty: 0,
      parallel_tool_calls: true, response_format: { type: "text" }, logit_bias: {}, service_tier: "auto", tools: [],
    });
  },
  async "a prompt longer than the window"() {
    const content = "word ".repeat(200_000);
    const e = await refused(client.chat.completions.create({ ...ask, messages: [{ role: "user", content }] }));
    assert.equal(e.status, 400);
    assert.equal(e.code, "context_length_exceeded");
    assert.match(e.message, /\d+ tokens.*\d{5,} or more/);
  },
  async "an unknown model"() {
    const e = await refused(client.chat.completions.create({ ...ask, model: "gpt-4" }));
    assert.ok(e instanceof OpenAI.NotFoundError);
    assert.equal(e.code, "model_not_found");
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok      ${name}`);
  } catch (e) {
    failed++;
    console.log(`FAILED  ${name}\n${e.stack}`);
  }
}
process.exit(failed ? 1 : 0);
