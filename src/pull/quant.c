#include "pull/quant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// A path taken apart: stem [0, stem_len) without ".gguf" and without "-00001-of-00003".
struct shard {
    size_t stem_len;
    uint32_t index, count; // of a split file, from 1; 0 of 0: not split
};

static bool five_digits(const char *s, uint32_t *v) {
    *v = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *v = *v * 10 + (uint32_t)(s[i] - '0');
    }
    return true;
}

static bool take_apart(const char *path, struct shard *s) {
    static const char suffix[] = ".gguf";
    enum { SUFFIX = sizeof suffix - 1, SPLIT = 15 }; // "-00001-of-00003"
    size_t n = strlen(path);
    *s = (struct shard){0};
    if (n <= SUFFIX || strcasecmp(path + n - SUFFIX, suffix) != 0) return false;
    s->stem_len = n - SUFFIX;
    if (s->stem_len <= SPLIT) return true;
    const char *tail = path + s->stem_len - SPLIT;
    uint32_t index, count;
    if (tail[0] != '-' || strncmp(tail + 6, "-of-", 4) != 0 || !five_digits(tail + 1, &index) ||
        !five_digits(tail + 10, &count) || !index || index > count)
        return true;
    *s = (struct shard){s->stem_len - SPLIT, index, count};
    return true;
}

static bool is_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

// How many bytes of s are the name of a type: the word (letters, digits, '_') that begins there has to be one.
static size_t type_len(const char *s, size_t len) {
    static const char *const whole[] = {"F16", "BF16", "F32", "FP16", "FP32", "MXFP4", "MXFP4_MOE", "NVFP4", "L8"};
    size_t n = 0, at = 0;
    while (n < len && is_word(s[n])) n++;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (strlen(whole[i]) == n && !strncasecmp(s, whole[i], n)) return n;
    if (n && (s[0] == 'I' || s[0] == 'i' || s[0] == 'T' || s[0] == 't')) at = 1;
    if (at + 2 > n || (s[at] != 'Q' && s[at] != 'q') || s[at + 1] < '1' || s[at + 1] > '8') return 0;
    return at + 2 == n || s[at + 2] == '_' ? n : 0;
}

bool quant_is_type(const char *s) {
    if (!strncasecmp(s, "UD-", 3)) s += 3;
    return s[0] && type_len(s, strlen(s)) == strlen(s);
}

// The last type that the name holds, with a "UD-" in front of it.
static bool find_label(const char *name, size_t len, char out[QUANT_LABEL_BYTES]) {
    size_t begin = 0, n = 0;
    for (size_t i = 0; i < len; i++) {
        if (i && is_word(name[i - 1]) && name[i - 1] != '_') continue;
        size_t k = type_len(name + i, len - i);
        if (!k || i < begin + n) continue; // a part of the one found before, as F16 could be of Q8_F16
        begin = i;
        n = k;
    }
    if (!n || n + 4 > QUANT_LABEL_BYTES) return false;
    if (begin >= 3 && !strncasecmp(name + begin - 3, "UD-", 3) && (begin == 3 || !is_word(name[begin - 4]))) {
        begin -= 3;
        n += 3;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = name[begin + i] >= 'a' && name[begin + i] <= 'z' ? name[begin + i] - 32 : name[begin + i];
    out[n] = 0;
    return true;
}

static const char *base_of(const char *path, size_t len) {
    while (len && path[len - 1] != '/') len--;
    return path + len;
}

void quant_label(const char *path, char out[QUANT_LABEL_BYTES]) {
    struct shard s;
    size_t len = take_apart(path, &s) ? s.stem_len : strlen(path);
    const char *base = base_of(path, len);
    size_t base_len = len - (size_t)(base - path);
    if (find_label(base, base_len, out)) return;
    if (base > path) {
        const char *folder = base_of(path, (size_t)(base - path) - 1);
        if (find_label(folder, (size_t)(base - folder) - 1, out)) return;
    }
    snprintf(out, QUANT_LABEL_BYTES, "%.*s", base_len < QUANT_LABEL_BYTES ? (int)base_len : QUANT_LABEL_BYTES - 1,
             base);
}

static bool is_model(const char *path) {
    struct shard s;
    if (!take_apart(path, &s)) return false;
    const char *base = base_of(path, strlen(path));
    return !strcasestr(base, "mmproj") && !strcasestr(base, "imatrix");
}

// Shards of one model are neighbours in this order.
static int by_model(const void *a, const void *b, void *arg) {
    const struct listing *l = arg;
    const char *pa = l->files[*(const uint32_t *)a].path, *pb = l->files[*(const uint32_t *)b].path;
    struct shard sa, sb;
    take_apart(pa, &sa);
    take_apart(pb, &sb);
    size_t n = sa.stem_len < sb.stem_len ? sa.stem_len : sb.stem_len;
    int order = memcmp(pa, pb, n);
    if (order) return order;
    if (sa.stem_len != sb.stem_len) return sa.stem_len < sb.stem_len ? -1 : 1;
    if (sa.count != sb.count) return sa.count < sb.count ? -1 : 1;
    return sa.index < sb.index ? -1 : sa.index > sb.index;
}

static bool same_model(const char *a, const char *b) {
    struct shard sa, sb;
    take_apart(a, &sa);
    take_apart(b, &sb);
    return sa.count && sa.count == sb.count && sa.stem_len == sb.stem_len && !memcmp(a, b, sa.stem_len);
}

int quant_models(const struct listing *l, struct quant_models *out, struct err *e) {
    uint32_t n = 0;
    *out = (struct quant_models){.files = calloc(l->n + 1u, sizeof *out->files),
                                 .models = calloc(l->n + 1u, sizeof *out->models)};
    if (!out->files || !out->models) {
        quant_models_fini(out);
        return err_set(e, ERR_NOMEM, "the listing: no memory");
    }
    for (uint32_t i = 0; i < l->n; i++)
        if (is_model(l->files[i].path)) out->files[n++] = i;
    if (n) qsort_r(out->files, n, sizeof *out->files, by_model, (void *)(uintptr_t)l);
    for (uint32_t i = 0; i < n; i++) {
        const struct listing_file *f = &l->files[out->files[i]];
        if (!i || !same_model(l->files[out->files[i - 1]].path, f->path)) {
            struct shard s;
            take_apart(f->path, &s);
            struct quant_model *m = &out->models[out->n++];
            *m = (struct quant_model){.first = i, .shards = s.count ? s.count : 1};
            quant_label(f->path, m->label);
        }
        struct quant_model *m = &out->models[out->n - 1];
        m->n++;
        m->size_bytes += f->size_bytes;
    }
    return ERR_OK;
}

void quant_models_fini(struct quant_models *m) {
    free(m->files);
    free(m->models);
    *m = (struct quant_models){0};
}
