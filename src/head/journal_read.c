#include "base/crc32c.h"
#include "head/journal_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A record's body while it is read: what is missing reads as 0 and makes it bad.
struct body {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static uint64_t take(struct body *b, int n_bytes) {
    uint64_t v = 0;
    if (b->left < (size_t)n_bytes) {
        b->bad = true;
        b->left = 0;
        return 0;
    }
    for (int i = 0; i < n_bytes; i++) v |= (uint64_t)b->at[i] << 8 * i;
    b->at += n_bytes;
    b->left -= (size_t)n_bytes;
    return v;
}

static float take_float(struct body *b) {
    uint32_t v = (uint32_t)take(b, 4);
    float f;
    memcpy(&f, &v, sizeof f);
    return f;
}

// False: an id that is none of the vocabulary's.
static bool take_ids(struct body *b, int32_t *out, uint32_t n, uint32_t n_vocab) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)take(b, 4);
        if (b->bad || id >= n_vocab) return false;
        out[i] = (int32_t)id;
    }
    return true;
}

void journal_read_init(struct journal_state *s, const uint64_t model[2], uint32_t n_vocab) {
    *s = (struct journal_state){.model = {model[0], model[1]}, .n_vocab = n_vocab, .next_id = 1};
    list_init(&s->entries);
    map_init(&s->index, LIMIT_JOURNAL_REQUESTS, 0);
}

static void drop(struct journal_state *s, struct journal_entry *q) {
    s->live_bytes -= journal_put_request_bytes(q);
    map_remove(&s->index, q->id);
    list_remove(&q->all);
    free(q->tokens);
    free(q);
}

static void drop_all(struct journal_state *s) {
    LIST_EACH(it, &s->entries) drop(s, LIST_ENTRY(it, struct journal_entry, all));
}

void journal_read_fini(struct journal_state *s) {
    drop_all(s);
    map_fini(&s->index);
}

void journal_read_drop(struct journal_state *s, uint64_t id) {
    struct journal_entry *q = map_get(&s->index, id);
    if (q) drop(s, q);
}

void journal_read_tried(struct journal_state *s, uint64_t id) {
    struct journal_entry *q = map_get(&s->index, id);
    if (q && q->n_idle_boots < UINT8_MAX) q->n_idle_boots++; // a byte in its record
}

static bool grow(struct journal_entry *q, uint32_t n) {
    if (n <= q->cap) return true;
    uint32_t cap = q->cap ? q->cap : 64;
    while (cap < n) cap *= 2;
    int32_t *p = realloc(q->tokens, cap * sizeof *p);
    if (!p) return false;
    q->tokens = p;
    q->cap = cap;
    q->request.known = p;
    return true;
}

struct journal_entry *journal_read_add(struct journal_state *s, uint64_t id, const struct gen_request *r) {
    journal_read_drop(s, id);
    size_t prompt_bytes = r->n_prompt * sizeof r->prompt[0];
    struct journal_entry *q = calloc(1, sizeof *q + prompt_bytes + r->keep_bytes);
    if (!q) return NULL;
    uint8_t *behind = (uint8_t *)(q + 1);
    q->id = id;
    q->request = *r;
    q->request.restored = true;
    q->request.prompt = memcpy(behind, r->prompt, prompt_bytes);
    q->request.keep = behind + prompt_bytes;
    if (r->keep_bytes) memcpy(behind + prompt_bytes, r->keep, r->keep_bytes);
    q->request.known = NULL;
    if (!grow(q, r->n_known) || map_put(&s->index, id, q)) {
        free(q->tokens);
        free(q);
        return NULL;
    }
    if (r->n_known) memcpy(q->tokens, r->known, r->n_known * sizeof q->tokens[0]);
    // Most often the newest id is the highest.
    struct list *before = s->entries.prev;
    while (before != &s->entries && LIST_ENTRY(before, struct journal_entry, all)->id > id) before = before->prev;
    list_insert_after(before, &q->all);
    if (id >= s->next_id) s->next_id = id + 1;
    s->live_bytes += journal_put_request_bytes(q);
    return q;
}

bool journal_read_token(struct journal_state *s, uint64_t id, uint32_t index, int32_t token, enum gen_finish finish) {
    struct journal_entry *q = map_get(&s->index, id);
    if (!q || index < q->request.n_known) return true; // dropped meanwhile, or drawn twice
    bool fits = index == q->request.n_known && index < q->request.max_tokens && q->finish == GEN_GOING;
    if (index + 1 == q->request.max_tokens && finish == GEN_GOING) fits = false;
    if (!fits || !grow(q, index + 1)) return false;
    q->tokens[q->request.n_known++] = token;
    q->finish = finish;
    q->n_idle_boots = 0;
    s->live_bytes += sizeof q->tokens[0];
    return true;
}

static bool is_finish(uint32_t f) { return f == GEN_GOING || f == GEN_STOP || f == GEN_LENGTH; }

static bool request_holds(const struct journal_state *s, const struct gen_request *r, const struct body *b) {
    uint64_t behind = 4ull * r->n_stop_ids + 4ull * r->n_prompt + 4ull * r->n_known + r->keep_bytes;
    const struct sampling *p = &r->sampling;
    return !b->bad && behind == b->left && r->n_prompt >= 1 && r->max_tokens >= 1 && r->n_known <= r->max_tokens &&
           (uint64_t)r->n_prompt + r->max_tokens <= LIMIT_CONTEXT && r->n_stop_ids <= LIMIT_STOP_IDS &&
           r->keep_bytes <= LIMIT_KEEP_BYTES && isfinite(p->temperature) && isfinite(p->top_p) && isfinite(p->min_p) &&
           s->n_vocab > 0;
}

static bool read_request(struct journal_state *s, struct body *b) {
    struct gen_request r = {0};
    uint64_t id = take(b, 8);
    uint32_t n_idle_boots = (uint32_t)take(b, 1), finish = (uint32_t)take(b, 1);
    r.n_prompt = (uint32_t)take(b, 4);
    r.max_tokens = (uint32_t)take(b, 4);
    r.n_known = (uint32_t)take(b, 4);
    r.n_stop_ids = (uint32_t)take(b, 4);
    r.keep_bytes = (uint32_t)take(b, 4);
    r.sampling.temperature = take_float(b);
    r.sampling.top_p = take_float(b);
    r.sampling.min_p = take_float(b);
    r.sampling.top_k = (int32_t)(uint32_t)take(b, 4);
    r.sampling.seed = take(b, 8);
    r.sampling.choice = (uint32_t)take(b, 4);
    if (!request_holds(s, &r, b) || !is_finish(finish) || id == 0 || id == UINT64_MAX) return false;
    if (finish == GEN_GOING ? r.n_known == r.max_tokens : r.n_known == 0) return false;
    if (s->index.count >= LIMIT_JOURNAL_REQUESTS && !map_get(&s->index, id)) return false;
    int32_t *tokens = malloc((r.n_prompt + r.n_known) * sizeof *tokens);
    bool good = tokens && take_ids(b, r.stop_ids, r.n_stop_ids, s->n_vocab) &&
                take_ids(b, tokens, r.n_prompt + r.n_known, s->n_vocab);
    struct journal_entry *q = NULL;
    if (good) {
        r.prompt = tokens;
        r.known = tokens + r.n_prompt;
        r.keep = b->at;
        q = journal_read_add(s, id, &r);
    }
    free(tokens);
    if (!q) return false;
    q->finish = (enum gen_finish)finish;
    q->n_idle_boots = n_idle_boots;
    q->listed = s->n_segments;
    return true;
}

static bool read_tokens(struct journal_state *s, struct body *b) {
    while (b->left > 0) {
        uint64_t id = take(b, 8);
        uint32_t index = (uint32_t)take(b, 4), token = (uint32_t)take(b, 4), finish = (uint32_t)take(b, 1);
        if (b->bad || token >= s->n_vocab || !is_finish(finish)) return false;
        if (!journal_read_token(s, id, index, (int32_t)token, (enum gen_finish)finish)) return false;
    }
    return true;
}

// *ours: the requests of this segment belong to the model that is wanted.
static bool read_start(struct journal_state *s, struct body *b, bool *ours) {
    uint32_t magic = (uint32_t)take(b, 4), version = (uint32_t)take(b, 4);
    uint64_t boot = take(b, 8), m0 = take(b, 8), m1 = take(b, 8);
    uint32_t epoch = (uint32_t)take(b, 4);
    uint64_t next_id = take(b, 8);
    if (b->bad || b->left || magic != JOURNAL_MAGIC || version != JOURNAL_VERSION) return false;
    *ours = m0 == s->model[0] && m1 == s->model[1];
    s->boot = *ours ? boot : 0;
    if (!*ours) drop_all(s);
    if (epoch > s->epoch) s->epoch = epoch;
    if (next_id > s->next_id && next_id < UINT64_MAX) s->next_id = next_id;
    return true;
}

static void forget_unlisted(struct journal_state *s) {
    LIST_EACH(it, &s->entries) {
        struct journal_entry *q = LIST_ENTRY(it, struct journal_entry, all);
        if (q->listed != s->n_segments) drop(s, q);
    }
}

static bool read_record(struct journal_state *s, uint8_t type, struct body *b, bool *ours) {
    switch (type) {
    case JOURNAL_START:
        return read_start(s, b, ours);
    case JOURNAL_REQUEST:
        return !*ours || read_request(s, b);
    case JOURNAL_LISTED:
        forget_unlisted(s);
        return b->left == 0;
    case JOURNAL_EPOCH: {
        uint32_t epoch = (uint32_t)take(b, 4);
        if (epoch > s->epoch) s->epoch = epoch;
        return !b->bad;
    }
    case JOURNAL_TOKENS:
        return !*ours || read_tokens(s, b);
    case JOURNAL_TRIED: {
        uint64_t id = take(b, 8);
        if (!b->bad) journal_read_tried(s, id);
        return !b->bad;
    }
    case JOURNAL_DROP: {
        uint64_t id = take(b, 8);
        if (!b->bad) journal_read_drop(s, id);
        return !b->bad;
    }
    default:
        return false;
    }
}

size_t journal_read_segment(struct journal_state *s, const uint8_t *data, size_t len_bytes) {
    size_t at = 0;
    bool ours = false;
    s->n_segments++;
    while (len_bytes - at >= JOURNAL_HEAD_BYTES) {
        struct body h = {.at = data + at, .left = 8};
        uint32_t body = (uint32_t)take(&h, 4), crc = (uint32_t)take(&h, 4);
        const uint8_t *p = data + at + 8;
        if (body > LIMIT_JOURNAL_RECORD || body > len_bytes - at - JOURNAL_HEAD_BYTES) break;
        if (crc32c(0, p, 1 + (size_t)body) != crc) break;
        if ((at == 0) != (p[0] == JOURNAL_START)) break;
        struct body b = {.at = p + 1, .left = body};
        if (!read_record(s, p[0], &b, &ours)) break;
        at += JOURNAL_HEAD_BYTES + body;
    }
    return at;
}
