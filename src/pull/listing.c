#include "pull/listing.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PART_BYTES = 240 }; // of 255 that a file system allows: our own suffixes come behind it
#define MAX_BYTES ((json_int_t)1 << LISTING_MAX_BYTES_LOG2)

void listing_fini(struct listing *l) {
    for (uint32_t i = 0; i < l->n; i++) free(l->files[i].path);
    free(l->files);
    *l = (struct listing){0};
}

int listing_check_path(const char *path, struct err *e) {
    const char *why = NULL;
    if (!path[0] || strlen(path) >= LIMIT_PULL_PATH) why = "is empty or too long";
    for (const char *s = path; *s && !why; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f || *s == '\\') why = "has a backslash or a control character";
    for (const char *part = path; part && !why;) {
        const char *slash = strchr(part, '/');
        size_t n = slash ? (size_t)(slash - part) : strlen(part);
        if (!n || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            why = "leads out of its folder, or has an empty part";
        else if (n > MAX_PART_BYTES)
            why = "has a part that is too long";
        part = slash ? slash + 1 : NULL;
    }
    // The folder of our own state, however a file system may write it.
    if (!why && !strncasecmp(path, ".loom-pull", 10) && (!path[10] || path[10] == '/')) why = "is reserved";
    if (why) return err_set(e, ERR_FORMAT, "the listing: the path '%.200s' %s", path, why);
    return ERR_OK;
}

static int add(struct listing *l, const char *path, json_int_t size, const struct digest *d, struct err *e) {
    int rc = listing_check_path(path, e);
    if (rc) return rc;
    if (size < 0 || size > MAX_BYTES)
        return err_set(e, ERR_FORMAT, "the listing: %.200s: a size of %lld bytes", path, (long long)size);
    if (l->n == LIMIT_PULL_FILES) return err_set(e, ERR_LIMIT, "the listing: more than %d files", LIMIT_PULL_FILES);
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? 2 * l->cap : 64;
        struct listing_file *more = realloc(l->files, cap * sizeof *more);
        if (!more) return err_set(e, ERR_NOMEM, "the listing: no memory");
        l->files = more;
        l->cap = cap;
    }
    char *copy = strdup(path);
    if (!copy) return err_set(e, ERR_NOMEM, "the listing: no memory");
    l->files[l->n++] = (struct listing_file){.path = copy, .size_bytes = (uint64_t)size, .digest = *d};
    return ERR_OK;
}

// A file's hash: absent, null and "" say nothing; anything else has to be one.
static int take_digest(struct digest *d, enum digest_kind kind, const json_t *v, const char *path, struct err *e) {
    *d = (struct digest){.kind = DIGEST_NONE};
    const char *hex = json_string_value(v);
    if (!v || json_is_null(v) || (hex && !hex[0])) return ERR_OK;
    if (hex && digest_parse(d, kind, hex)) return ERR_OK;
    return err_set(e, ERR_FORMAT, "the listing: %.200s: its hash is not one", path);
}

static int add_hf_file(struct listing *l, const json_t *v, struct err *e) {
    const char *type = json_string_value(json_object_get(v, "type"));
    const char *path = json_string_value(json_object_get(v, "path"));
    const json_t *size = json_object_get(v, "size"), *lfs = json_object_get(v, "lfs");
    struct digest d;
    if (!type || !path) return err_set(e, ERR_FORMAT, "the listing: an entry without type or path");
    if (strcmp(type, "file") != 0) return ERR_OK; // a folder: its files have entries of their own
    int rc;
    if (json_is_object(lfs)) {
        rc = take_digest(&d, DIGEST_SHA256, json_object_get(lfs, "oid"), path, e);
        if (json_object_get(lfs, "size")) size = json_object_get(lfs, "size"); // the other may be the pointer's
    } else {
        rc = take_digest(&d, DIGEST_GIT_SHA1, json_object_get(v, "oid"), path, e);
    }
    if (!rc && !json_is_integer(size)) rc = err_set(e, ERR_FORMAT, "the listing: %.200s: has no size", path);
    return rc ? rc : add(l, path, json_integer_value(size), &d, e);
}

static json_t *parse(const char *json, size_t len, struct err *e) {
    json_error_t je;
    json_t *root = json_loadb(json, len, 0, &je);
    if (!root) err_write(e, ERR_FORMAT, "the listing: not JSON (line %d: %.100s)", je.line, je.text);
    return root;
}

int listing_add_hf(struct listing *l, const char *json, size_t len_bytes, struct err *e) {
    size_t i;
    json_t *v, *root = parse(json, len_bytes, e);
    if (!root) return ERR_FORMAT;
    int rc = json_is_array(root) ? ERR_OK : err_set(e, ERR_FORMAT, "the listing: not an array of files");
    json_array_foreach(root, i, v) {
        if (rc) break;
        rc = add_hf_file(l, v, e);
    }
    json_decref(root);
    return rc;
}

static int add_modelscope_file(struct listing *l, const json_t *v, struct err *e) {
    const char *type = json_string_value(json_object_get(v, "Type"));
    const char *path = json_string_value(json_object_get(v, "Path"));
    const json_t *size = json_object_get(v, "Size");
    struct digest d;
    if (!type || !path) return err_set(e, ERR_FORMAT, "the listing: an entry without Type or Path");
    if (strcmp(type, "blob") != 0) return ERR_OK;
    if (!json_is_integer(size)) return err_set(e, ERR_FORMAT, "the listing: %.200s: has no Size", path);
    int rc = take_digest(&d, DIGEST_SHA256, json_object_get(v, "Sha256"), path, e);
    return rc ? rc : add(l, path, json_integer_value(size), &d, e);
}

int listing_add_modelscope(struct listing *l, const char *json, size_t len_bytes, struct err *e) {
    size_t i;
    json_t *v, *root = parse(json, len_bytes, e);
    if (!root) return ERR_FORMAT;
    const json_t *files = json_object_get(json_object_get(root, "Data"), "Files");
    int rc = json_is_array(files) ? ERR_OK : err_set(e, ERR_FORMAT, "the listing: no Data.Files in it");
    json_array_foreach(files, i, v) {
        if (rc) break;
        rc = add_modelscope_file(l, v, e);
    }
    json_decref(root);
    return rc;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const struct listing_file *)a)->path, ((const struct listing_file *)b)->path);
}

int listing_finish(struct listing *l, struct err *e) {
    uint64_t sum = 0;
    if (l->n) qsort(l->files, l->n, sizeof *l->files, by_path);
    for (uint32_t i = 0; i < l->n; i++) {
        if (i && !strcmp(l->files[i].path, l->files[i - 1].path))
            return err_set(e, ERR_FORMAT, "the listing: %.200s: comes twice", l->files[i].path);
        sum += l->files[i].size_bytes;
        if (sum > (uint64_t)MAX_BYTES) return err_set(e, ERR_LIMIT, "the listing: its files have too many bytes");
    }
    return ERR_OK;
}

static bool is_plain(const char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) return false;
    return true;
}

void listing_string(const char *json, size_t len_bytes, const char *key, char *out, size_t out_bytes) {
    json_t *root = json_loadb(json, len_bytes, 0, NULL);
    const char *s = json_string_value(json_object_get(root, key));
    snprintf(out, out_bytes, "%s", s && is_plain(s) ? s : "");
    json_decref(root);
}

void listing_ids(const char *json, size_t len_bytes, char *out, size_t out_bytes) {
    size_t i, at = 0;
    json_t *v, *root = json_loadb(json, len_bytes, 0, NULL);
    out[0] = 0;
    json_array_foreach(root, i, v) {
        const char *id = json_string_value(json_object_get(v, "id"));
        if (!id || !is_plain(id) || at + strlen(id) + 3 > out_bytes) continue;
        at += (size_t)snprintf(out + at, out_bytes - at, "%s%s", at ? ", " : "", id);
    }
    json_decref(root);
}
