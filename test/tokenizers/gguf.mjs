// A byte-level tokenizer.json as the metadata of a GGUF file, as converters write it.
const u32 = (v) => { const b = Buffer.alloc(4); b.writeUInt32LE(v); return b; };
const u64 = (v) => { const b = Buffer.alloc(8); b.writeBigUInt64LE(BigInt(v)); return b; };
const string = (s) => { const b = Buffer.from(s, "utf8"); return Buffer.concat([u64(b.length), b]); };
const STRING = 8, ARRAY = 9, I32 = 5, NORMAL = 1, CONTROL = 3, USER = 4, UNUSED = 5;

export function toGguf(json, pre) {
    const { vocab, merges } = json.model;
    const ids = Object.values(vocab).concat(json.added_tokens.map((t) => t.id));
    const n = ids.reduce((a, b) => Math.max(a, b), 0) + 1;
    const tokens = Array.from({ length: n }, (_, i) => `[PAD${i}]`), types = new Array(n).fill(UNUSED);
    for (const [text, id] of Object.entries(vocab)) [tokens[id], types[id]] = [text, NORMAL];
    for (const t of json.added_tokens) [tokens[t.id], types[t.id]] = [t.content, t.special ? CONTROL : USER];
    const strings = (list) => [u32(ARRAY), u32(STRING), u64(list.length), ...list.map(string)];
    const values = [
        ["tokenizer.ggml.model", u32(STRING), string("gpt2")],
        ["tokenizer.ggml.pre", u32(STRING), string(pre)],
        ["tokenizer.ggml.tokens", ...strings(tokens)],
        ["tokenizer.ggml.token_type", u32(ARRAY), u32(I32), u64(n), ...types.map(u32)],
        ["tokenizer.ggml.merges", ...strings(merges.map((m) => (typeof m === "string" ? m : m.join(" "))))],
    ];
    const parts = [Buffer.from("GGUF"), u32(3), u64(0), u64(values.length)];
    for (const [key, ...data] of values) parts.push(string(key), Buffer.concat(data));
    const head = Buffer.concat(parts);
    return Buffer.concat([head, Buffer.alloc((32 - (head.length % 32)) % 32)]);
}
