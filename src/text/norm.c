#include "text/norm.h"
#include "base/limits.h"
#include <stdlib.h>
#include <string.h>
#include <unicase.h>
#include <unictype.h>
#include <uninorm.h>
#include <unistr.h>

// Half of it is more than anything but a flood of replacements makes.
enum { NORM_MAX_BYTES = 8 * LIMIT_PROMPT_BYTES };

// One step at work: the text before it, its breaks, and what has come out so far.
struct norm_work {
    const struct norm_text *in;
    struct buf out;
    size_t *breaks; // [in->n_breaks] in out
    size_t done;    // breaks that have their place
};

int norm_add(struct norm *n, const struct norm_step *step, struct err *e) {
    if (n->n_steps == NORM_STEPS) {
        pattern_free(step->pattern);
        return err_set(e, ERR_LIMIT, "normalizer has more than %d steps", NORM_STEPS);
    }
    n->steps[n->n_steps++] = *step;
    return ERR_OK;
}

void norm_fini(struct norm *n) {
    for (uint32_t i = 0; i < n->n_steps; i++) pattern_free(n->steps[i].pattern);
    *n = (struct norm){0};
}

void norm_text_fini(struct norm_text *t) {
    free(t->data);
    free(t->breaks);
    *t = (struct norm_text){0};
}

bool norm_may_change(const struct norm *n, const uint8_t *text, size_t len_bytes) {
    for (uint32_t i = 0; i < n->n_steps; i++)
        if (n->steps[i].kind != NORM_NFC) return true;
    if (n->n_steps == 0) return false;
    for (size_t i = 0; i < len_bytes; i++)
        if (text[i] >= 0xcc) return true; // below U+0300 everything is in NFC
    return false;
}

// The breaks up to byte `in` of the text before stand at the end of what has come out.
static void place_breaks(struct norm_work *w, size_t in) {
    while (w->done < w->in->n_breaks && w->in->breaks[w->done] <= in) w->breaks[w->done++] = w->out.len_bytes;
}

static int copy(struct norm_work *w, size_t from, size_t to) {
    size_t base = w->out.len_bytes;
    for (; w->done < w->in->n_breaks && w->in->breaks[w->done] < to; w->done++) {
        size_t at = w->in->breaks[w->done];
        w->breaks[w->done] = base + (at > from ? at - from : 0);
    }
    return buf_add(&w->out, w->in->data + from, to - from);
}

static int compose(struct norm_work *w, uninorm_t form) {
    const struct norm_text *in = w->in;
    size_t n = 0;
    uint8_t *made = in->len_bytes ? u8_normalize(form, in->data, in->len_bytes, NULL, &n) : NULL;
    if (in->len_bytes && !made) return ERR_NOMEM;
    int rc = buf_add(&w->out, made, n);
    free(made);
    // Each part is normalised by itself: a break stands inside what reads like a control token, so its neighbours are
    // characters that take part in no composition but, perhaps, with a mark behind the last; then that is not a control
    // token any more.
    size_t from = 0, at = 0;
    for (; w->done < in->n_breaks && !rc; from = in->breaks[w->done++]) {
        size_t to = in->breaks[w->done];
        uint8_t *part = to > from ? u8_normalize(form, in->data + from, to - from, NULL, &n) : NULL;
        if (to > from && !part) rc = ERR_NOMEM;
        if (to > from) at += n;
        free(part);
        w->breaks[w->done] = at < w->out.len_bytes ? at : w->out.len_bytes;
    }
    return rc;
}

// One character at a time: lower case, or without marks.
static int map_chars(struct norm_work *w, enum norm_kind kind) {
    const struct norm_text *in = w->in;
    int rc = ERR_OK;
    for (size_t i = 0; i < in->len_bytes && !rc;) {
        ucs4_t c;
        uint8_t out[8];
        place_breaks(w, i);
        i += (size_t)u8_mbtouc(&c, in->data + i, in->len_bytes - i);
        if (kind == NORM_STRIP_ACCENTS) {
            if (uc_is_general_category_withtable(c, UC_CATEGORY_MASK_M)) continue;
        } else if (c == 0x130) { // the one character whose lower case is two
            rc = buf_add(&w->out, "i\xcc\x87", 3);
            continue;
        } else {
            c = uc_tolower(c);
        }
        int n = u8_uctomb(out, c, sizeof out);
        rc = buf_add(&w->out, out, n > 0 ? (size_t)n : 0);
    }
    return rc;
}

static int strip(struct norm_work *w, const struct norm_step *step) {
    const struct norm_text *in = w->in;
    size_t from = 0, to = in->len_bytes;
    ucs4_t c;
    while (step->left && from < to) {
        size_t n = (size_t)u8_mbtouc(&c, in->data + from, to - from);
        if (!uc_is_property_white_space(c)) break;
        from += n;
    }
    while (step->right && from < to) {
        const uint8_t *p = u8_prev(&c, in->data + to, in->data + from);
        if (!p || !uc_is_property_white_space(c)) break;
        to = (size_t)(p - in->data);
    }
    return copy(w, from, to);
}

static int next_match(const struct norm_step *step, struct pattern_matcher *m, const struct norm_text *in, size_t from,
                      bool *found, size_t *start, size_t *end, struct err *e) {
    if (step->pattern) return pattern_next(step->pattern, m, in->data, in->len_bytes, from, found, start, end, e);
    const uint8_t *at = memmem(in->data + from, in->len_bytes - from, step->from, step->from_bytes);
    *found = at != NULL;
    *start = at ? (size_t)(at - in->data) : 0;
    *end = *start + step->from_bytes;
    return ERR_OK;
}

static int replace(struct norm_work *w, const struct norm_step *step, struct err *e) {
    const struct norm_text *in = w->in;
    struct pattern_matcher m;
    int rc = pattern_matcher_init(&m);
    size_t from = 0, done = 0;
    if (!rc) pattern_matcher_limit(&m, in->len_bytes);
    while (!rc && from <= in->len_bytes) {
        bool found;
        size_t start, end;
        rc = next_match(step, &m, in, from, &found, &start, &end, e);
        if (rc || !found) break;
        rc = copy(w, done, start);
        place_breaks(w, start);
        if (!rc) rc = buf_add(&w->out, step->to, step->to_bytes);
        place_breaks(w, end);
        from = done = end;
        if (start == end) {
            from++;
            while (from < in->len_bytes && (in->data[from] & 0xc0) == 0x80) from++;
        }
    }
    pattern_matcher_fini(&m);
    return rc ? rc : copy(w, done, in->len_bytes);
}

static int prepend(struct norm_work *w, const struct norm_step *step, bool first) {
    int rc = ERR_OK;
    if (w->in->len_bytes && (first || !step->first_only)) rc = buf_add(&w->out, step->to, step->to_bytes);
    return rc ? rc : copy(w, 0, w->in->len_bytes);
}

static int work(struct norm_work *w, const struct norm_step *step, bool first, struct err *e) {
    switch (step->kind) {
    case NORM_NFC:
        return compose(w, UNINORM_NFC);
    case NORM_NFD:
        return compose(w, UNINORM_NFD);
    case NORM_NFKC:
        return compose(w, UNINORM_NFKC);
    case NORM_NFKD:
        return compose(w, UNINORM_NFKD);
    case NORM_LOWERCASE:
    case NORM_STRIP_ACCENTS:
        return map_chars(w, step->kind);
    case NORM_STRIP:
        return strip(w, step);
    case NORM_PREPEND:
        return prepend(w, step, first);
    case NORM_REPLACE:
        return replace(w, step, e);
    }
    return ERR_OK;
}

static int run_step(const struct norm_step *step, bool first, struct norm_text *t, struct err *e) {
    struct norm_work w = {.in = t, .breaks = malloc((t->n_breaks + 1) * sizeof *w.breaks)};
    struct err inner = {0};
    buf_init(&w.out, NORM_MAX_BYTES);
    int rc = w.breaks ? buf_reserve(&w.out, t->len_bytes + NORM_TO_BYTES) : ERR_NOMEM;
    if (!rc) rc = work(&w, step, first, &inner);
    if (!rc) place_breaks(&w, SIZE_MAX);
    if (rc) {
        bool full = w.out.len_bytes > NORM_MAX_BYTES / 2;
        buf_fini(&w.out);
        free(w.breaks);
        if (inner.code) return err_set(e, rc, "%s", inner.text);
        if (full)
            return err_set(e, ERR_LIMIT, "text of %zu bytes becomes too long when it is normalised", t->len_bytes);
        return err_set(e, rc, "no memory to normalise %zu bytes", t->len_bytes);
    }
    size_t n = t->n_breaks;
    norm_text_fini(t);
    *t = (struct norm_text){w.out.data, w.out.len_bytes, w.breaks, n};
    return ERR_OK;
}

int norm_run(const struct norm *n, const uint8_t *text, size_t len_bytes, const size_t *breaks, size_t n_breaks,
             bool first, struct norm_text *out, struct err *e) {
    struct norm_text t = {malloc(len_bytes + 1), len_bytes, malloc((n_breaks + 1) * sizeof *breaks), n_breaks};
    int rc = t.data && t.breaks ? ERR_OK : err_set(e, ERR_NOMEM, "no memory to normalise %zu bytes", len_bytes);
    if (!rc) {
        if (len_bytes) memcpy(t.data, text, len_bytes);
        if (n_breaks) memcpy(t.breaks, breaks, n_breaks * sizeof *breaks);
    }
    for (uint32_t i = 0; i < n->n_steps && !rc; i++) rc = run_step(&n->steps[i], first, &t, e);
    if (rc)
        norm_text_fini(&t);
    else
        *out = t;
    return rc;
}
