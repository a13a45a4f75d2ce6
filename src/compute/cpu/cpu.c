// The CPU backend: cuts batches into rows and panels and gives them to the kernels of one instruction set.
#include "compute/cpu/cpu.h"
#include "compute/cpu/sampler.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

// ---- Memory

static void mem_copy(struct backend *be, void *dst, const void *src, uint64_t bytes) {
    (void)be;
    memcpy(dst, src, bytes);
}

static uint32_t threads(const struct backend *be) {
    return pool_threads(cpu_of((struct backend *)(uintptr_t)be)->pool);
}

static void spread(struct backend *be, backend_loop_fn fn, void *arg, uint32_t n_items, uint32_t grain) {
    pool_run(cpu_of(be)->pool, fn, arg, n_items, grain);
}

// ---- Weights

static struct weight *weight_new(struct backend *be, enum dtype t, uint32_t n_rows, uint32_t k) {
    const struct kern *kern = cpu_of(be)->kern;
    const struct dtype_info *info = dtype_info(t);
    ASSERT(info->is_float || info->is_block, "%s is no weight type", info->name);
    ASSERT(t == DT_L8 || k % info->block_values == 0, "%u values in blocks of %u", k, info->block_values);
    struct weight *w = cpu_mem_alloc(be, sizeof *w);
    if (!w) return NULL;
    *w = (struct weight){
        .be = be, .type = t, .n_rows = n_rows, .k = k, .panels = kern->panels, .code_xor = kern->code_xor};
    w->n_panels = (n_rows + PANEL_ROWS - 1) / PANEL_ROWS;
    w->n_blocks = ref_n_blocks(k);
    w->panel_bytes = kern->panels ? weight_panel_bytes(t, k) : 0;
    w->data = cpu_mem_alloc(be, weight_data_bytes(t, n_rows, k, kern->panels));
    if (w->data) return w;
    cpu_mem_free(be, w);
    return NULL;
}

static void weight_put(struct weight *w, uint32_t row, uint32_t n_rows, const void *src) {
    ASSERT(row % PANEL_ROWS == 0 && n_rows <= w->n_rows - row, "rows %u + %u of %u", row, n_rows, w->n_rows);
    ASSERT(n_rows % PANEL_ROWS == 0 || row + n_rows == w->n_rows, "a run of %u rows ends inside a panel", n_rows);
    weight_store(w, row, n_rows, src);
}

static void weight_free(struct weight *w) {
    if (!w) return;
    cpu_mem_free(w->be, w->data);
    cpu_mem_free(w->be, w);
}

static uint64_t weight_bytes_rows(enum dtype t, uint32_t n_rows, uint32_t k) {
    return weight_data_bytes(t, n_rows, k, false) + sizeof(struct weight) + 2 * CPU_MEM_HEADER_BYTES;
}

static uint64_t weight_bytes_panels(enum dtype t, uint32_t n_rows, uint32_t k) {
    return weight_data_bytes(t, n_rows, k, true) + sizeof(struct weight) + 2 * CPU_MEM_HEADER_BYTES;
}

static struct qrows *qrows_new(struct backend *be, uint32_t max_rows, uint32_t max_k) {
    struct qrows *q = cpu_mem_alloc(be, sizeof *q);
    if (!q) return NULL;
    *q = (struct qrows){.be = be, .max_rows = max_rows, .max_k = max_k};
    q->a = cpu_mem_alloc_now(be, (uint64_t)max_rows * ref_n_blocks(max_k) * sizeof *q->a);
    if (q->a) return q;
    cpu_mem_free(be, q);
    return NULL;
}

static void qrows_free(struct qrows *q) {
    if (!q) return;
    cpu_mem_free(q->be, q->a);
    cpu_mem_free(q->be, q);
}

// ---- Operations on rows: one struct holds the arguments of whichever runs.

struct row_op {
    struct cpu *c;
    const struct batch *b;
    const float *x, *x2;
    float *y, *y2;
    const struct weight *w;
    struct qrows *q;
    const int32_t *ids;
    const double *fq;
    uint32_t n, n_groups;
    float value;
    enum activation act;
    bool flag;
};

static void embed_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct row_op *o = arg;
    (void)thread;
    for (uint32_t r = begin; r < end; r++) {
        float *y = o->y + (size_t)r * o->w->k;
        bool fault = false;
        ASSERT((uint32_t)o->ids[r] < o->w->n_rows, "token %d of %u", o->ids[r], o->w->n_rows);
        weight_row_f32(o->w, (uint32_t)o->ids[r], y);
        for (uint32_t i = 0; o->value != 1.0f && i < o->w->k; i++) y[i] = y[i] * o->value;
        for (uint32_t i = 0; !o->flag && i < o->w->k; i++) y[i] = ref_f32_from_bf16(ref_bf16_from_f32(y[i], &fault));
        cpu_fault(o->b, r, fault);
    }
}

static void embed(struct backend *be, const struct weight *w, const int32_t *host_ids, float scale,
                  const struct batch *b, bool keep_f32, float *x) {
    struct row_op o = {.c = cpu_of(be), .b = b, .w = w, .ids = host_ids, .value = scale, .y = x, .flag = keep_f32};
    pool_run(o.c->pool, embed_rows, &o, b->n_rows, cpu_grain(w->k * 4ull));
}

static void rmsnorm_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct row_op *o = arg;
    (void)thread;
    for (uint32_t g = begin * o->n_groups; g < end * o->n_groups; g++)
        o->c->kern->rmsnorm(o->x + (size_t)g * o->n, o->x2, o->n, o->value, o->y + (size_t)g * o->n);
}

static void rmsnorm(struct backend *be, const float *x, const float *w, uint32_t n_groups, uint32_t n, float eps,
                    const struct batch *b, float *y) {
    struct row_op o = {.c = cpu_of(be), .x = x, .x2 = w, .n_groups = n_groups, .n = n, .value = eps, .y = y};
    pool_run(o.c->pool, rmsnorm_rows, &o, b->n_rows, cpu_grain((uint64_t)n_groups * n));
}

static void quant_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct row_op *o = arg;
    (void)thread;
    for (uint32_t r = begin; r < end; r++) {
        bool fault = false;
        o->c->kern->quant_row(o->x + (size_t)r * o->n, o->n, o->q->a + (size_t)r * ref_n_blocks(o->n), &fault);
        cpu_fault(o->b, r, fault);
    }
}

static void quant(struct backend *be, const float *x, uint32_t k, const struct batch *b, struct qrows *q) {
    ASSERT(b->n_rows <= q->max_rows && k <= q->max_k, "%u rows of %u", b->n_rows, k);
    struct row_op o = {.c = cpu_of(be), .b = b, .x = x, .n = k, .q = q};
    q->k = k;
    pool_run(o.c->pool, quant_rows, &o, b->n_rows, cpu_grain(k));
}

static void rope_table_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct row_op *o = arg;
    (void)thread;
    for (uint32_t r = begin; r < end; r++) {
        float *cos = o->y + (size_t)r * o->n, *sin = o->y2 + (size_t)r * o->n;
        ref_rope_row(o->b->row_pos[r], o->fq, o->n, cos, sin);
        for (uint32_t i = 0; o->value != 1.0f && i < o->n; i++) {
            cos[i] = cos[i] * o->value;
            sin[i] = sin[i] * o->value;
        }
    }
}

static void rope_table(struct backend *be, const double *host_fq, uint32_t n_freq, float factor, const struct batch *b,
                       float *cos, float *sin) {
    struct row_op o = {.c = cpu_of(be), .b = b, .fq = host_fq, .n = n_freq, .value = factor, .y = cos, .y2 = sin};
    pool_run(o.c->pool, rope_table_rows, &o, b->n_rows, cpu_grain(n_freq * 64ull));
}

struct rope_op {
    struct cpu *c;
    float *x;
    const float *cos, *sin;
    uint32_t n_heads, head_dim, n_freq;
};

static void rope_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct rope_op *o = arg;
    (void)thread;
    for (uint32_t r = begin; r < end; r++)
        for (uint32_t h = 0; h < o->n_heads; h++)
            o->c->kern->rope(o->x + ((size_t)r * o->n_heads + h) * o->head_dim, o->n_freq,
                             o->cos + (size_t)r * o->n_freq, o->sin + (size_t)r * o->n_freq);
}

static void rope(struct backend *be, float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_freq, const float *cos,
                 const float *sin, const struct batch *b) {
    struct rope_op o = {
        .c = cpu_of(be), .x = x, .cos = cos, .sin = sin, .n_heads = n_heads, .head_dim = head_dim, .n_freq = n_freq};
    pool_run(o.c->pool, rope_rows, &o, b->n_rows, cpu_grain((uint64_t)n_heads * head_dim));
}

static void act_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct row_op *o = arg;
    (void)thread;
    for (uint32_t r = begin; r < end; r++) {
        size_t at = (size_t)r * o->n;
        bool fault = false;
        kern_act_mul(o->c->kern, o->act, o->x + at, o->x2 + at, o->n, o->y + at, &fault);
        cpu_fault(o->b, r, fault);
    }
}

static void act_mul(struct backend *be, enum activation act, const float *g, const float *u, uint32_t n,
                    const struct batch *b, float *h) {
    struct row_op o = {.c = cpu_of(be), .b = b, .act = act, .x = g, .x2 = u, .n = n, .y = h};
    pool_run(o.c->pool, act_rows, &o, b->n_rows, cpu_grain(n * 4ull));
}

static void scale_some(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct row_op *o = arg;
    (void)thread;
    for (uint32_t r = begin; r < end; r++)
        for (size_t i = (size_t)r * o->n; i < (size_t)(r + 1) * o->n; i++) o->y[i] = o->x2[r] * o->y[i];
}

static void scale_rows(struct backend *be, float *x, uint32_t n, const float *host_factor, const struct batch *b) {
    struct row_op o = {.c = cpu_of(be), .x2 = host_factor, .n = n, .y = x};
    pool_run(o.c->pool, scale_some, &o, b->n_rows, cpu_grain(n));
}

static void softcap_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct row_op *o = arg;
    (void)thread;
    for (uint32_t r = begin; r < end; r++) {
        bool fault = false;
        o->c->kern->softcap(o->y + (size_t)r * o->n, o->n, o->value, &fault);
        cpu_fault(o->b, r, fault);
    }
}

static void softcap(struct backend *be, float *x, uint32_t n, float cap, const struct batch *b) {
    struct row_op o = {.c = cpu_of(be), .b = b, .n = n, .value = cap, .y = x};
    ASSERT(cap > 0.0f, "a cap of %g", (double)cap);
    pool_run(o.c->pool, softcap_rows, &o, b->n_rows, cpu_grain(n * 8ull));
}

static void add_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct row_op *o = arg;
    (void)thread;
    for (uint32_t r = begin; r < end; r++) {
        size_t at = (size_t)r * o->n;
        bool fault = false;
        o->c->kern->add(o->x + at, o->x2 + at, o->n, o->flag, o->y + at, &fault);
        cpu_fault(o->b, r, fault);
    }
}

static void add(struct backend *be, const float *a, const float *b2, uint32_t n, bool round_bf16, const struct batch *b,
                float *y) {
    struct row_op o = {.c = cpu_of(be), .b = b, .x = a, .x2 = b2, .n = n, .flag = round_bf16, .y = y};
    pool_run(o.c->pool, add_rows, &o, b->n_rows, cpu_grain(n));
}

static void rows_get_bf16(struct backend *be, const float *x, uint32_t n, uint32_t n_rows, uint16_t *host_dst) {
    (void)be;
    for (size_t i = 0; i < (size_t)n * n_rows; i++) host_dst[i] = (uint16_t)(ref_bits(x[i]) >> 16);
}

static void rows_put_bf16(struct backend *be, const uint16_t *host_src, uint32_t n, uint32_t n_rows, float *x) {
    (void)be;
    for (size_t i = 0; i < (size_t)n * n_rows; i++) x[i] = ref_f32_from_bf16(host_src[i]);
}

static void gather_rows(struct backend *be, const float *x, uint32_t n, const uint32_t *host_index, uint32_t n_out,
                        float *y) {
    (void)be;
    for (uint32_t i = 0; i < n_out; i++) memmove(y + (size_t)i * n, x + (size_t)host_index[i] * n, n * sizeof *y);
}

// ---- Matrices. An item is a few neighbouring panels of one job. Many tokens go in blocks whose activations stay in
// the second-level cache while the panels pass by.

enum { TOKEN_BLOCK = 64 };

struct matmul_op {
    const struct kern *kern;
    const struct cpu_matmul *m;
    uint32_t n_jobs;
};

static void matmul_panels(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct matmul_op *o = arg;
    (void)thread;
    const struct cpu_matmul *m = o->m;
    uint32_t base = 0; // number of the first panel of job m
    while (begin < end) {
        while (begin - base >= m->job.w->n_panels) base += (m++)->job.w->n_panels;
        uint32_t last = base + m->job.w->n_panels < end ? base + m->job.w->n_panels : end;
        for (uint32_t t = 0; t < m->n_tokens; t += TOKEN_BLOCK) {
            uint32_t n = m->n_tokens - t < TOKEN_BLOCK ? m->n_tokens - t : TOKEN_BLOCK;
            for (uint32_t p = begin; p < last; p++) o->kern->matmul(&m->job, p - base, t, n);
        }
        begin = last;
    }
}

void cpu_matmul_run(struct cpu *c, const struct cpu_matmul *m, uint32_t n_jobs) {
    struct matmul_op o = {.kern = c->kern, .m = m, .n_jobs = n_jobs};
    uint32_t n_panels = 0;
    uint64_t products = 0; // of one panel, on average
    for (uint32_t i = 0; i < n_jobs; i++) {
        n_panels += m[i].job.w->n_panels;
        products += (uint64_t)m[i].job.w->n_panels * PANEL_ROWS * m[i].job.w->k * m[i].n_tokens;
    }
    if (n_panels == 0) return;
    uint32_t grain = n_panels / (pool_threads(c->pool) * 8), least = cpu_grain(products / n_panels / 16);
    if (grain > 16) grain = 16;
    pool_run(c->pool, matmul_panels, &o, n_panels, grain > least ? grain : least);
}

static void matmul(struct backend *be, const struct weight *w, const struct qrows *q, const float *x, const float *bias,
                   const struct batch *b, float *y) {
    bool is_float = dtype_info(w->type)->is_float;
    ASSERT(is_float ? x != NULL : q != NULL && q->k == w->k, "no activations of %u values", w->k);
    struct cpu_matmul m = {.job = {.w = w,
                                   .a = is_float ? NULL : q->a,
                                   .x = x,
                                   .x_stride = w->k,
                                   .bias = bias,
                                   .y = y,
                                   .y_stride = w->n_rows},
                           .n_tokens = b->n_rows};
    cpu_matmul_run(cpu_of(be), &m, 1);
}

// ---- Sampling

struct sample_op {
    struct cpu *c;
    const float *logits;
    uint32_t n_vocab;
    const struct sampling *const *p;
    const uint32_t *pos;
    int32_t *token;
    uint8_t *fault;
};

static uint64_t sample_bytes(uint32_t n_vocab) {
    return ((uint64_t)n_vocab * (sizeof(uint32_t) + sizeof(struct sampler_entry)) + 63) / 64 * 64;
}

static void sample_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct sample_op *o = arg;
    uint8_t *mem = o->c->scratch + thread * sample_bytes(o->n_vocab);
    struct sampler_scratch s = {.entries = (struct sampler_entry *)(void *)mem,
                                .u = (uint32_t *)(void *)(mem + o->n_vocab * sizeof(struct sampler_entry))};
    for (uint32_t i = begin; i < end; i++) {
        bool fault = false;
        o->token[i] =
            sampler_draw(o->c->kern, o->logits + (size_t)i * o->n_vocab, o->n_vocab, o->p[i], o->pos[i], &s, &fault);
        if (fault) o->fault[i] = 1;
    }
}

static void sample(struct backend *be, const float *logits, uint32_t n_vocab, uint32_t n,
                   const struct sampling *const *p, const uint32_t *pos, int32_t *token, uint8_t *fault) {
    struct sample_op o = {
        .c = cpu_of(be), .logits = logits, .n_vocab = n_vocab, .p = p, .pos = pos, .token = token, .fault = fault};
    ASSERT(n_vocab <= LIMIT_VOCAB, "%u tokens", n_vocab);
    if (sample_bytes(n_vocab) * pool_threads(o.c->pool) <= CPU_SCRATCH_BYTES)
        pool_run(o.c->pool, sample_rows, &o, n, 1);
    else
        sample_rows(&o, 0, n, 0);
}

// ---- The backend

static void cpu_free(struct backend *be) {
    if (!be) return;
    struct cpu *c = cpu_of(be);
    pool_free(c->pool);
    munmap(c->scratch, CPU_SCRATCH_BYTES);
    free(c);
}

static const struct backend_ops cpu_ops = {
    .threads = threads,
    .spread = spread,
    .mem_alloc = cpu_mem_alloc_now,
    .mem_free = cpu_mem_free,
    .mem_put = mem_copy,
    .mem_get = mem_copy,
    .weight_new = weight_new,
    .weight_put = weight_put,
    .weight_free = weight_free,
    .qrows_new = qrows_new,
    .qrows_free = qrows_free,
    .kv_new = cpu_kv_new,
    .kv_free = cpu_kv_free,
    .kv_block_bytes = cpu_kv_block_bytes,
    .embed = embed,
    .rmsnorm = rmsnorm,
    .quant = quant,
    .matmul = matmul,
    .rope_table = rope_table,
    .rope = rope,
    .kv_write = cpu_kv_write,
    .attention = cpu_attention,
    .act_mul = act_mul,
    .scale_rows = scale_rows,
    .softcap = softcap,
    .moe = cpu_moe,
    .add = add,
    .rows_get_bf16 = rows_get_bf16,
    .rows_put_bf16 = rows_put_bf16,
    .gather_rows = gather_rows,
    .sample = sample,
    .free = cpu_free,
};

static uint32_t usable_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (uint32_t)n : 1;
}

int backend_cpu_new(const struct backend_cpu_config *config, struct backend **be, struct err *e) {
    const struct kern *kern = kern_find(config->isa);
    if (!kern)
        return err_set(e, ERR_UNSUPPORTED, "this CPU has no %s; isa must be auto or %s", isa_name(config->isa),
                       isa_name(isa_best()));
    struct cpu *c = calloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "no memory for a backend");
    *c = (struct cpu){.ops = cpu_ops, .kern = kern};
    c->base.ops = &c->ops;
    c->ops.name = kern->name;
    c->ops.weight_bytes = kern->panels ? weight_bytes_panels : weight_bytes_rows;
    uint32_t n_threads = config->n_threads ? config->n_threads : usable_cpus();
    c->scratch =
        mmap(NULL, CPU_SCRATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->scratch == MAP_FAILED) {
        free(c);
        return err_set(e, ERR_NOMEM, "no address space for %d MiB of scratch", CPU_SCRATCH_BYTES >> 20);
    }
    c->pool = pool_new(n_threads);
    if (!c->pool) {
        munmap(c->scratch, CPU_SCRATCH_BYTES);
        free(c);
        return err_set(e, ERR_NOMEM, "cannot start %u threads; ask for fewer", n_threads);
    }
    *be = &c->base;
    return ERR_OK;
}
