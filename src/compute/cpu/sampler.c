#include "compute/cpu/sampler.h"

// (logit descending, id ascending) as one number that is larger for a better rank. -0 counts as +0.
static uint64_t rank_key(float l, uint32_t id) {
    uint32_t u = ref_bits(l + 0.0f);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~id;
}

static void swap(struct sampler_entry *a, struct sampler_entry *b) {
    struct sampler_entry t = *a;
    *a = *b;
    *b = t;
}

// Brings the median of three keys to e[lo].
static void choose_pivot(struct sampler_entry *e, uint32_t lo, uint32_t hi) {
    struct sampler_entry *a = &e[lo], *b = &e[lo + (hi - lo) / 2], *c = &e[hi - 1];
    if (a->key > b->key) swap(a, b);
    if (b->key > c->key) swap(b, c);
    if (a->key > b->key) swap(a, b);
    swap(&e[lo], b);
}

// Orders e [n] just so far that the shortest prefix of the ranking whose weight reaches `target` stands first, and
// returns its length (at least 1). The weight of an entry is its u, or 1 if by_count.
static uint32_t select_prefix(struct sampler_entry *e, uint32_t n, uint64_t target, bool by_count) {
    uint32_t lo = 0, hi = n;
    uint64_t before = 0; // weight of [0, lo)
    for (;;) {
        if (hi - lo == 1) return hi;
        choose_pivot(e, lo, hi);
        uint64_t pivot = e[lo].key, better = 0;
        uint32_t mid = lo; // (lo, mid] are better than the pivot
        for (uint32_t i = lo + 1; i < hi; i++) {
            if (e[i].key < pivot) continue;
            better += by_count ? 1 : e[i].u;
            swap(&e[++mid], &e[i]);
        }
        swap(&e[lo], &e[mid]);
        uint64_t with_pivot = before + better + (by_count ? 1 : e[mid].u);
        if (mid > lo && before + better >= target) {
            hi = mid;
        } else if (with_pivot >= target || mid + 1 == hi) {
            return mid + 1;
        } else {
            before = with_pivot;
            lo = mid + 1;
        }
    }
}

enum { GROUP = 64 };

// A logit that at least top_k logits reach: the top_k-th largest of the maxima of groups of 64. -Inf where there are
// fewer groups.
static float floor_of_top_k(const float *l, uint32_t n_vocab, uint32_t top_k, struct sampler_entry *e) {
    uint32_t n = n_vocab / GROUP; // a short last group is left out
    if (top_k == 0 || top_k > n) return -INFINITY;
    for (uint32_t g = 0; g < n; g++) {
        float max = l[g * GROUP];
        for (uint32_t i = 1; i < GROUP; i++) max = l[g * GROUP + i] > max ? l[g * GROUP + i] : max;
        e[g] = (struct sampler_entry){.key = rank_key(max, g), .u = ref_bits(max)};
    }
    float least = INFINITY;
    select_prefix(e, n, top_k, true);
    for (uint32_t g = 0; g < top_k; g++) least = ref_float(e[g].u) < least ? ref_float(e[g].u) : least;
    return least;
}

// Lists all tokens that rank no lower than the lowest one with u > 0, and of these at least the first top_k (0: all).
// What has no weight can neither be drawn nor move a threshold.
static uint32_t list_entries(const float *l, const uint32_t *u, uint32_t n_vocab, uint32_t top_k,
                             struct sampler_entry *e) {
    float least = INFINITY, floor = floor_of_top_k(l, n_vocab, top_k, e);
    for (uint32_t i = 0; i < n_vocab; i++)
        if (u[i] > 0 && l[i] < least) least = l[i];
    if (least < floor) least = floor;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++)
        if (l[i] >= least) e[n++] = (struct sampler_entry){.key = rank_key(l[i], i), .u = u[i]};
    return n;
}

// Steps 4 to 6: the key of the last kept entry; *sum is the weight of all that are kept.
static uint64_t threshold(struct sampler_entry *e, uint32_t n, const struct sampling *p, uint64_t *sum) {
    if (p->top_k > 0 && (uint32_t)p->top_k < n) n = select_prefix(e, n, (uint32_t)p->top_k, true);
    *sum = 0;
    for (uint32_t i = 0; i < n; i++) *sum += e[i].u;
    if (p->top_p < 1.0f) n = select_prefix(e, n, ref_top_p_mass(p->top_p, *sum), false);
    uint32_t min = (uint32_t)rintf(p->min_p * 0x1p30f);
    uint64_t last = UINT64_MAX; // the best token has u = 2^30 >= min
    for (uint32_t i = 0; i < n; i++)
        if (e[i].u >= min && e[i].key < last) last = e[i].key;
    *sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (e[i].key >= last) *sum += e[i].u;
    return last;
}

int32_t sampler_draw(const struct kern *k, const float *logits, uint32_t n_vocab, const struct sampling *p,
                     uint32_t pos, const struct sampler_scratch *s, bool *fault) {
    int32_t best = k->best(logits, n_vocab);
    if (best < 0) {
        *fault = true;
        return -1;
    }
    if (p->temperature < 0x1p-20f) return best;
    bool bad = false;
    k->sample_u(logits, n_vocab, logits[best], REF_LOG2E / p->temperature, s->u, &bad);
    if (bad) {
        *fault = true;
        return -1;
    }
    uint64_t sum = 0, running = 0, last = 0;
    bool limited = p->top_k > 0 || p->top_p < 1.0f || p->min_p > 0.0f;
    if (limited) {
        uint32_t top_k = p->top_k > 0 ? (uint32_t)p->top_k : 0;
        last = threshold(s->entries, list_entries(logits, s->u, n_vocab, top_k, s->entries), p, &sum);
    } else
        for (uint32_t i = 0; i < n_vocab; i++) sum += s->u[i];
    uint64_t target = ref_draw(p, pos, sum);
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (s->u[i] == 0 || (limited && rank_key(logits[i], i) < last)) continue;
        running += s->u[i];
        if (running > target) return (int32_t)i;
    }
    return best;
}
