// The texts that tokenizers are compared on: the same bytes every time, from a seed. Each is an array of strings.
let state = 0x9e3779b9;
const random = () => {
    state ^= state << 13; state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5; state >>>= 0;
    return state;
};
const below = (n) => random() % n;
const pick = (list) => list[below(list.length)];

const words = {
    latin: "the of and to in is that it was for on are with as his they be at one have this from or had by hot word but what some we can out other were all there when up use your how said an each she which do their time if will way about many then them write would like so these her long make thing see him two has look more day could go come did number sound no most people my over know water than call first who may down side been now find any new work part take get place made live where after back little only round man year came show every good me give our under name very through just form sentence great think say help low line differ turn cause much mean before move right boy old too same tell does set three want air well also play small end put home read hand port large spell add even land here must big high such follow act why ask men change went light kind off need house picture try us again animal point mother world near build self earth father".split(" "),
    european: "Straße naïve façade Ærøskøbing żółć Łódź Ångström señor coração İstanbul ılık Ğöz čeština Þingvellir œuvre ſtill ﬁne ﬀ ĳ ǆ 'S 'll 'RE don't DON'T we'Ve ’s l'été".split(" "),
    cyrillic: "привет мир съешь ещё этих мягких французских булок да выпей чаю Київ їжак Београд Њ".split(" "),
    greek: "αβγ Ελλάδα ὀξύς ΣΊΣΥΦΟΣ σίσυφος ᾳ ᾼ".split(" "),
    hebrew: "שלום עולם שָׁלוֹם".split(" "),
    arabic: "مرحبا بالعالم الكِتَابُ ١٢٣٤٥٦ ۱۲۳ لا ﷺ".split(" "),
    indic: "नमस्ते दुनिया क्षत्रिय १२३४ বাংলা ভাষা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ਪੰਜਾਬੀ ગુજરાતી ଓଡ଼ିଆ සිංහල".split(" "),
    east: "中文 你好世界 機器學習 人工智能是计算机科学的一个分支 日本語 ひらがな カタカナ ｶﾀｶﾅ がぎぐげご が 한국어 안녕하세요 조선말 각 ㄱㄴㄷ 𠀀𠀁 龥龦 々〆〇 、。「」 ！？".split(" "),
    other: "ภาษาไทย สวัสดี ລາວ မြန်မာ ខ្មែរ ქართული ᲐᲑᲒ Հայերեն ᚠᚢᚦ ᏣᎳᎩ ꭰꭱ አማርኛ ⴰⴱ ⵣ Ⲁⲁ 𐐀𐐨 𝐀𝟘 ᠮᠣᠩᠭᠣᠯ བོད་སྐད ߒߞߏ".split(" "),
    emoji: "😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☺︎ 👩🏻‍❤️‍💋‍👨🏿 🧑‍🚀 1️⃣ ©️ ™ 🏴󠁧󠁢󠁥󠁮󠁧󠁿".split(" "),
    signs: "½ ² ³ Ⅷ ① ⑳ ㊗ ℃ № ∑∫√ ≤≥≠ → ⇒ ⟨⟩ … — – ‘’ “” «» ‹› ¿¡ § ¶ † ‡ • ′ ″ ‰ ₿ € £ ¥ ₹ ▁ ▁▁ ▁x x▁ ￼ ".split(" "),
    numbers: "0 1 12 123 1234 12345 123456789 3.14159 1e-10 0xDEADBEEF 1,000,000 2026-11-30 12:34:56 +49-30 192.168.0.1 v1.2.3 ٣٫١٤ 一二三 1st 2nd".split(" "),
    punctuation: "! ? . , ; : ... ?! !! -- --- === *** ### ~~~ ``` ''' \"\"\" () [] {} <> </> && || ++ -= != == => -> :: $x @y #z %w ^ & * _ _a a_b __init__ \\n \\ / // /* */".split(" "),
    code: ["def f(x):\n    return x*2\n", "for (int i = 0; i < n; i++) {\n\tsum += a[i];\n}\n", "SELECT * FROM t WHERE a='b';\r\n",
        "<div class=\"x\">\n  <p>hi</p>\n</div>\n", "{\"key\": [1, 2.5e3, null, \"\\u00e9\"]}", "#include <stdio.h>\n\nint main(void) { return 0; }\n",
        "fn main() { println!(\"{:?}\", vec![1u8; 4]); }\n", "$ ls -la | grep '^d' > /tmp/out 2>&1\n", "λx.x ∀ε>0 ∃δ", "https://example.org/a/b?c=d&e=%20#f",
        "camelCaseWord SCREAMING_SNAKE XMLHttpRequest iPhone", "\t\tif a:\n\t\t\tpass\n\n\n\n"],
    blank: [" ", "  ", "   ", "     ", "                ", "\n", "\n\n", "\n\n\n", "\r\n", "\r", "\t", "\t\t", " \n", "\n ", "  \n  ", " \t ", "\u00a0", "\u2003",
        "\u3000", "\u2028", "\u2029", "\u1680", "\u202f", "\u205f", "\u180e", "\u200b", "\u2060", "\v", "\f"],
    control: ["\u0001", "\u0002", "\u0007", "\b", "\u001b[31m", "\u007f", "\u0000", "\u0080", "\u009f", "\u00ad", "\ufffd", "\ufffe", "\u200d", "\u200e", "\u202e",
        "\ue000", "\u{f0000}", "\u{10ffff}", "\u0301", "e\u0301", "e\u0301\u0323", "a\u0328\u0301", "\u1100\u1161\u11a8", "\u0344", "\u2126", "\u212b", "\ufb01"],
    special: ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>user<|end_header_id|>", "<s>", "</s>", "<unk>", "<bos>", "<eos>",
        "<start_of_turn>model\n", "<end_of_turn>", "[INST]", "[/INST]", "<think>", "</think>", "<tool_call>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
        "<|endofprompt|>", "<|fim_prefix|>", "<unused1>", "<0x0A>", "<0xE4>", "<|im_start", "|im_end|>", "<|", "|>", "<<s>>", "<s", "</think", "<mask>", "<pad>", "<table>", "</h1>",
        "<|reserved_special_token_0|>", "<|fin", "[multimodal]"],
};
const kinds = Object.keys(words);

// Words of one kind mostly, and of others in between.
function mixed(main, n) {
    const parts = [];
    for (let i = 0; i < n; i++) {
        const kind = below(4) ? main : pick(kinds);
        parts.push(pick(words[kind]));
        const gap = below(20);
        if (gap < 12) parts.push(" ");
        else if (gap < 13) parts.push(pick(words.blank));
        else if (gap < 14) parts.push(pick(words.punctuation));
    }
    return parts.join("");
}

function runs() {
    const out = [];
    for (const c of [" ", "\n", "\t", "a", "A", "0", "中", "!", "▁", "é", "e\u0301", "\u0301", "😀", "\r\n", " \n", "ab ", "</", "<s>", "は", "\u0000", "_", "==", "'", "'s"])
        for (const n of [2, 3, 5, 8, 17, 64, 333, 1500]) out.push(c.repeat(n), "x" + c.repeat(n) + "y", c.repeat(n) + " z");
    return out;
}

// Code points that Unicode got after version 14, whose tables PCRE2 and libunistring of Debian 12 have: a tokenizer that
// knows them as letters or signs cuts texts elsewhere (doc/limits.md). First and last of each group.
const newer = [
    0x897, 0x897, 0x1acf, 0x1aeb, 0xcf3, 0xcf3, 0xece, 0xece, 0x1b4e, 0x1b4f, 0x1b7f, 0x1b7f, 0x1c89, 0x1c8a, 0x2427, 0x2429, 0x2ffc, 0x2fff, 0x31e4, 0x31e5, 0x31ef, 0x31ef,
    0xa7cb, 0xa7cd, 0xa7da, 0xa7dc, 0x105c0, 0x105ff, 0x10d40, 0x10d8f, 0x10ec2, 0x10ec4, 0x10efc, 0x10eff, 0x1123f, 0x11241, 0x11380, 0x113ff,
    0x116d0, 0x116ff, 0x11b00, 0x11b0f, 0x11bc0, 0x11bff, 0x11f00, 0x11f5f, 0x1342f, 0x1342f, 0x13439, 0x1345f, 0x13460, 0x143ff, 0x16100, 0x1613f,
    0x16d40, 0x16d7f, 0x18cff, 0x18cff, 0x1b132, 0x1b132, 0x1b155, 0x1b155, 0x1cc00, 0x1ceb3, 0x1d2c0, 0x1d2df, 0x1df25, 0x1df2a, 0x1e030, 0x1e08f,
    0x1e4d0, 0x1e4ff, 0x1e5d0, 0x1e5ff, 0x1f6dc, 0x1f6dc, 0x1f774, 0x1f776, 0x1f77b, 0x1f77f, 0x1f7d9, 0x1f7d9, 0x1f8b2, 0x1f8bb, 0x1f8c0, 0x1f8c1,
    0x1fa75, 0x1fa77, 0x1fa87, 0x1fa8f, 0x1faad, 0x1faaf, 0x1fabb, 0x1fabf, 0x1fac6, 0x1fac6, 0x1face, 0x1facf, 0x1fada, 0x1fadf, 0x1fae8, 0x1fae9,
    0x1faf7, 0x1faf8, 0x1fbcb, 0x1fbef, 0x2b739, 0x2b739, 0x2ebf0, 0x2ee5d,
];
function isNewer(c) {
    for (let i = 0; i < newer.length; i += 2) if (c >= newer[i] && c <= newer[i + 1]) return true;
    return false;
}

// Every code point of three planes, those of the first in three surroundings.
function everything() {
    const out = [];
    for (let from = 0; from < 0x30000; from += 0x100) {
        let plain = "", spaced = "", between = "";
        for (let c = from; c < from + 0x100; c++) {
            if ((c >= 0xd800 && c < 0xe000) || isNewer(c)) continue;
            const s = String.fromCodePoint(c);
            plain += s;
            spaced += " " + s;
            between += "a" + s + "1";
        }
        if (!plain) continue;
        out.push(between);
        if (from < 0x10000) out.push(plain, spaced);
    }
    return out;
}

export function corpus() {
    const texts = ["", " ", "a", "Hello, world!", " Hello", "  Hello", "Hello ", "\nHello\n"];
    for (const kind of kinds) for (const w of words[kind]) texts.push(w, " " + w, w + " ", "a" + w + "b");
    texts.push(...runs());
    for (let i = 0; i < 25; i++) for (const kind of kinds) texts.push(mixed(kind, 1 << (1 + below(9))));
    return texts.concat(everything());
}

export function pack(texts) {
    const parts = [];
    for (const t of texts) {
        const b = Buffer.from(t, "utf8"), n = Buffer.alloc(4);
        n.writeUInt32LE(b.length);
        parts.push(n, b);
    }
    return Buffer.concat(parts);
}
