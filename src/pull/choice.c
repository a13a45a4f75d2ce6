#include "pull/choice.h"

#include "base/text.h"
#include "pull/quant.h"
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LIST_BYTES = 340, NEAR_NAME_BYTES = 96 };

void choice_size_text(uint64_t bytes, char *out, size_t out_bytes) {
    static const char *const units[] = {"bytes", "KB", "MB", "GB", "TB", "PB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 999.95 && u + 1 < sizeof units / sizeof units[0]) {
        v /= 1000;
        u++;
    }
    snprintf(out, out_bytes, u ? "%.1f %s" : "%.0f %s", v, units[u]);
}

void choice_fini(struct choice *c) {
    free(c->files);
    *c = (struct choice){0};
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// "Q4_K_M 4.9 GB, Q8_0 8.7 GB, ..." of the models, or those whose label is `only`: then with their paths.
static void list_models(const struct listing *l, const struct quant_models *m, const char *only, char out[LIST_BYTES]) {
    char size[24], item[300];
    size_t at = 0;
    uint32_t left = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        const struct quant_model *q = &m->models[i];
        if (only && strcasecmp(q->label, only) != 0) continue;
        choice_size_text(q->size_bytes, size, sizeof size);
        const char *name = only ? l->files[m->files[q->first]].path : q->label;
        int n = snprintf(item, sizeof item, "%s%.200s %s", at ? ", " : "", name, size);
        if (left || at + (size_t)n + 16 > LIST_BYTES) // room for "and N more"
            left++;
        else
            at += (size_t)snprintf(out + at, LIST_BYTES - at, "%s", item);
    }
    if (left) snprintf(out + at, LIST_BYTES - at, " and %u more", left);
}

static int take_model(const struct listing *l, const struct quant_models *m, const struct quant_model *q,
                      struct choice *c, struct err *e) {
    const char *first = l->files[m->files[q->first]].path;
    if (q->n != q->shards)
        return err_set(e, ERR_FORMAT, "%.300s: the listing has %u of its %u shards", first, q->n, q->shards);
    for (uint32_t i = 0; i < q->n; i++) c->files[c->n++] = m->files[q->first + i];
    c->opened = first;
    return ERR_OK;
}

// The models of this type. A plain Q4_K_M means that one, and only where there is none, the UD-Q4_K_M.
static uint32_t find_type(const struct quant_models *m, const char *type, const struct quant_model **found) {
    uint32_t n = 0;
    for (int ud = 0; ud < 2 && !n; ud++) {
        for (uint32_t i = 0; i < m->n; i++) {
            const char *label = m->models[i].label;
            if (ud && strncmp(label, "UD-", 3) != 0) continue;
            if (strcasecmp(label + 3 * ud, type) != 0) continue;
            if (!n++) *found = &m->models[i];
        }
    }
    return n;
}

// Levenshtein's distance without regard to case, of the first NEAR_NAME_BYTES.
static uint32_t distance(const char *a, const char *b) {
    uint32_t row[NEAR_NAME_BYTES + 1], na = (uint32_t)strnlen(a, NEAR_NAME_BYTES),
                                       nb = (uint32_t)strnlen(b, NEAR_NAME_BYTES);
    for (uint32_t j = 0; j <= nb; j++) row[j] = j;
    for (uint32_t i = 1; i <= na; i++) {
        uint32_t corner = row[0];
        row[0] = i;
        for (uint32_t j = 1; j <= nb; j++) {
            uint32_t best = corner + (strncasecmp(&a[i - 1], &b[j - 1], 1) != 0);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

static int not_found(const struct listing *l, const struct quant_models *m, const char *repo, const char *file,
                     struct err *e) {
    enum { NEAR = 3 };
    char list[LIST_BYTES];
    uint32_t near[NEAR] = {0}, far[NEAR], n = 0;
    if (m->n) {
        list_models(l, m, NULL, list);
        return err_set(e, ERR_NOT_FOUND, "%.90s: has no '%.60s'; it has %s", repo, file, list);
    }
    if (quant_is_type(file))
        return err_set(e, ERR_NOT_FOUND,
                       "%.90s: has no GGUF files, and so no '%.60s'; without ':%.60s' its safetensors are fetched",
                       repo, file, file);
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t d = distance(file, l->files[i].path), at = n;
        while (at && d < far[at - 1]) at--;
        if (at == NEAR) continue;
        if (n < NEAR) n++;
        for (uint32_t k = n - 1; k > at; k--) {
            far[k] = far[k - 1];
            near[k] = near[k - 1];
        }
        far[at] = d;
        near[at] = i;
    }
    size_t at = 0;
    list[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%.100s", i ? ", " : "", l->files[near[i]].path);
    return err_set(e, ERR_NOT_FOUND, "%.90s: has no '%.60s'; near it: %s", repo, file, n ? list : "nothing");
}

static int choose_named(const struct listing *l, const struct quant_models *m, const char *repo, const char *file,
                        struct choice *c, struct err *e) {
    char list[LIST_BYTES];
    const struct quant_model *q = NULL;
    // A path: with a shard of a GGUF file come the others, which it is worth nothing without.
    for (uint32_t i = 0; i < m->n; i++)
        for (uint32_t k = 0; k < m->models[i].n; k++)
            if (!strcmp(l->files[m->files[m->models[i].first + k]].path, file))
                return take_model(l, m, &m->models[i], c, e);
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(l->files[i].path, file)) c->files[c->n++] = i;
    if (c->n) return ERR_OK;
    if (strpbrk(file, "*?[")) {
        for (uint32_t i = 0; i < l->n; i++)
            if (!fnmatch(file, l->files[i].path, 0) || !fnmatch(file, name_of(l->files[i].path), 0))
                c->files[c->n++] = i;
        return c->n ? ERR_OK : not_found(l, m, repo, file, e);
    }
    uint32_t n = find_type(m, file, &q);
    if (n == 1) return take_model(l, m, q, c, e);
    if (n > 1) {
        list_models(l, m, q->label, list);
        return err_set(e, ERR_USAGE, "%.90s: %u models are %.40s: name the file: %s", repo, n, file, list);
    }
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(name_of(l->files[i].path), file)) c->files[c->n++] = i;
    if (c->n == 1) return ERR_OK;
    c->n = 0;
    return not_found(l, m, repo, file, e);
}

// Of a folder with safetensors: what Loom reads, and nothing twice.
static bool is_needed(const char *path, bool has_model, bool has_index) {
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.json",
                                        "chat_template.jinja"};
    if (text_begins(path, "additional_chat_templates/")) return text_ends(path, ".jinja");
    if (strchr(path, '/')) return false; // other formats, or the original weights once more
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(path, names[i])) return true;
    if (text_ends(path, ".safetensors.index.json")) return !has_model || text_begins(path, "model.");
    if (!text_ends(path, ".safetensors")) return false;
    if (has_index && !strcmp(path, "model.safetensors")) return false;
    return has_model ? text_begins(path, "model") : !text_begins(path, "adapter");
}

static bool choose_folder(const struct listing *l, struct choice *c) {
    bool has_model = false, has_index = false, has_shard = false, has_weights = false;
    for (uint32_t i = 0; i < l->n; i++) {
        const char *p = l->files[i].path;
        if (strchr(p, '/')) continue;
        has_index |= !strcmp(p, "model.safetensors.index.json");
        if (!text_ends(p, ".safetensors") || text_begins(p, "adapter")) continue;
        has_weights = true;
        has_model |= text_begins(p, "model");
        has_shard |= text_begins(p, "model-");
    }
    if (!has_weights) return false;
    for (uint32_t i = 0; i < l->n; i++)
        if (is_needed(l->files[i].path, has_model, has_index && has_shard)) c->files[c->n++] = i;
    return true;
}

static int choose_needed(const struct listing *l, const struct quant_models *m, const char *repo, struct choice *c,
                         struct err *e) {
    char list[LIST_BYTES];
    if (choose_folder(l, c)) return ERR_OK;
    if (m->n == 1) return take_model(l, m, &m->models[0], c, e);
    if (!m->n)
        return err_set(e, ERR_UNSUPPORTED,
                       "%.200s: has neither .safetensors nor .gguf files, and Loom reads nothing else", repo);
    list_models(l, m, NULL, list);
    return err_set(e, ERR_USAGE, "%.90s: say which one, as in %.90s:%.40s; it has %s", repo, repo, m->models[0].label,
                   list);
}

static int by_size(const void *a, const void *b, void *arg) {
    const struct listing *l = arg;
    uint32_t ia = *(const uint32_t *)a, ib = *(const uint32_t *)b;
    bool big_a = l->files[ia].size_bytes >= 64 << 20, big_b = l->files[ib].size_bytes >= 64 << 20;
    return big_a != big_b ? (big_a ? 1 : -1) : (ia > ib) - (ia < ib);
}

int choice_make(const struct listing *l, const char *repo, const char *file, struct choice *c, struct err *e) {
    struct quant_models m;
    int rc = quant_models(l, &m, e);
    if (rc) return rc;
    *c = (struct choice){.files = calloc(l->n + 1u, sizeof *c->files)};
    if (!c->files) rc = err_set(e, ERR_NOMEM, "the listing: no memory");
    if (!rc) rc = file ? choose_named(l, &m, repo, file, c, e) : choose_needed(l, &m, repo, c, e);
    // What is wrong shows sooner with the small ones first.
    if (!rc && c->n) qsort_r(c->files, c->n, sizeof *c->files, by_size, (void *)(uintptr_t)l);
    if (!rc && c->n == 1 && !c->opened && text_ends(l->files[c->files[0]].path, ".gguf"))
        c->opened = l->files[c->files[0]].path;
    quant_models_fini(&m);
    if (rc) choice_fini(c);
    return rc;
}
