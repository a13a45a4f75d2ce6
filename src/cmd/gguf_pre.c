#include "cmd/gguf_pre.h"

#include "base/buf.h"
#include "text/pre.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERNS = 6 };

const char *gguf_pre_type(const json_t *o) {
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "";
}

bool gguf_pre_flag(const json_t *o, const char *key, bool absent) {
    const json_t *v = json_object_get(o, key);
    return json_is_boolean(v) ? json_is_true(v) : absent;
}

bool gguf_pre_each(const json_t *o, const char *list_key, bool (*fn)(void *arg, const json_t *step), void *arg) {
    const json_t *list = json_object_get(o, list_key);
    size_t i;
    json_t *v;
    if (!json_is_object(o)) return true;
    if (strcmp(gguf_pre_type(o), "Sequence") != 0) return fn(arg, o);
    json_array_foreach(list, i, v) if (!gguf_pre_each(v, list_key, fn, arg)) return false;
    return true;
}

struct steps {
    struct buf pattern[PATTERNS]; // with escapes taken out, so that spellings of one pattern are equal
    size_t n;
    bool byte_level, nfc, prefix;
    bool marks;    // spaces become the mark
    bool at_space; // pieces end at spaces: of no effect once these are marks
    char odd[96];  // the first thing that GGUF has no word for; "": there is none
};

static void set_odd(struct steps *s, const char *field, const char *what) {
    if (!s->odd[0]) snprintf(s->odd, sizeof s->odd, "%s: %.64s", field, what);
}

static bool is_text(const json_t *v, const char *text) {
    return json_is_string(v) && !strcmp(json_string_value(v), text);
}

static int add_char(struct buf *out, unsigned code) {
    const uint8_t last = (uint8_t)(0x80 | (code & 63)), second = (uint8_t)(0x80 | (code >> 6 & 63)),
                  third = (uint8_t)(0x80 | (code >> 12 & 63));
    const uint8_t four[4] = {(uint8_t)(0xf0 | code >> 18), third, second, last},
                  three[3] = {(uint8_t)(0xe0 | code >> 12), second, last}, two[2] = {(uint8_t)(0xc0 | code >> 6), last},
                  one = (uint8_t)code;
    if (code < 0x80) return buf_add(out, &one, 1);
    if (code < 0x800) return buf_add(out, two, 2);
    return code < 0x10000 ? buf_add(out, three, 3) : buf_add(out, four, 4);
}

// "\x{4e00}": its length, and the code; 0: s is none.
static size_t read_hex(const char *s, unsigned *code) {
    if (strncmp(s, "\\x{", 3) != 0) return 0;
    const size_t digits = strspn(s + 3, "0123456789abcdefABCDEF");
    if (digits == 0 || digits > 6 || s[3 + digits] != '}') return 0;
    *code = (unsigned)strtoul(s + 3, NULL, 16);
    return *code < 0x110000 ? digits + 4 : 0;
}

// "\r", "\n", "\t" and "\x{4e00}" as the characters that they mean.
static int plain(const char *s, struct buf *out) {
    int rc = ERR_OK;
    while (*s && !rc) {
        unsigned code;
        const size_t hex = read_hex(s, &code);
        const char *at = s[0] == '\\' && s[1] ? strchr("r\rn\nt\t", s[1]) : NULL;
        if (at && strchr("rnt", s[1])) {
            rc = buf_add(out, at + 1, 1);
            s += 2;
        } else if (hex) {
            rc = add_char(out, code);
            s += hex;
        } else {
            const size_t len = s[0] == '\\' && s[1] ? 2 : 1;
            rc = buf_add(out, s, len);
            s += len;
        }
    }
    return rc;
}

static void add_pattern(struct steps *s, const char *type, const char *pattern) {
    if (!pattern || s->n == PATTERNS) {
        set_odd(s, "pre_tokenizer", type);
        return;
    }
    struct buf *b = &s->pattern[s->n++];
    buf_init(b, 1 << 16);
    if (plain(pattern, b)) set_odd(s, "pre_tokenizer", type);
}

static void split_step(struct steps *s, const json_t *step) {
    const json_t *pattern = json_object_get(step, "pattern"), *behavior = json_object_get(step, "behavior");
    if (is_text(json_object_get(pattern, "String"), " ")) {
        s->at_space = true;
        return;
    }
    const bool removed = gguf_pre_flag(step, "invert", false) && is_text(behavior, "Removed");
    if (!removed && !is_text(behavior, "Isolated")) set_odd(s, "pre_tokenizer", "Split: behavior");
    add_pattern(s, "Split", json_string_value(json_object_get(pattern, "Regex")));
}

// Only one that puts nothing before the text: GGUF's prefix goes before every piece of text between special tokens, and
// before one that begins with a space too.
static void metaspace_step(struct steps *s, const json_t *step) {
    const json_t *mark = json_object_get(step, "replacement");
    const char *scheme = json_string_value(json_object_get(step, "prepend_scheme"));
    const bool prepends = scheme ? strcmp(scheme, "never") != 0 : gguf_pre_flag(step, "add_prefix_space", true);
    s->marks = true;
    if (mark && !is_text(mark, GGUF_PRE_MARK)) set_odd(s, "pre_tokenizer", "Metaspace: replacement");
    if (prepends) set_odd(s, "pre_tokenizer", "Metaspace: prepend_scheme that is not \"never\"");
    if (gguf_pre_flag(step, "split", true)) set_odd(s, "pre_tokenizer", "Metaspace: split");
}

static bool pre_step(void *arg, const json_t *step) {
    struct steps *s = arg;
    const char *type = gguf_pre_type(step);
    if (strcmp(type, "ByteLevel") == 0) {
        s->byte_level = true;
        if (gguf_pre_flag(step, "add_prefix_space", true)) set_odd(s, "pre_tokenizer", "ByteLevel: add_prefix_space");
        if (gguf_pre_flag(step, "use_regex", true)) add_pattern(s, type, PRE_GPT2);
    } else if (strcmp(type, "Digits") == 0 && gguf_pre_flag(step, "individual_digits", false)) {
        add_pattern(s, type, "\\p{N}");
    } else if (strcmp(type, "Split") == 0) {
        split_step(s, step);
    } else if (strcmp(type, "Metaspace") == 0) {
        metaspace_step(s, step);
    } else {
        set_odd(s, "pre_tokenizer", type);
    }
    return true;
}

// After the steps of the pre-tokenizer, which say of what kind the tokenizer is.
static bool norm_step(void *arg, const json_t *step) {
    struct steps *s = arg;
    const char *type = gguf_pre_type(step);
    const json_t *from = json_object_get(json_object_get(step, "pattern"), "String");
    if (s->byte_level && strcmp(type, "NFC") == 0)
        s->nfc = true;
    else if (!s->byte_level && strcmp(type, "Prepend") == 0 && is_text(json_object_get(step, "prepend"), GGUF_PRE_MARK))
        s->prefix = true;
    else if (!s->byte_level && strcmp(type, "Replace") == 0 && is_text(from, " ") &&
             is_text(json_object_get(step, "content"), GGUF_PRE_MARK))
        s->marks = true;
    else
        set_odd(s, "normalizer", type);
    return true;
}

static void read_steps(const json_t *tokenizer, struct steps *s) {
    gguf_pre_each(json_object_get(tokenizer, "pre_tokenizer"), "pretokenizers", pre_step, s);
    gguf_pre_each(json_object_get(tokenizer, "normalizer"), "normalizers", norm_step, s);
    if (s->byte_level && (s->marks || s->at_space))
        set_odd(s, "pre_tokenizer", "ByteLevel with spaces cut or replaced");
    if (!s->byte_level && !s->marks) set_odd(s, "normalizer", "spaces stay what they are");
    if (!s->byte_level && s->n) set_odd(s, "pre_tokenizer", "a pattern without ByteLevel");
}

static bool same_patterns(const struct steps *s, const struct pre *pre) {
    for (size_t i = 0; i < PATTERNS; i++) {
        if (!pre->patterns[i]) return i == s->n;
        struct buf want;
        buf_init(&want, 1 << 16);
        bool same = i < s->n && !plain(pre->patterns[i], &want) && want.len_bytes == s->pattern[i].len_bytes &&
                    !memcmp(want.data, s->pattern[i].data, want.len_bytes);
        buf_fini(&want);
        if (!same) return false;
    }
    return s->n == PATTERNS;
}

// A row with these patterns and everything else alike: whether the text is normalised, whether whole pieces that are
// tokens are taken without merging. GLM-4's has its own name, as readers know more by it.
static void pre_name(const struct steps *s, bool whole, const char *arch, char *out, size_t size) {
    const struct pre *best;
    size_t i = 0;
    while ((best = pre_at(i)) && (best->whole != whole || best->nfc != s->nfc || !same_patterns(s, best))) i++;
    if (!best) return;
    const char *own = strcmp(arch, "glm4moe") == 0 ? "glm4" : strcmp(arch, "minimax-m2") == 0 ? "minimax-m2" : "";
    char word[32];
    snprintf(word, sizeof word, " %s ", own);
    if (own[0] && strstr(best->names, word))
        snprintf(out, size, "%s", own);
    else
        snprintf(out, size, "%.*s", (int)strcspn(best->names + 1, " "), best->names + 1);
}

void gguf_pre_read(const json_t *tokenizer, const char *arch, struct gguf_pre *out) {
    struct steps s = {0};
    const bool whole = gguf_pre_flag(json_object_get(tokenizer, "model"), "ignore_merges", false);
    *out = (struct gguf_pre){0};
    read_steps(tokenizer, &s);
    if (s.byte_level) pre_name(&s, whole, arch, out->name, sizeof out->name);
    for (size_t i = 0; i < s.n; i++) buf_fini(&s.pattern[i]);
    out->byte_level = s.byte_level;
    out->prefix = s.prefix;
    out->nfc = s.nfc;
    out->whole = whole;
    memcpy(out->odd, s.odd, sizeof out->odd);
}
