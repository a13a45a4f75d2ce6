#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretok.h"
#include "text/pattern.h"
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN_MAX_BYTES = 64 << 10 };

struct pretok_span {
    uint32_t start, end; // bytes
    bool match;
};

enum { SPANS_FROM, SPANS_TO, SPANS_MARKS }; // index in pretok_scratch.cap

int pretok_add(struct pretok *p, const char *pattern, size_t len_bytes, bool literal, enum pretok_behavior behavior,
               bool invert, struct err *e) {
    if (p->n_steps == PRETOK_STEPS) return err_set(e, ERR_LIMIT, "pre_tokenizer has more than %d steps", PRETOK_STEPS);
    if (len_bytes > PATTERN_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "pre_tokenizer pattern of %zu bytes, at most %d", len_bytes, PATTERN_MAX_BYTES);
    struct buf text;
    buf_init(&text, PATTERN_MAX_BYTES * 64);
    int rc = literal ? buf_add(&text, pattern, len_bytes) : pattern_rewrite(pattern, len_bytes, &text, e);
    if (!rc && !buf_cstr(&text)) rc = ERR_NOMEM;
    pcre2_code *code = NULL;
    if (!rc) {
        int number;
        size_t at;
        uint32_t options =
            PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
        code = pcre2_compile(text.data, text.len_bytes, options, &number, &at, NULL);
        PCRE2_UCHAR8 why[128] = "";
        if (!code) {
            pcre2_get_error_message(number, why, sizeof why);
            rc = err_set(e, ERR_UNSUPPORTED, "pre_tokenizer pattern, near byte %zu: %s", at, (char *)why);
        }
    } else if (rc == ERR_NOMEM) {
        err_set(e, rc, "no memory for a pre_tokenizer pattern");
    }
    buf_fini(&text);
    if (rc) return rc;
    // Where the system forbids executable memory, the interpreter does the same, more slowly.
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    p->steps[p->n_steps++] = (struct pretok_step){code, behavior, invert};
    return ERR_OK;
}

void pretok_fini(struct pretok *p) {
    for (uint32_t i = 0; i < p->n_steps; i++) pcre2_code_free(p->steps[i].code);
    *p = (struct pretok){0};
}

int pretok_scratch_init(struct pretok_scratch *s) {
    *s = (struct pretok_scratch){
        .match_data = pcre2_match_data_create(32, NULL),
        .match_context = pcre2_match_context_create(NULL),
    };
    return s->match_data && s->match_context ? ERR_OK : ERR_NOMEM;
}

void pretok_scratch_fini(struct pretok_scratch *s) {
    free(s->spans[SPANS_FROM]);
    free(s->spans[SPANS_TO]);
    free(s->marks);
    free(s->prefixed);
    pcre2_match_data_free(s->match_data);
    pcre2_match_context_free(s->match_context);
    *s = (struct pretok_scratch){0};
}

static int push(struct pretok_span **spans, size_t *cap, size_t *n, struct pretok_span span) {
    if (*n == *cap) {
        size_t more = *cap ? *cap * 2 : 256;
        struct pretok_span *grown = realloc(*spans, more * sizeof *grown);
        if (!grown) return ERR_NOMEM;
        *spans = grown;
        *cap = more;
    }
    (*spans)[(*n)++] = span;
    return ERR_OK;
}

// The default limit of PCRE2 (10 million) stops at a few megabytes of spaces; a limit that grows with the text still
// ends a pattern that backtracks without end on a short one.
static void set_match_limit(struct pretok_scratch *s, size_t len) {
    uint64_t limit = 10000000u + (uint64_t)len * 1000u;
    pcre2_set_match_limit(s->match_context, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
}

static int give_up(int code, struct err *e) {
    PCRE2_UCHAR8 why[128] = "";
    pcre2_get_error_message(code, why, sizeof why);
    return err_set(e, code == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT, "pre_tokenizer pattern: %s", (char *)why);
}

// Cuts text into matches of the step's pattern and what lies between: marks[0 .. *n).
static int find(const struct pretok_step *step, struct pretok_scratch *s, const uint8_t *text, size_t len, size_t *n,
                struct err *e) {
    const size_t *ov = pcre2_get_ovector_pointer(s->match_data);
    size_t *cap = &s->cap[SPANS_MARKS];
    size_t from = 0, done = 0, last_end = SIZE_MAX;
    int rc = ERR_OK;
    *n = 0;
    while (from <= len) {
        int found = pcre2_match(step->code, text, len, from, PCRE2_NO_UTF_CHECK, s->match_data, s->match_context);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) {
            rc = give_up(found, e);
            break;
        }
        size_t start = ov[0], end = ov[1];
        // A lookbehind with \K may turn the two round; no tokenizer means that.
        if (start > end || start < done) {
            rc = err_set(e, ERR_UNSUPPORTED, "pre_tokenizer pattern matches backwards");
            break;
        }
        from = end;
        if (start == end) { // an empty match cuts, and the search goes on one character further
            from++;
            while (from < len && (text[from] & 0xc0) == 0x80) from++;
            if (start == last_end) continue;
        }
        last_end = end;
        if (start > done)
            rc = push(&s->marks, cap, n, (struct pretok_span){(uint32_t)done, (uint32_t)start, step->invert});
        if (!rc) rc = push(&s->marks, cap, n, (struct pretok_span){(uint32_t)start, (uint32_t)end, !step->invert});
        if (rc) break;
        done = end;
    }
    if (!rc && done < len)
        rc = push(&s->marks, cap, n, (struct pretok_span){(uint32_t)done, (uint32_t)len, step->invert});
    return rc == ERR_NOMEM ? err_set(e, rc, "no memory to pre-tokenize") : rc;
}

// Joins or drops marks in place as the behaviour says; returns how many are left.
static size_t fold(enum pretok_behavior behavior, struct pretok_span *m, size_t n) {
    size_t k = 0;
    if (behavior == PRETOK_MERGED_WITH_NEXT) { // the same as with the previous one, from the right
        k = n;
        bool before = false;
        for (size_t i = n; i-- > 0;) {
            bool match = m[i].match;
            if (match && !before && k < n)
                m[k].start = m[i].start;
            else
                m[--k] = m[i];
            before = match;
        }
        memmove(m, m + k, (n - k) * sizeof *m);
        return n - k;
    }
    bool before = false;
    for (size_t i = 0; i < n; i++) {
        bool match = m[i].match, join = false;
        if (behavior == PRETOK_REMOVED && match) continue;
        if (behavior == PRETOK_CONTIGUOUS) join = k > 0 && match == before;
        if (behavior == PRETOK_MERGED_WITH_PREVIOUS) join = k > 0 && match && !before;
        if (join)
            m[k - 1].end = m[i].end;
        else
            m[k++] = m[i];
        before = match;
    }
    return k;
}

// spans[SPANS_FROM] becomes what the step makes of it.
static int apply(const struct pretok_step *step, struct pretok_scratch *s, const uint8_t *text, size_t *n_spans,
                 struct err *e) {
    size_t n_to = 0;
    for (size_t i = 0; i < *n_spans; i++) {
        struct pretok_span from = s->spans[SPANS_FROM][i];
        size_t n;
        int rc = find(step, s, text + from.start, from.end - from.start, &n, e);
        if (rc) return rc;
        n = fold(step->behavior, s->marks, n);
        for (size_t j = 0; j < n; j++) {
            struct pretok_span m = s->marks[j];
            if (m.start == m.end) continue;
            m.start += from.start;
            m.end += from.start;
            if (push(&s->spans[SPANS_TO], &s->cap[SPANS_TO], &n_to, m))
                return err_set(e, ERR_NOMEM, "no memory to pre-tokenize");
        }
    }
    struct pretok_span *spans = s->spans[SPANS_FROM];
    size_t cap = s->cap[SPANS_FROM];
    s->spans[SPANS_FROM] = s->spans[SPANS_TO];
    s->cap[SPANS_FROM] = s->cap[SPANS_TO];
    s->spans[SPANS_TO] = spans;
    s->cap[SPANS_TO] = cap;
    *n_spans = n_to;
    return ERR_OK;
}

// Copies the spans into s->prefixed with a space before each that lacks one, and makes the spans point there.
static int add_prefixes(struct pretok_scratch *s, const uint8_t *text, size_t n_spans, struct err *e) {
    size_t need = 0;
    for (size_t i = 0; i < n_spans; i++) need += s->spans[SPANS_FROM][i].end - s->spans[SPANS_FROM][i].start + 1;
    if (need >= INT32_MAX) return err_set(e, ERR_LIMIT, "text of %zu bytes is too long to pre-tokenize", need);
    if (need > s->prefixed_cap) {
        free(s->prefixed);
        s->prefixed = malloc(need);
        s->prefixed_cap = s->prefixed ? need : 0;
        if (!s->prefixed) return err_set(e, ERR_NOMEM, "no memory to pre-tokenize");
    }
    size_t at = 0;
    for (size_t i = 0; i < n_spans; i++) {
        struct pretok_span *span = &s->spans[SPANS_FROM][i];
        size_t start = at, n = span->end - span->start;
        if (text[span->start] != ' ') s->prefixed[at++] = ' ';
        memcpy(s->prefixed + at, text + span->start, n);
        at += n;
        *span = (struct pretok_span){(uint32_t)start, (uint32_t)at, false};
    }
    return ERR_OK;
}

int pretok_run(const struct pretok *p, struct pretok_scratch *s, const uint8_t *text, size_t len_bytes,
               pretok_piece_fn *piece, void *ctx, struct err *e) {
    ASSERT(len_bytes < INT32_MAX, "%zu bytes", len_bytes);
    if (len_bytes == 0) return ERR_OK;
    size_t n = 0;
    if (push(&s->spans[SPANS_FROM], &s->cap[SPANS_FROM], &n, (struct pretok_span){0, (uint32_t)len_bytes, false}))
        return err_set(e, ERR_NOMEM, "no memory to pre-tokenize");
    set_match_limit(s, len_bytes);
    int rc = ERR_OK;
    for (uint32_t i = 0; i <= p->n_steps && !rc; i++) {
        if (p->prefix_space && p->prefix_at == i) {
            rc = add_prefixes(s, text, n, e);
            text = s->prefixed;
        }
        if (!rc && i < p->n_steps) rc = apply(&p->steps[i], s, text, &n, e);
    }
    for (size_t i = 0; i < n && !rc; i++) {
        struct pretok_span span = s->spans[SPANS_FROM][i];
        rc = piece(ctx, text + span.start, span.end - span.start);
    }
    return rc;
}
