#include "cmd/convert.h"

#include "base/map.h"
#include "base/text.h"
#include "model/gguf_export.h"
#include "os/random.h"
#include "weights/dequant.h"
#include "weights/gguf_names.h"
#include "weights/quantize.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Rows [row, row + n_rows) of a tensor of the file come from one tensor of the model, or from numbers of ours.
struct part {
    const struct tensor *source, *scales; // scales: of FP8 blocks, else NULL
    const float *values;                  // in place of source; owned
    uint64_t row, n_rows;
};

struct parts {
    struct part *list;
    uint32_t n, cap;
    bool is_stack; // each part is a matrix of the outermost dimension
};

struct convert {
    const struct hparams *h; // NULL: rows stay as they are
    const struct tensors *tensors;
    const char *arch;
    char arch_text[64];
    struct gguf_file_tensor *out; // [cap]
    struct parts *parts;          // [cap]
    uint32_t n, cap;
    struct strmap names; // of the file's tensors -> place in out
};

static int no_memory(struct err *e) { return err_set(e, ERR_NOMEM, "no memory for the list of tensors"); }

static struct convert *convert_new(const struct tensors *t) {
    struct convert *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->tensors = t;
    strmap_init(&c->names, LIMIT_TENSORS, LIMIT_SAFETENSORS_HEADER, random_u64());
    return c;
}

void convert_free(struct convert *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->n; i++) {
        for (uint32_t k = 0; k < c->parts[i].n; k++) free((void *)(uintptr_t)c->parts[i].list[k].values);
        free(c->parts[i].list);
    }
    strmap_fini(&c->names);
    free(c->parts);
    free(c->out);
    free(c);
}

static int grow(struct convert *c) {
    const uint32_t cap = c->cap ? 2 * c->cap : 256;
    struct gguf_file_tensor *out = realloc(c->out, cap * sizeof *out);
    if (!out) return ERR_NOMEM;
    c->out = out;
    struct parts *parts = realloc(c->parts, cap * sizeof *parts);
    if (!parts) return ERR_NOMEM;
    c->parts = parts;
    c->cap = cap;
    return ERR_OK;
}

// The file's tensor of that name, made if there is none yet.
static int output_of(struct convert *c, const char *name, uint32_t *at, struct err *e) {
    const size_t len = strlen(name);
    if (strmap_get(&c->names, name, len, at)) return ERR_OK;
    if (len >= LIMIT_TENSOR_NAME) return err_set(e, ERR_FORMAT, "tensor %.64s...: the name is too long", name);
    if ((c->n == c->cap && grow(c)) || strmap_put(&c->names, name, len, c->n)) return no_memory(e);
    memset(&c->out[c->n], 0, sizeof *c->out);
    memset(&c->parts[c->n], 0, sizeof *c->parts);
    memcpy(c->out[c->n].name, name, len + 1);
    *at = c->n++;
    return ERR_OK;
}

// A part behind those that the tensor has. Of a stack it is one more matrix; else its rows continue those before.
static int add_part(struct convert *c, uint32_t at, struct part part, const uint64_t *dim, uint32_t n_dims,
                    bool is_stack, struct err *e) {
    struct parts *p = &c->parts[at];
    struct gguf_file_tensor *t = &c->out[at];
    if (p->n == p->cap) {
        const uint32_t cap = p->cap ? 2 * p->cap : 1;
        struct part *list = realloc(p->list, cap * sizeof *list);
        if (!list) return no_memory(e);
        p->list = list;
        p->cap = cap;
    }
    if (n_dims + is_stack > GGUF_DIMS || n_dims == 0)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: %u dimensions", t->name, n_dims);
    const struct part *last = p->n ? &p->list[p->n - 1] : NULL;
    part.row = last ? last->row + last->n_rows : 0;
    part.n_rows = 1;
    for (uint32_t i = 0; i + 1 < n_dims; i++) part.n_rows *= dim[i];
    if (!last) {
        p->is_stack = is_stack;
        t->n_dims = n_dims + is_stack;
        for (uint32_t i = 0; i < n_dims; i++) t->dim[i] = dim[n_dims - 1 - i];
        if (is_stack) t->dim[n_dims] = 1;
    } else if (dim[n_dims - 1] != t->dim[0] || p->is_stack != is_stack || n_dims + is_stack != t->n_dims ||
               (is_stack && part.n_rows != last->n_rows) || (!is_stack && n_dims != 2)) {
        return err_set(e, ERR_FORMAT, "tensor %s: its parts have different shapes", t->name);
    } else {
        t->dim[is_stack ? n_dims : 1] += is_stack ? 1 : dim[0];
    }
    p->list[p->n++] = part;
    return ERR_OK;
}

// Matrices, and what else readers expect in F32.
static enum dtype type_of(const struct gguf_file_tensor *t, const struct recipe *r, const struct recipe_model *m) {
    const bool is_matrix =
        t->n_dims > 1 && text_ends(t->name, ".weight") && !strstr(t->name, "_norm") && !strstr(t->name, "ffn_gate_inp");
    return is_matrix ? recipe_type(r, m, t->name, t->dim[0]) : DT_F32;
}

// ---- From a folder

struct folder {
    struct convert *c;
    struct err *e;
};

// Phi-3's matrices lie side by side in GGUF files, as in its folders.
static bool fused_name(const char *arch, const char *name, char *out) {
    static const char *const fused[][2] = {{"attn_q.weight", "attn_qkv.weight"},
                                           {"attn_k.weight", "attn_qkv.weight"},
                                           {"attn_v.weight", "attn_qkv.weight"},
                                           {"ffn_gate.weight", "ffn_up.weight"}};
    if (strcmp(arch, "phi3") != 0) return false;
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) {
        if (!text_ends(name, fused[i][0])) continue;
        snprintf(out, LIMIT_TENSOR_NAME, "%.*s%s", (int)(strlen(name) - strlen(fused[i][0])), name, fused[i][1]);
        return true;
    }
    return false;
}

// The names of gate and up, which the table of names has only fused.
static bool phi3_name(const char *hf, char *out) {
    static const char before[] = "model.layers.";
    if (strncmp(hf, before, sizeof before - 1) != 0) return false;
    const char *number = hf + sizeof before - 1, *part = number + strspn(number, "0123456789");
    if (strcmp(part, ".mlp.gate_proj.weight") != 0 && strcmp(part, ".mlp.up_proj.weight") != 0) return false;
    snprintf(out, LIMIT_TENSOR_NAME, "blk.%.*s.ffn_up.weight", (int)(part - number), number);
    return true;
}

static bool gguf_name(const char *arch, const char *hf, char *out, uint32_t *expert) {
    char own[LIMIT_TENSOR_NAME];
    *expert = UINT32_MAX;
    if (strcmp(arch, "phi3") == 0 && phi3_name(hf, out)) return true;
    if (!gguf_names_from_hf(arch, hf, own, expert)) return false;
    if (!fused_name(arch, own, out)) snprintf(out, LIMIT_TENSOR_NAME, "%s", own);
    return true;
}

// Whether rows of such a tensor can be read. Values of a vector may be put in another order, which blocks do not allow.
static int check_type(const struct tensor *t, struct err *e) {
    const struct dtype_info *info = dtype_info(t->type);
    const uint64_t k = t->dim[t->n_dims - 1];
    if (!dequant_knows(t->type) || (t->n_dims == 1 && !info->is_float))
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: %s is not converted", t->name, info->name);
    if (t->type != DT_L8 && k % info->block_values)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: rows of %llu values are no whole blocks of %s", t->name,
                       (unsigned long long)k, info->name);
    return ERR_OK;
}

static int add_need(void *arg, const struct tensor_need *n) {
    struct folder *f = arg;
    char name[LIMIT_TENSOR_NAME], scale[LIMIT_TENSOR_NAME];
    uint32_t expert, at;
    if (text_ends(n->name, "_scale_inv")) return ERR_OK; // goes with its matrix
    const struct tensor *t = tensors_find(f->c->tensors, n->name);
    if (!t) return err_set(f->e, ERR_NOT_FOUND, "tensor %s is not in the model files", n->name);
    const uint32_t n_dims = n->dim[1] ? 2 : 1;
    if (t->n_dims != n_dims || t->dim[0] != n->dim[0] || (n_dims == 2 && t->dim[1] != n->dim[1]))
        return err_set(f->e, ERR_FORMAT, "tensor %s: its shape is not what config.json makes it", n->name);
    if (!gguf_name(f->c->arch, n->name, name, &expert))
        return err_set(f->e, ERR_UNSUPPORTED, "tensor %s: GGUF has no such tensor of architecture %s", n->name,
                       f->c->arch);
    int rc = check_type(t, f->e);
    if (rc) return rc;
    struct part part = {.source = t};
    snprintf(scale, sizeof scale, "%.240s_scale_inv", n->name);
    if (t->type == DT_F8_E4M3 && !(part.scales = tensors_find(f->c->tensors, scale)))
        return err_set(f->e, ERR_NOT_FOUND, "tensor %s is not in the model files", scale);
    rc = output_of(f->c, name, &at, f->e);
    return rc ? rc : add_part(f->c, at, part, t->dim, t->n_dims, expert != UINT32_MAX, f->e);
}

static int add_factors(struct convert *c, const char *config, size_t config_bytes, struct err *e) {
    float values[LIMIT_HEAD_DIM / 2];
    const char *name;
    uint32_t n, at;
    for (uint32_t i = 0; gguf_export_factors(config, config_bytes, c->h, i, &name, values, &n); i++) {
        float *own = malloc(n * sizeof *own);
        if (!own) return no_memory(e);
        memcpy(own, values, n * sizeof *own);
        int rc = output_of(c, name, &at, e);
        if (!rc) rc = add_part(c, at, (struct part){.values = own}, &(const uint64_t){n}, 1, false, e);
        if (rc) {
            free(own);
            return rc;
        }
    }
    return ERR_OK;
}

static void choose_types(struct convert *c, const struct recipe *r, const struct recipe_model *m) {
    for (uint32_t i = 0; i < c->n; i++) c->out[i].type = type_of(&c->out[i], r, m);
}

int convert_from_folder(const struct hparams *h, const char *config, size_t config_bytes, const struct tensors *t,
                        const struct recipe *r, struct convert **out, struct err *e) {
    struct convert *c = convert_new(t);
    struct err own;
    if (!c) return no_memory(e);
    c->h = h;
    c->arch = gguf_export_arch(h);
    int rc = c->arch ? ERR_OK : err_set(e, ERR_UNSUPPORTED, "GGUF has no architecture for this model");
    struct folder f = {c, e ? e : &own};
    if (!rc) rc = model_needs(h, 0, h->n_layers, add_need, &f);
    if (!rc) rc = add_factors(c, config, config_bytes, e);
    if (rc) {
        convert_free(c);
        return rc;
    }
    choose_types(c, r,
                 &(struct recipe_model){.n_layers = h->n_layers,
                                        .n_experts = h->n_experts,
                                        .tied_embedding = h->tied_embedding,
                                        .is_70b = h->n_layers == 80 && h->n_heads != h->n_kv_heads});
    *out = c;
    return ERR_OK;
}

// ---- From a GGUF file

static int add_tensor(struct convert *c, const struct tensor *t, struct err *e) {
    char name[LIMIT_TENSOR_NAME];
    uint32_t expert = UINT32_MAX, at;
    if (!gguf_names_from_hf(c->arch, t->name, name, &expert)) snprintf(name, sizeof name, "%s", t->name);
    int rc = output_of(c, name, &at, e);
    return rc ? rc : add_part(c, at, (struct part){.source = t}, t->dim, t->n_dims, expert != UINT32_MAX, e);
}

static int read_shape(struct convert *c, const struct gguf *g, struct recipe_model *m, struct err *e) {
    struct gguf_string arch = {"", 0};
    char key[128];
    uint32_t heads = 0, kv_heads = 0;
    int rc = gguf_get_string(g, "general.architecture", &arch, e);
    if (rc) return rc;
    snprintf(c->arch_text, sizeof c->arch_text, "%.*s", arch.len_bytes < 64 ? (int)arch.len_bytes : 0, arch.text);
    c->arch = c->arch_text;
    const struct {
        const char *key;
        uint32_t *out;
    } fields[] = {{"block_count", &m->n_layers},
                  {"expert_count", &m->n_experts},
                  {"attention.head_count", &heads},
                  {"attention.head_count_kv", &kv_heads}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        snprintf(key, sizeof key, "%s.%s", c->arch, fields[i].key);
        const struct gguf_value *v = gguf_find(g, key);
        // Architectures with layers of several kinds have lists here.
        if (v && v->type != GGUF_ARRAY && (rc = gguf_get_u32(g, key, 0, UINT32_MAX, fields[i].out, e))) return rc;
    }
    m->is_70b = m->n_layers == 80 && heads != kv_heads;
    return ERR_OK;
}

// What is no matrix stays as it is. A matrix of floats, or of the type that it shall have, needs no leave.
static int choose_gguf_types(struct convert *c, const struct recipe *r, const struct recipe_model *m, bool requantize,
                             struct err *e) {
    choose_types(c, r, m);
    for (uint32_t i = 0; i < c->n; i++) {
        struct gguf_file_tensor *t = &c->out[i];
        const enum dtype from = c->parts[i].list[0].source->type;
        const struct dtype_info *info = dtype_info(from);
        if (!dequant_knows(from) || (t->type == DT_F32 && r->type != DT_F32)) t->type = from;
        if (t->type != from && !info->is_float && !requantize)
            return err_set(e, ERR_USAGE,
                           "tensor %s is quantised already (%s); making it %s adds a second loss to the first: "
                           "--requantize does it all the same",
                           t->name, info->name, dtype_info(t->type)->name);
    }
    return ERR_OK;
}

int convert_from_gguf(const struct tensors *t, const struct recipe *r, bool requantize, struct convert **out,
                      struct err *e) {
    struct convert *c = convert_new(t);
    struct recipe_model m = {0};
    if (!c) return no_memory(e);
    int rc = read_shape(c, tensors_gguf(t), &m, e);
    for (uint32_t i = 0; i < tensors_count(t) && !rc; i++) rc = add_tensor(c, tensors_at(t, i), e);
    uint32_t unused;
    m.tied_embedding = !strmap_get(&c->names, "output.weight", strlen("output.weight"), &unused);
    if (!rc) rc = choose_gguf_types(c, r, &m, requantize, e);
    if (rc) {
        convert_free(c);
        return rc;
    }
    *out = c;
    return ERR_OK;
}

// ---- Rows

// Memory of one call. raw holds rows as the model's files have them.
struct rows {
    const struct convert *c;
    const struct part *part;
    uint64_t k, n;
    uint8_t *raw;
    float *x;
};

// Rows of one part, which lie one behind the other unless the file wants them in another order.
static int read_raw(const struct rows *r, uint64_t row, struct err *e) {
    const struct tensor *t = r->part->source;
    const uint64_t row_bytes = dtype_row_bytes(t->type, r->k);
    const struct hparams *h = r->c->h;
    if (!h || gguf_export_row(h, t->name, 1) == 1)
        return tensors_read(r->c->tensors, t, row * row_bytes, r->raw, r->n * row_bytes, e);
    int rc = ERR_OK;
    const bool is_vector = t->n_dims == 1; // of a bias the values are the rows
    const uint64_t step = is_vector ? dtype_info(t->type)->block_bytes : row_bytes, n = is_vector ? r->k : r->n;
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = tensors_read(r->c->tensors, t, gguf_export_row(h, t->name, row + i) * step, r->raw + i * step, step, e);
    return rc;
}

static int read_floats(const struct rows *r, uint64_t row, struct err *e) {
    const struct tensor *t = r->part->source, *s = r->part->scales;
    const uint64_t row_bytes = dtype_row_bytes(t->type, r->k);
    if (s) {
        const uint64_t want = (t->dim[0] + 127) / 128 * ((r->k + 127) / 128);
        if (!dtype_info(s->type)->is_float || s->bytes != want * dtype_info(s->type)->block_bytes)
            return err_set(e, ERR_FORMAT, "tensor %s: no scale for each 128 x 128 values", s->name);
        dequant_f8_rows(r->raw, row, r->n, r->k, s->type, s->data, r->x);
    } else {
        for (uint64_t i = 0; i < r->n; i++) dequant_row(t->type, r->raw + i * row_bytes, r->k, r->x + i * r->k);
    }
    if (r->c->h && gguf_export_adds_one(r->c->h, t->name))
        for (uint64_t i = 0; i < r->n * r->k; i++) r->x[i] += 1.0f;
    return ERR_OK;
}

static int convert_rows(const struct rows *r, uint64_t row, enum dtype to, uint8_t *dst, struct err *e) {
    const struct tensor *t = r->part->source;
    const uint64_t row_bytes = dtype_row_bytes(t->type, r->k);
    int rc = read_raw(r, row, e);
    if (rc) return rc;
    for (uint64_t i = 0; i < r->n; i++)
        if (!dtype_row_is_finite(t->type, r->raw + i * row_bytes, r->k))
            return err_set(e, ERR_FORMAT, "NaN or Inf in row %llu", (unsigned long long)(row + i));
    if (to == t->type && !(r->c->h && gguf_export_adds_one(r->c->h, t->name))) {
        memcpy(dst, r->raw, r->n * row_bytes);
        return ERR_OK;
    }
    rc = read_floats(r, row, e);
    if (rc) return rc;
    return dtype_info(to)->is_float ? floats_from_f32(to, r->x, r->n * r->k, dst, e)
                                    : quantize_rows(DT_F32, r->x, r->n, r->k, to, dst, e);
}

static const struct part *part_of(const struct parts *p, uint64_t row) {
    uint32_t lo = 0, hi = p->n;
    while (hi - lo > 1) {
        const uint32_t mid = (lo + hi) / 2;
        if (p->list[mid].row <= row)
            lo = mid;
        else
            hi = mid;
    }
    return &p->list[lo];
}

static int make_rows(void *arg, uint32_t tensor, uint64_t row, uint64_t n, uint8_t *dst, struct err *e) {
    const struct convert *c = arg;
    const struct gguf_file_tensor *t = &c->out[tensor];
    const uint64_t k = t->dim[0], dst_row_bytes = dtype_row_bytes(t->type, k);
    uint64_t most = 0;
    for (uint32_t i = 0; i < c->parts[tensor].n; i++) {
        const struct tensor *s = c->parts[tensor].list[i].source;
        const uint64_t bytes = s ? dtype_row_bytes(s->type, k) : 0;
        most = bytes > most ? bytes : most;
    }
    struct rows r = {.c = c, .k = k, .raw = malloc(n * most + 1), .x = malloc(n * k * sizeof(float))};
    int rc = r.raw && r.x ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %llu rows", (unsigned long long)n);
    while (n && !rc) {
        r.part = part_of(&c->parts[tensor], row);
        const uint64_t left = r.part->row + r.part->n_rows - row;
        r.n = n < left ? n : left;
        if (r.part->values)
            memcpy(dst, r.part->values, k * sizeof(float));
        else
            rc = convert_rows(&r, row - r.part->row, t->type, dst, e);
        row += r.n;
        n -= r.n;
        dst += r.n * dst_row_bytes;
    }
    free(r.raw);
    free(r.x);
    return rc ? err_prefix(e, "tensor %s", t->name) : ERR_OK;
}

void convert_fill(struct convert *c, struct gguf_file *f) {
    f->tensors = c->out;
    f->n_tensors = c->n;
    f->rows = make_rows;
    f->arg = c;
}
