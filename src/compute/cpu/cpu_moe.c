// Mixture of experts: rows are grouped by expert, so that an expert's weights are read once for all rows that chose it.
// A chunk of rows goes through four loops: gate and up of all experts, activation, down, and the weighted sum, which
// runs per row over its experts by ascending index (NUMERICS 7.3).
#include "compute/cpu/cpu.h"
#include "os/clock.h"

// One (row, expert) pair; `slot` is its place in the grouped order.
struct choice {
    uint32_t expert, slot;
    float weight;
};

struct moe_op {
    struct cpu *c;
    const struct moe_spec *s;
    const struct batch *b;
    uint32_t row0, n_rows; // the chunk
    uint32_t n_slots;      // n_rows * top_k
    uint32_t hidden, ffn;
    bool is_float; // gate and up take x, not codes
    bool down_is_float;
    const float *logits;
    float *y;
    struct choice *choices;  // [n_rows][top_k], by ascending expert
    uint32_t *first, *next;  // [n_experts + 1] first slot of each expert
    uint32_t *slot_row;      // [n_slots] row of the batch
    uint32_t *slot_of;       // [n_slots] the identity: rows of what the chunk itself makes
    float *gate, *up, *out;  // [n_slots][ffn], [n_slots][ffn], [n_slots][hidden]
    struct act_block *h;     // [n_slots][blocks of ffn]
    struct cpu_matmul *jobs; // [2 * n_experts]
};

static void route(const struct moe_spec *s, const float *logits, uint32_t *index, float *weight, bool *fault) {
    if (s->router == ROUTER_SOFTMAX) {
        ref_router(logits, s->n_experts, s->top_k, s->norm_topk, index, weight, fault);
    } else {
        struct ref_sigmoid_router r = {.n = s->n_experts,
                                       .top_k = s->top_k,
                                       .n_groups = s->n_groups,
                                       .top_groups = s->top_groups,
                                       .norm_topk = s->norm_topk,
                                       .bias = s->bias};
        ref_router_sigmoid(&r, logits, index, weight, fault);
    }
    for (uint32_t a = 0; s->weights_scale != 1.0f && a < s->top_k; a++) weight[a] = weight[a] * s->weights_scale;
}

static void route_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    struct moe_op *o = arg;
    uint32_t k = o->s->top_k, index[LIMIT_TOP_K];
    float weight[LIMIT_TOP_K];
    (void)thread;
    for (uint32_t r = begin; r < end; r++) {
        struct choice *c = o->choices + (size_t)r * k;
        bool fault = false;
        route(o->s, o->logits + (size_t)(o->row0 + r) * o->s->n_experts, index, weight, &fault);
        cpu_fault(o->b, o->row0 + r, fault);
        for (uint32_t a = 0; a < k; a++) { // insertion by expert
            uint32_t at = a;
            for (; at > 0 && c[at - 1].expert > index[a]; at--) c[at] = c[at - 1];
            c[at] = (struct choice){.expert = index[a], .weight = weight[a]};
        }
    }
}

// Counting sort of the choices by expert; within an expert rows ascend.
static void group(struct moe_op *o) {
    uint32_t n = o->s->n_experts;
    memset(o->first, 0, sizeof *o->first * (n + 1));
    for (uint32_t i = 0; i < o->n_slots; i++) o->first[o->choices[i].expert + 1]++;
    for (uint32_t e = 0; e < n; e++) o->first[e + 1] += o->first[e];
    memcpy(o->next, o->first, sizeof *o->next * n);
    for (uint32_t i = 0; i < o->n_slots; i++) {
        uint32_t slot = o->next[o->choices[i].expert]++;
        o->choices[i].slot = slot;
        o->slot_row[slot] = o->row0 + i / o->s->top_k;
        o->slot_of[i] = i;
    }
}

static void activate(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    struct moe_op *o = arg;
    (void)thread;
    for (uint32_t i = begin; i < end; i++) {
        float *g = o->gate + (size_t)i * o->ffn;
        bool fault = false;
        kern_act_mul(o->c->kern, o->s->act, g, o->up + (size_t)i * o->ffn, o->ffn, g, &fault);
        if (!o->down_is_float) o->c->kern->quant_row(g, o->ffn, o->h + (size_t)i * ref_n_blocks(o->ffn), &fault);
        cpu_fault(o->b, o->slot_row[i], fault);
    }
}

static void combine(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    struct moe_op *o = arg;
    uint32_t k = o->s->top_k;
    (void)thread;
    for (uint32_t r = begin; r < end; r++) {
        float *y = o->y + (size_t)(o->row0 + r) * o->hidden;
        memset(y, 0, sizeof *y * o->hidden);
        for (uint32_t a = 0; a < k; a++) {
            const struct choice *c = &o->choices[(size_t)r * k + a];
            o->c->kern->axpy(c->weight, o->out + (size_t)c->slot * o->hidden, o->hidden, y);
        }
    }
}

static void add_job(struct moe_op *o, uint32_t *n, const struct weight *w, struct matmul_job job, uint32_t expert) {
    uint32_t first = o->first[expert];
    job.w = w;
    job.y += (size_t)first * w->n_rows;
    job.y_stride = w->n_rows;
    job.rows += first;
    o->jobs[(*n)++] = (struct cpu_matmul){.job = job, .n_tokens = o->first[expert + 1] - first};
}

static void run_chunk(struct moe_op *o, const struct qrows *q, const float *x) {
    struct pool *pool = o->c->pool;
    const struct moe_spec *s = o->s;
    struct matmul_job in = {.a = q ? q->a : NULL, .x = x, .x_stride = o->hidden, .rows = o->slot_row};
    struct matmul_job down = {.a = o->h, .x = o->gate, .x_stride = o->ffn, .rows = o->slot_of, .y = o->out};
    struct matmul_job gate = in, up = in;
    uint32_t n = 0;
    gate.y = o->gate;
    up.y = o->up;
    uint64_t begin_ns = clock_now_ns();
    pool_run(pool, route_rows, o, o->n_rows, cpu_grain((uint64_t)s->n_experts * s->top_k * 4));
    group(o);
    o->c->base.choice_ns += clock_now_ns() - begin_ns;
    for (uint32_t e = 0; e < s->n_experts; e++) {
        if (o->first[e] == o->first[e + 1]) continue;
        add_job(o, &n, s->gate[e], gate, e);
        add_job(o, &n, s->up[e], up, e);
    }
    cpu_matmul_run(o->c, o->jobs, n);
    pool_run(pool, activate, o, o->n_slots, cpu_grain((uint64_t)o->ffn * 8));
    n = 0;
    for (uint32_t e = 0; e < s->n_experts; e++)
        if (o->first[e] != o->first[e + 1]) add_job(o, &n, s->down[e], down, e);
    cpu_matmul_run(o->c, o->jobs, n);
    pool_run(pool, combine, o, o->n_rows, cpu_grain((uint64_t)o->hidden * s->top_k));
}

static void *take(uint8_t **at, uint64_t bytes) {
    void *p = *at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

void cpu_moe(struct backend *be, const struct moe_spec *s, const float *logits, const struct qrows *q, const float *x,
             const struct batch *b, float *y) {
    struct cpu *c = cpu_of(be);
    const struct weight *gate = s->gate[0], *down = s->down[0];
    struct moe_op o = {.c = c, .s = s, .b = b, .hidden = down->n_rows, .ffn = gate->n_rows, .logits = logits, .y = y};
    o.is_float = dtype_info(gate->type)->is_float;
    o.down_is_float = dtype_info(down->type)->is_float;
    ASSERT(s->top_k <= LIMIT_TOP_K && s->top_k <= s->n_experts, "top_k %u", s->top_k);
    uint32_t blocks = ref_n_blocks(o.ffn);
    uint64_t slot_bytes = 4ull * (2ull * o.ffn + o.hidden) + blocks * sizeof(struct act_block) + 2 * sizeof(uint32_t) +
                          sizeof(struct choice);
    uint64_t fixed = s->n_experts * (2 * sizeof(struct cpu_matmul) + 2 * sizeof(uint32_t)) + 16 * 64;
    ASSERT(fixed + slot_bytes * s->top_k <= CPU_SCRATCH_BYTES, "%u experts of %u", s->n_experts, o.ffn);
    uint64_t fits = (CPU_SCRATCH_BYTES - fixed) / (slot_bytes * s->top_k);
    uint32_t rows = fits < b->n_rows ? (uint32_t)fits : b->n_rows;
    uint64_t slots = (uint64_t)rows * s->top_k;
    uint8_t *at = c->scratch;
    o.gate = take(&at, slots * o.ffn * sizeof(float));
    o.up = take(&at, slots * o.ffn * sizeof(float));
    o.out = take(&at, slots * o.hidden * sizeof(float));
    o.h = take(&at, slots * blocks * sizeof(struct act_block));
    o.slot_row = take(&at, slots * sizeof(uint32_t));
    o.slot_of = take(&at, slots * sizeof(uint32_t));
    o.choices = take(&at, slots * sizeof(struct choice));
    o.first = take(&at, (s->n_experts + 1) * sizeof(uint32_t));
    o.next = take(&at, (s->n_experts + 1) * sizeof(uint32_t));
    o.jobs = take(&at, 2 * s->n_experts * sizeof(struct cpu_matmul));
    for (o.row0 = 0; o.row0 < b->n_rows; o.row0 += o.n_rows) {
        o.n_rows = b->n_rows - o.row0 < rows ? b->n_rows - o.row0 : rows;
        o.n_slots = o.n_rows * s->top_k;
        run_chunk(&o, o.is_float ? NULL : q, o.is_float ? x : NULL);
    }
}
