// The tensors of GGUF files. Offsets count from the start of the data of their file. A model that was split lies in
// files "name-00001-of-00003.gguf", each a GGUF file of its own whose split.no counts from 0; the metadata is in the
// first one, which may have no tensors.
#include "weights/collection.h"

#include "weights/gguf_names.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct span {
    uint64_t begin, end; // of the data
    const struct gguf_tensor *tensor;
};

// A file of which the tensors are added.
struct source {
    const struct gguf *gguf;
    const uint8_t *data;
    uint64_t bytes;
    uint64_t n_tensors;
    char arch[64]; // of the first file; "": none
};

static int in_file(const struct gguf_tensor *g, const char *what, struct err *e) {
    return err_set(e, ERR_FORMAT, "tensor %.*s: %s", (int)g->name.len_bytes, g->name.text, what);
}

// Type, shape (outermost first here) and size.
static int read_shape(const struct gguf_tensor *g, struct tensor *t, struct err *e) {
    int type = dtype_from_gguf(g->type);
    if (type < 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor %.*s: type %s (%u) is not supported; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K "
                       "to Q6_K, IQ4_NL, IQ4_XS and L8 are",
                       (int)g->name.len_bytes, g->name.text, dtype_gguf_name(g->type), g->type);
    t->type = (enum dtype)type;
    t->n_dims = g->n_dims;
    const struct dtype_info *info = dtype_info(t->type);
    if (g->dim[0] % info->block_values && t->type != DT_L8) // which fills the last block of a row with zeros
        return err_set(e, ERR_FORMAT, "tensor %.*s: rows of %llu values; %s has blocks of %u", (int)g->name.len_bytes,
                       g->name.text, (unsigned long long)g->dim[0], info->name, info->block_values);
    const uint64_t blocks = g->dim[0] / info->block_values + (g->dim[0] % info->block_values > 0);
    bool over = __builtin_mul_overflow(blocks, (uint64_t)info->block_bytes, &t->bytes);
    for (uint32_t i = 0; i < g->n_dims; i++) {
        if (g->dim[i] == 0) return in_file(g, "a dimension is 0", e);
        t->dim[g->n_dims - 1 - i] = g->dim[i];
        if (i > 0) over = over || __builtin_mul_overflow(t->bytes, g->dim[i], &t->bytes);
    }
    return over ? in_file(g, "the shape has more than 2^64 bytes", e) : ERR_OK;
}

static int place(const struct source *s, const struct gguf_tensor *g, struct tensor *t, struct span *span,
                 struct err *e) {
    memset(t, 0, sizeof *t);
    int rc = read_shape(g, t, e);
    if (rc) return rc;
    const uint64_t room = s->bytes - gguf_data_offset(s->gguf);
    if (g->offset > room || t->bytes > room - g->offset)
        return err_set(e, ERR_FORMAT, "tensor %.*s: its %llu bytes from offset %llu are not inside the %llu of data",
                       (int)g->name.len_bytes, g->name.text, (unsigned long long)t->bytes,
                       (unsigned long long)g->offset, (unsigned long long)room);
    if (g->offset % gguf_alignment(s->gguf))
        return err_set(e, ERR_FORMAT, "tensor %.*s: offset %llu is not a multiple of the alignment %u",
                       (int)g->name.len_bytes, g->name.text, (unsigned long long)g->offset, gguf_alignment(s->gguf));
    t->data = s->data + gguf_data_offset(s->gguf) + g->offset;
    *span = (struct span){g->offset, g->offset + t->bytes, g};
    return ERR_OK;
}

static int span_compare(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int check_overlap(struct span *s, uint64_t n, struct err *e) {
    if (n) qsort(s, n, sizeof *s, span_compare);
    for (uint64_t i = 1; i < n; i++)
        if (s[i].begin < s[i - 1].end)
            return err_set(e, ERR_FORMAT, "tensor %.*s: its data overlaps that of tensor %.*s",
                           (int)s[i].tensor->name.len_bytes, s[i].tensor->name.text,
                           (int)s[i - 1].tensor->name.len_bytes, s[i - 1].tensor->name.text);
    return ERR_OK;
}

// Under the name that the file has.
static int add_failed(int rc, const char *own_name, struct err *e) {
    return rc == ERR_FORMAT ? err_set(e, rc, "tensor %s: there twice; names are unique in a model", own_name) : rc;
}

// One matrix for each expert out of their stack. pattern has "%u" for the number.
static int add_stack(struct tensors *t, const struct tensor *stack, const char *own_name, const char *pattern,
                     struct err *e) {
    if (stack->n_dims < 2 || stack->dim[0] > LIMIT_EXPERTS)
        return err_set(e, ERR_FORMAT, "tensor %s: not a stack of at most %d experts", own_name, LIMIT_EXPERTS);
    const char *hole = strstr(pattern, "%u");
    ASSERT(hole, "%s", pattern);
    struct tensor one = *stack;
    one.n_dims--;
    for (uint32_t i = 0; i < one.n_dims; i++) one.dim[i] = stack->dim[i + 1];
    one.bytes = stack->bytes / stack->dim[0];
    for (uint64_t x = 0; x < stack->dim[0]; x++) {
        char name[LIMIT_TENSOR_NAME + 16];
        snprintf(name, sizeof name, "%.*s%u%s", (int)(hole - pattern), pattern, (unsigned)x, hole + 2);
        one.name = name;
        one.data = stack->data + x * one.bytes;
        int rc = tensors_add(t, &one, e);
        if (rc) return add_failed(rc, own_name, e);
    }
    return ERR_OK;
}

static int add_one(struct tensors *t, const struct source *s, uint64_t i, struct span *span, struct err *e) {
    const struct gguf_tensor *g = gguf_tensor_at(s->gguf, i);
    struct tensor one;
    char own[LIMIT_TENSOR_NAME], name[LIMIT_TENSOR_NAME];
    bool is_stack = false;
    int rc = place(s, g, &one, span, e);
    if (rc) return rc;
    snprintf(own, sizeof own, "%.*s", (int)g->name.len_bytes, g->name.text);
    bool known = gguf_names_to_hf(s->arch, own, name, &is_stack);
    one.name = known ? name : own;
    if (known && is_stack) return add_stack(t, &one, own, name, e);
    rc = tensors_add(t, &one, e);
    return rc ? add_failed(rc, own, e) : ERR_OK;
}

static int add_all(struct tensors *t, const struct source *s, struct err *e) {
    const uint64_t n = gguf_n_tensors(s->gguf);
    struct span *spans = calloc(n + 1, sizeof *spans);
    if (!spans) return err_set(e, ERR_NOMEM, "no memory for a list of %llu tensors", (unsigned long long)n);
    int rc = ERR_OK;
    for (uint64_t i = 0; i < n && !rc; i++) rc = add_one(t, s, i, &spans[i], e);
    if (!rc) rc = check_overlap(spans, n, e);
    free(spans);
    return rc;
}

static int read_arch(struct source *s, struct err *e) {
    struct gguf_string arch = {"", 0};
    int rc = gguf_get_string(s->gguf, "general.architecture", &arch, e);
    if (!rc) snprintf(s->arch, sizeof s->arch, "%.*s", arch.len_bytes < 64 ? (int)arch.len_bytes : 63, arch.text);
    return rc;
}

// What a file says of the split that it belongs to.
struct split {
    uint32_t no, count, n_tensors; // count 0: it was not split
};

static int read_split(const struct gguf *g, struct split *s, struct err *e) {
    *s = (struct split){0, 0, UINT32_MAX};
    int rc = gguf_get_u32(g, "split.count", 0, LIMIT_SHARDS, &s->count, e);
    if (!rc) rc = gguf_get_u32(g, "split.no", 0, LIMIT_SHARDS - 1, &s->no, e);
    if (!rc) rc = gguf_get_u32(g, "split.tensors.count", 0, LIMIT_TENSORS, &s->n_tensors, e);
    if (!rc && s->no >= (s->count ? s->count : 1))
        rc = err_set(e, ERR_FORMAT, "split.no is %u of %u files; they count from 0", s->no, s->count);
    return rc;
}

// "name-00002-of-00003.gguf": the numbers, and how long the name before them is; false: not named so.
static bool read_file_name(const char *path, uint32_t *number, uint32_t *count, int *prefix_len) {
    enum { TAIL = sizeof "-00001-of-00001.gguf" - 1, NUMBER = 1, COUNT = sizeof "-00001-of-" - 1 };
    const size_t len = strlen(path);
    char tail[TAIL + 1];
    if (len <= TAIL) return false;
    const char *have = path + len - TAIL;
    *number = (uint32_t)strtoul(have + NUMBER, NULL, 10);
    *count = (uint32_t)strtoul(have + COUNT, NULL, 10);
    *prefix_len = (int)(len - TAIL);
    // Whether there were numbers at all is seen when they are written again.
    return snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", *number, *count) == TAIL && strcmp(have, tail) == 0;
}

bool tensors_file_name(const char *path, uint32_t i, char out[LIMIT_PATH]) {
    uint32_t number, count;
    int prefix;
    if (!read_file_name(path, &number, &count, &prefix))
        return i == 0 && snprintf(out, LIMIT_PATH, "%s", path) < LIMIT_PATH;
    if (i >= count || count > LIMIT_SHARDS) return false;
    return snprintf(out, LIMIT_PATH, "%.*s-%05u-of-%05u.gguf", prefix, path, i + 1, count) < LIMIT_PATH;
}

static int check_file_name(const char *path, const struct split *s, struct err *e) {
    uint32_t number, count;
    int prefix;
    if (read_file_name(path, &number, &count, &prefix) && number == s->no + 1 && count == s->count) return ERR_OK;
    return err_set(e, ERR_FORMAT,
                   "%s: split.no says that it is file %u of %u, which is named \"...-%05u-of-%05u.gguf\": give the "
                   "files their names back",
                   path, s->no + 1, s->count, s->no + 1, s->count);
}

static int check_shard(const struct split *want, const struct split *have, struct err *e) {
    if (have->no != want->no || have->count != want->count)
        return err_set(e, ERR_FORMAT, "split.no, split.count are %u, %u; %u, %u are right here", have->no, have->count,
                       want->no, want->count);
    if (have->n_tensors != UINT32_MAX && want->n_tensors != UINT32_MAX && have->n_tensors != want->n_tensors)
        return err_set(e, ERR_FORMAT, "split.tensors.count is %u, but %u in another file of the split", have->n_tensors,
                       want->n_tensors);
    return ERR_OK;
}

static int add_shard(struct tensors *t, const struct split *want, struct source *s, const struct file_map *map,
                     struct err *e) {
    struct gguf *g;
    struct split have;
    int rc = gguf_new(map->data, map->len_bytes, &g, e);
    if (rc) return rc;
    s->gguf = g;
    s->data = map->data;
    s->bytes = map->len_bytes;
    s->n_tensors = gguf_n_tensors(g);
    rc = read_split(g, &have, e);
    if (!rc) rc = check_shard(want, &have, e);
    if (!rc && want->no == 0) rc = read_arch(s, e);
    if (!rc) rc = add_all(t, s, e);
    if (want->no == 0)
        t->gguf = g;
    else
        gguf_free(g);
    return rc;
}

static int open_split(struct tensors *t, const char *path, const struct file_map *given, const struct split *split,
                      struct err *e) {
    uint64_t n_tensors = 0;
    struct source s = {0};
    int rc = check_file_name(path, split, e);
    for (uint32_t i = 0; i < split->count && !rc; i++) {
        char shard[LIMIT_PATH];
        const struct split want = {i, split->count, split->n_tensors};
        const struct file_map *map = given;
        if (!tensors_file_name(path, i, shard)) return err_set(e, ERR_LIMIT, "%s: the path is too long", path);
        if (i != split->no && !file_exists(shard))
            return err_set(e, ERR_NOT_FOUND, "%s: file %u of the %u that the model was split into is missing", shard,
                           i + 1, split->count);
        if (i != split->no) rc = tensors_map_file(t, shard, &map, e);
        if (rc) return rc;
        rc = add_shard(t, &want, &s, map, e);
        if (rc) return err_prefix(e, "%s", shard);
        n_tensors += s.n_tensors;
    }
    if (!rc && split->n_tensors != UINT32_MAX && n_tensors != split->n_tensors)
        rc = err_set(e, ERR_FORMAT, "%s: split.tensors.count is %u, but the %u files have %llu tensors", path,
                     split->n_tensors, split->count, (unsigned long long)n_tensors);
    return rc;
}

int gguf_open_file(struct tensors *t, const char *path, const struct file_map *map, struct err *e) {
    struct gguf *g;
    struct split split;
    int rc = gguf_new(map->data, map->len_bytes, &g, e);
    if (rc) return err_prefix(e, "%s", path);
    rc = read_split(g, &split, e);
    gguf_free(g);
    if (rc) return err_prefix(e, "%s", path);
    if (split.count > 1) return open_split(t, path, map, &split, e);
    struct source s = {0};
    rc = add_shard(t, &split, &s, map, e);
    return rc ? err_prefix(e, "%s", path) : ERR_OK;
}

int gguf_open_memory(struct tensors *t, const uint8_t *data, uint64_t bytes, struct err *e) {
    struct gguf *g;
    struct split split;
    int rc = gguf_new(data, bytes, &g, e);
    if (rc) return rc;
    rc = read_split(g, &split, e);
    gguf_free(g);
    if (rc) return rc;
    if (split.count > 1)
        return err_set(e, ERR_UNSUPPORTED, "one of %u files of a split model; the others are not in memory",
                       split.count);
    struct source s = {0};
    return add_shard(t, &split, &s, &(struct file_map){data, bytes}, e);
}
