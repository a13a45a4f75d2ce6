#include "text/pretok.h"
#include <stdlib.h>
#include <string.h>

struct pretok_span {
    uint32_t start, end; // bytes
    bool match;
    bool first; // the text begins with it
};

enum { SPANS_FROM, SPANS_TO, SPANS_MARKS }; // index in pretok_scratch.cap

static int next_step(struct pretok *p, struct pretok_step **step, struct err *e) {
    if (p->n_steps == PRETOK_STEPS) return err_set(e, ERR_LIMIT, "pre_tokenizer has more than %d steps", PRETOK_STEPS);
    *step = &p->steps[p->n_steps];
    return ERR_OK;
}

int pretok_add(struct pretok *p, const char *pattern, size_t len_bytes, bool literal, enum pretok_behavior behavior,
               bool invert, struct err *e) {
    struct pretok_step *step;
    struct pattern *made;
    int rc = next_step(p, &step, e);
    if (!rc) rc = pattern_new(pattern, len_bytes, literal, "pre_tokenizer pattern", &made, e);
    if (rc) return rc;
    *step = (struct pretok_step){.kind = PRETOK_SPLIT, .pattern = made, .behavior = behavior, .invert = invert};
    p->n_steps++;
    return ERR_OK;
}

int pretok_add_prefix(struct pretok *p, struct err *e) {
    struct pretok_step *step;
    int rc = next_step(p, &step, e);
    if (rc) return rc;
    *step = (struct pretok_step){.kind = PRETOK_PREFIX, .scheme = PRETOK_ALWAYS, .mark = " ", .mark_bytes = 1};
    p->n_steps++;
    return ERR_OK;
}

int pretok_add_metaspace(struct pretok *p, const char *mark, size_t mark_bytes, enum pretok_scheme scheme, bool split,
                         struct err *e) {
    struct pretok_step *step;
    int rc = next_step(p, &step, e);
    if (!rc && (mark_bytes == 0 || mark_bytes > PRETOK_MARK_BYTES))
        rc = err_set(e, ERR_UNSUPPORTED, "pre_tokenizer Metaspace: replacement must be one character");
    if (rc) return rc;
    *step = (struct pretok_step){.kind = PRETOK_METASPACE, .scheme = scheme, .mark_bytes = (uint8_t)mark_bytes};
    memcpy(step->mark, mark, mark_bytes);
    p->n_steps++;
    return split ? pretok_add(p, mark, mark_bytes, true, PRETOK_MERGED_WITH_NEXT, false, e) : ERR_OK;
}

void pretok_fini(struct pretok *p) {
    for (uint32_t i = 0; i < p->n_steps; i++) pattern_free(p->steps[i].pattern);
    *p = (struct pretok){0};
}

int pretok_scratch_init(struct pretok_scratch *s) {
    *s = (struct pretok_scratch){0};
    return pattern_matcher_init(&s->matcher);
}

void pretok_scratch_fini(struct pretok_scratch *s) {
    free(s->spans[SPANS_FROM]);
    free(s->spans[SPANS_TO]);
    free(s->marks);
    free(s->rewritten[0]);
    free(s->rewritten[1]);
    pattern_matcher_fini(&s->matcher);
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

// Cuts text into matches of the step's pattern and what lies between: marks[0 .. *n).
static int find(const struct pretok_step *step, struct pretok_scratch *s, const uint8_t *text, size_t len, size_t *n,
                struct err *e) {
    size_t *cap = &s->cap[SPANS_MARKS];
    size_t from = 0, done = 0, last_end = SIZE_MAX;
    int rc = ERR_OK;
    *n = 0;
    while (from <= len) {
        bool found;
        size_t start, end;
        rc = pattern_next(step->pattern, &s->matcher, text, len, from, &found, &start, &end, e);
        if (rc || !found) break;
        from = end;
        if (start == end) { // an empty match cuts, and the search goes on one character further
            from++;
            while (from < len && (text[from] & 0xc0) == 0x80) from++;
            if (start == last_end) continue;
        }
        last_end = end;
        if (start > done)
            rc = push(&s->marks, cap, n, (struct pretok_span){(uint32_t)done, (uint32_t)start, step->invert, false});
        if (!rc)
            rc = push(&s->marks, cap, n, (struct pretok_span){(uint32_t)start, (uint32_t)end, !step->invert, false});
        if (rc) return err_set(e, rc, "no memory to pre-tokenize");
        done = end;
    }
    if (!rc && done < len &&
        push(&s->marks, cap, n, (struct pretok_span){(uint32_t)done, (uint32_t)len, step->invert, false}))
        rc = err_set(e, ERR_NOMEM, "no memory to pre-tokenize");
    return rc;
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
            m.first = from.first && m.start == 0;
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

static bool begins_with(const struct pretok_step *step, const uint8_t *p, size_t n) {
    if (step->kind == PRETOK_METASPACE && n > 0 && *p == ' ') return true; // it will
    return n >= step->mark_bytes && memcmp(p, step->mark, step->mark_bytes) == 0;
}

// Copies a span with the step's mark before it, where it lacks one, and for spaces; returns where the copy ends.
static size_t rewrite_one(const struct pretok_step *step, const uint8_t *from, size_t n, bool first, uint8_t *to) {
    size_t at = 0;
    bool wants = step->scheme == PRETOK_ALWAYS || (step->scheme == PRETOK_FIRST && first);
    if (wants && !begins_with(step, from, n)) {
        memcpy(to, step->mark, step->mark_bytes);
        at = step->mark_bytes;
    }
    if (step->kind == PRETOK_PREFIX) {
        memcpy(to + at, from, n);
        return at + n;
    }
    for (size_t i = 0; i < n; i++) {
        if (from[i] != ' ') {
            to[at++] = from[i];
            continue;
        }
        memcpy(to + at, step->mark, step->mark_bytes);
        at += step->mark_bytes;
    }
    return at;
}

// A step that changes the text: what the spans point into afterwards is in *text.
static int rewrite(const struct pretok_step *step, struct pretok_scratch *s, const uint8_t **text, size_t n_spans,
                   struct err *e) {
    struct pretok_span *spans = s->spans[SPANS_FROM];
    size_t need = 1;
    for (size_t i = 0; i < n_spans; i++) {
        need += spans[i].end - spans[i].start + step->mark_bytes;
        if (step->kind == PRETOK_METASPACE)
            for (size_t k = spans[i].start; k < spans[i].end; k++) need += (*text)[k] == ' ' ? step->mark_bytes : 0u;
    }
    if (need >= INT32_MAX) return err_set(e, ERR_LIMIT, "text of %zu bytes is too long to pre-tokenize", need);
    int which = *text == s->rewritten[0];
    if (need > s->rewritten_cap[which]) {
        free(s->rewritten[which]);
        s->rewritten[which] = malloc(need);
        s->rewritten_cap[which] = s->rewritten[which] ? need : 0;
        if (!s->rewritten[which]) return err_set(e, ERR_NOMEM, "no memory to pre-tokenize");
    }
    size_t at = 0;
    for (size_t i = 0; i < n_spans; i++) {
        struct pretok_span *span = &spans[i];
        size_t start = at;
        at += rewrite_one(step, *text + span->start, span->end - span->start, span->first, s->rewritten[which] + at);
        *span = (struct pretok_span){(uint32_t)start, (uint32_t)at, false, span->first};
    }
    *text = s->rewritten[which];
    return ERR_OK;
}

int pretok_run(const struct pretok *p, struct pretok_scratch *s, const uint8_t *text, size_t len_bytes, bool first,
               pretok_piece_fn *piece, void *ctx, struct err *e) {
    ASSERT(len_bytes < INT32_MAX, "%zu bytes", len_bytes);
    if (len_bytes == 0) return ERR_OK;
    size_t n = 0;
    if (push(&s->spans[SPANS_FROM], &s->cap[SPANS_FROM], &n,
             (struct pretok_span){0, (uint32_t)len_bytes, false, first}))
        return err_set(e, ERR_NOMEM, "no memory to pre-tokenize");
    pattern_matcher_limit(&s->matcher, len_bytes);
    int rc = ERR_OK;
    for (uint32_t i = 0; i < p->n_steps && !rc; i++) {
        const struct pretok_step *step = &p->steps[i];
        rc = step->kind == PRETOK_SPLIT ? apply(step, s, text, &n, e) : rewrite(step, s, &text, n, e);
    }
    for (size_t i = 0; i < n && !rc; i++) {
        struct pretok_span span = s->spans[SPANS_FROM][i];
        rc = piece(ctx, text + span.start, span.end - span.start);
    }
    return rc;
}
