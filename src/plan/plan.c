#include "plan/plan.h"

#include "base/size.h"
#include <stdio.h>
#include <string.h>

// How a plan is found. Every stage needs the same number of KV blocks, so for a given number of blocks one question
// remains: is there a way to cut? reach[i][j] answers it: the most layers that j of the first i nodes can cover from
// layer 0 on. Taking as many layers as fit is never worse, because a suffix that starts later is never larger. On top
// of it stand three searches: the most KV blocks; then the most stages that do not lower them; then the smallest common
// fill of memory that still works, which is the split proportional to memory.

enum { FILL_ONE = 1 << 16 }; // the fill of memory, in 1/65536

struct cutter {
    const struct plan_node *nodes;
    uint32_t n_nodes;
    const struct plan_model *m;
    uint64_t sum[LIMIT_LAYERS + 1]; // weights of the layers before
    uint16_t reach[LIMIT_NODES + 1][LIMIT_STAGES + 1];
};

static uint64_t stage_bytes(const struct cutter *c, uint32_t a, uint32_t b, uint32_t n_blocks) {
    const struct plan_model *m = c->m;
    uint64_t bytes = c->sum[b] - c->sum[a] + m->scratch_bytes + (uint64_t)(b - a) * n_blocks * m->kv_block_bytes;
    if (a == 0) bytes += m->embed_bytes;
    bytes += b == m->n_layers ? m->head_bytes : n_blocks * m->log_block_bytes;
    return bytes;
}

// The largest b <= cap so that layers [a, b) fit into budget; a if not even one does. stage_bytes grows with b but for
// the last layer, which may take less than the log that the last stage does not need.
static uint32_t extend(const struct cutter *c, uint32_t a, uint32_t cap, uint32_t n_blocks, uint64_t budget) {
    if (cap == c->m->n_layers && stage_bytes(c, a, cap, n_blocks) <= budget) return cap;
    uint32_t low = a, high = cap < c->m->n_layers ? cap : cap - 1;
    while (low < high) {
        uint32_t mid = high - (high - low) / 2;
        if (stage_bytes(c, a, mid, n_blocks) <= budget)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

enum { UNREACHED = UINT16_MAX };

// Whether k of the nodes can hold the model with n_blocks; fills reach. all: exactly k; else k at most. At most is
// exact; exactly k is exact where layers are alike (else a node may be given up that holds a small layer only).
static bool can_cut(struct cutter *c, uint32_t k, uint32_t n_blocks, bool all) {
    uint32_t n_layers = c->m->n_layers;
    for (uint32_t i = 0; i <= c->n_nodes; i++) {
        c->reach[i][0] = 0;
        for (uint32_t j = 1; j <= k; j++) {
            uint32_t best = i ? c->reach[i - 1][j] : UNREACHED, from = i ? c->reach[i - 1][j - 1] : UNREACHED;
            uint32_t cap = all ? n_layers - (k - j) : n_layers; // each stage after this one takes a layer at least
            if (!all && (best == UNREACHED || c->reach[i][j - 1] > best)) best = c->reach[i][j - 1];
            if (from < cap) {
                uint32_t to = extend(c, from, cap, n_blocks, c->nodes[i - 1].memory_bytes);
                if (to > from && (best == UNREACHED || to > best)) best = to;
            }
            c->reach[i][j] = (uint16_t)best;
        }
    }
    return c->reach[c->n_nodes][k] == n_layers;
}

// The nodes that can_cut chose, in order; returns how many.
static uint32_t chosen(const struct cutter *c, uint32_t k, bool all, uint32_t *pick) {
    uint32_t i = c->n_nodes, j = k, n = 0;
    while (j > 0 && c->reach[i][j] > 0) {
        if (i > 0 && c->reach[i - 1][j] == c->reach[i][j]) {
            i--;
        } else if (!all && c->reach[i][j - 1] == c->reach[i][j]) {
            j--;
        } else {
            pick[n++] = --i;
            j--;
        }
    }
    for (uint32_t a = 0, b = n; a + 1 < b; a++) {
        uint32_t swap = pick[a];
        pick[a] = pick[--b];
        pick[b] = swap;
    }
    return n;
}

// The most blocks in low .. high with which some cut into k stages at most exists; it exists for low.
static uint32_t most_blocks(struct cutter *c, uint32_t k, uint32_t low, uint32_t high) {
    while (low < high) {
        uint32_t mid = high - (high - low) / 2;
        if (can_cut(c, k, mid, false))
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static uint64_t scaled(uint64_t bytes, uint32_t fill) { return (uint64_t)((unsigned __int128)bytes * fill / FILL_ONE); }

// Cuts among the picked nodes, all of them used, none over its share of memory. cut [k + 1].
static bool cut_at_fill(const struct cutter *c, const uint32_t *pick, uint32_t k, uint32_t n_blocks, uint32_t fill,
                        uint32_t *cut) {
    cut[0] = 0;
    for (uint32_t j = 0; j < k; j++) {
        uint32_t cap = c->m->n_layers - (k - 1 - j);
        cut[j + 1] = extend(c, cut[j], cap, n_blocks, scaled(c->nodes[pick[j]].memory_bytes, fill));
        if (cut[j + 1] == cut[j]) return false;
    }
    return cut[k] == c->m->n_layers;
}

static void explain_left_out(const struct cutter *c, uint32_t i, uint32_t base_blocks, const struct plan *p,
                             const struct plan_wish *w, char *why, size_t why_bytes) {
    char has[SIZE_TEXT_BYTES], needs[SIZE_TEXT_BYTES];
    size_text(c->nodes[i].memory_bytes, has);
    uint64_t least = UINT64_MAX;
    for (uint32_t a = 0; a < c->m->n_layers; a++) {
        uint64_t bytes = c->sum[a + 1] - c->sum[a] + c->m->scratch_bytes + base_blocks * c->m->kv_block_bytes;
        if (bytes < least) least = bytes;
    }
    if (c->nodes[i].memory_bytes < least)
        snprintf(why, why_bytes, "%s free, one layer with KV for %u tokens needs %s", has, w->context,
                 size_text_up(least, needs));
    else if (p->n_stages == c->m->n_layers || p->n_stages == w->max_stages)
        snprintf(why, why_bytes, "%s free, not needed: the route has %u stage%s, no more are %s", has, p->n_stages,
                 p->n_stages == 1 ? "" : "s", p->n_stages == w->max_stages ? "wished" : "possible");
    else
        snprintf(why, why_bytes, "%s free: with it the route would have fewer than %u KV blocks", has, p->n_blocks);
}

// The nodes of the plan: as many as can be used with n_blocks, max_k at most.
static uint32_t pick_nodes(struct cutter *c, uint32_t max_k, uint32_t n_blocks, uint32_t *pick) {
    for (uint32_t k = max_k; k >= 1; k--)
        if (can_cut(c, k, n_blocks, true)) return chosen(c, k, true, pick);
    bool ok = can_cut(c, max_k, n_blocks, false);
    ASSERT(ok, "%u stages, %u blocks", max_k, n_blocks);
    return chosen(c, max_k, false, pick);
}

static void write_plan(struct cutter *c, uint32_t max_k, uint32_t n_blocks, uint32_t base_blocks,
                       const struct plan_wish *w, struct plan *p) {
    uint32_t pick[LIMIT_STAGES], cut[LIMIT_STAGES + 1];
    uint32_t k = pick_nodes(c, max_k, n_blocks, pick);
    uint32_t low = 1, high = FILL_ONE;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (cut_at_fill(c, pick, k, n_blocks, mid, cut))
            high = mid;
        else
            low = mid + 1;
    }
    bool ok = cut_at_fill(c, pick, k, n_blocks, low, cut);
    ASSERT(ok, "%u stages, %u blocks, fill %u", k, n_blocks, low);
    memset(p, 0, sizeof *p);
    p->n_stages = k;
    p->n_blocks = n_blocks;
    for (uint32_t j = 0, i = 0; i < c->n_nodes; i++) {
        if (j < k && pick[j] == i) {
            struct plan_stage *s = &p->stage[j];
            *s = (struct plan_stage){.node = c->nodes[i].id, .a = cut[j], .b = cut[j + 1]};
            s->scratch_bytes = c->m->scratch_bytes;
            s->kv_bytes = (uint64_t)(s->b - s->a) * n_blocks * c->m->kv_block_bytes;
            s->log_bytes = s->b < c->m->n_layers ? n_blocks * c->m->log_block_bytes : 0;
            s->weight_bytes = stage_bytes(c, s->a, s->b, 0) - s->scratch_bytes;
            j++;
        } else {
            p->left_out[p->n_left_out].node = c->nodes[i].id;
            explain_left_out(c, i, base_blocks, p, w, p->left_out[p->n_left_out].why, sizeof p->left_out[0].why);
            p->n_left_out++;
        }
    }
}

static uint32_t max_stages(const struct plan_model *m, const struct plan_wish *w, uint32_t n_nodes) {
    uint32_t k = w->max_stages && w->max_stages < n_nodes ? w->max_stages : n_nodes;
    if (k > m->n_layers) k = m->n_layers;
    return k < LIMIT_STAGES ? k : LIMIT_STAGES;
}

// Says what is missing: the smallest further node, and the longest context that fits as it is.
static int refuse(struct cutter *c, uint32_t max_k, uint32_t base_blocks, const struct plan_wish *w, struct err *e) {
    uint64_t have = 0, need = stage_bytes(c, 0, c->m->n_layers, base_blocks);
    for (uint32_t i = 0; i < c->n_nodes; i++) have += c->nodes[i].memory_bytes;
    char shorter[96] = "";
    if (max_k && can_cut(c, max_k, 1, false))
        snprintf(shorter, sizeof shorter, ", or a context of %u tokens",
                 most_blocks(c, max_k, 1, base_blocks - 1) * LIMIT_BLOCK_TOKENS);
    struct plan_node nodes[LIMIT_NODES];
    uint32_t n = c->n_nodes < LIMIT_NODES ? c->n_nodes : LIMIT_NODES - 1;
    if (n) memcpy(nodes, c->nodes, n * sizeof nodes[0]);
    c->nodes = nodes;
    c->n_nodes = n + 1;
    uint64_t low = 1, high = need;
    while (low < high) {
        nodes[n].memory_bytes = low + (high - low) / 2;
        if (can_cut(c, max_stages(c->m, w, n + 1), base_blocks, false))
            high = nodes[n].memory_bytes;
        else
            low = nodes[n].memory_bytes + 1;
    }
    c->nodes = NULL; // those were ours
    char need_text[SIZE_TEXT_BYTES], have_text[SIZE_TEXT_BYTES], more[SIZE_TEXT_BYTES];
    return err_set(e, ERR_LIMIT,
                   "the model does not fit: weights and KV for %u tokens need %s of memory, %u node%s %s%s; a further "
                   "node of %s%s would make it fit",
                   w->context, size_text_up(need, need_text), n, n == 1 ? " offers" : "s offer",
                   size_text(have, have_text), have >= need ? " that no cut between layers fills" : "",
                   size_text_up(low, more), shorter);
}

static int check_input(uint32_t n_nodes, const struct plan_model *m, const struct plan_wish *w, struct err *e) {
    if (m->n_layers < 1 || m->n_layers > LIMIT_LAYERS)
        return err_set(e, ERR_USAGE, "plan: layers: %u is not in 1 .. %d", m->n_layers, LIMIT_LAYERS);
    if (w->context < 1 || w->context > LIMIT_CONTEXT)
        return err_set(e, ERR_USAGE, "plan: context: %u is not in 1 .. %d", w->context, LIMIT_CONTEXT);
    if (n_nodes > LIMIT_NODES) return err_set(e, ERR_LIMIT, "plan: %u nodes, at most %d", n_nodes, LIMIT_NODES);
    uint32_t least = (w->context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    if (w->max_blocks < least)
        return err_set(e, ERR_USAGE, "plan: at most %u KV blocks are wished, a context of %u tokens needs %u",
                       w->max_blocks, w->context, least);
    return ERR_OK;
}

static void set_blocks(const struct plan_model *m, struct plan *p, uint32_t n_blocks) {
    p->n_blocks = n_blocks;
    for (uint32_t i = 0; i < p->n_stages; i++) {
        struct plan_stage *s = &p->stage[i];
        s->kv_bytes = (uint64_t)(s->b - s->a) * n_blocks * m->kv_block_bytes;
        s->log_bytes = s->b < m->n_layers ? n_blocks * m->log_block_bytes : 0;
    }
}

static bool all_have_seconds(const struct cutter *c, struct plan *p, uint32_t n_blocks) {
    struct plan_room rooms[LIMIT_NODES] = {0};
    uint32_t second[LIMIT_STAGES];
    set_blocks(c->m, p, n_blocks);
    for (uint32_t i = 0; i < c->n_nodes; i++) {
        rooms[i].node = c->nodes[i].id;
        rooms[i].memory_bytes = c->nodes[i].memory_bytes;
        for (uint32_t j = 0; j < p->n_stages; j++) {
            if (p->stage[j].node != rooms[i].node) continue;
            rooms[i].serves = true;
            rooms[i].n_stages++;
            rooms[i].used_bytes += stage_bytes(c, p->stage[j].a, p->stage[j].b, n_blocks);
        }
    }
    return plan_seconds(c->m, p, rooms, c->n_nodes, second) == p->n_stages;
}

// Fewer blocks, so that second holders fit beside. Where they never do, the blocks stay: giving them up helps nobody.
static void make_room(const struct cutter *c, uint32_t base_blocks, struct plan *p) {
    uint32_t most = p->n_blocks, low = base_blocks, high = most;
    if (!all_have_seconds(c, p, base_blocks)) {
        set_blocks(c->m, p, most);
        return;
    }
    while (low < high) {
        uint32_t mid = high - (high - low) / 2;
        if (all_have_seconds(c, p, mid))
            low = mid;
        else
            high = mid - 1;
    }
    set_blocks(c->m, p, low);
}

int plan_make(const struct plan_node *nodes, uint32_t n_nodes, const struct plan_model *m, const struct plan_wish *w,
              struct plan *p, struct err *e) {
    int rc = check_input(n_nodes, m, w, e);
    if (rc) return rc;
    struct cutter c = {.nodes = nodes, .n_nodes = n_nodes, .m = m};
    for (uint32_t i = 0; i < m->n_layers; i++) c.sum[i + 1] = c.sum[i] + m->layer_bytes[i];
    uint32_t base_blocks = (w->context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    uint32_t max_k = max_stages(m, w, n_nodes);
    if (max_k == 0 || !can_cut(&c, max_k, base_blocks, false)) return refuse(&c, max_k, base_blocks, w, e);
    write_plan(&c, max_k, most_blocks(&c, max_k, base_blocks, w->max_blocks), base_blocks, w, p);
    if (w->redundant) make_room(&c, base_blocks, p);
    return ERR_OK;
}
