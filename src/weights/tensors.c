#include "weights/collection.h"

#include "base/limits.h"
#include "base/text.h"
#include "os/random.h"
#include "weights/gguf_names.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int tensors_new(struct tensors **t) {
    struct tensors *n = calloc(1, sizeof *n);
    if (!n) return ERR_NOMEM;
    strmap_init(&n->index, LIMIT_TENSORS, LIMIT_SAFETENSORS_HEADER, random_u64());
    *t = n;
    return ERR_OK;
}

void tensors_free(struct tensors *t) {
    if (!t) return;
    for (uint32_t i = 0; i < t->count; i++) free((char *)t->list[i].name);
    for (uint32_t i = 0; i < t->n_maps; i++) {
        file_map_close(&t->maps[i]);
        close(t->fds[i]);
    }
    gguf_free(t->gguf);
    strmap_fini(&t->index);
    free(t->fds);
    free(t->maps);
    free(t->list);
    free(t);
}

static int grow(struct tensors *t) {
    uint32_t cap = t->cap ? 2 * t->cap : 64;
    struct tensor *list = realloc(t->list, cap * sizeof *list);
    if (!list) return ERR_NOMEM;
    t->list = list;
    t->cap = cap;
    return ERR_OK;
}

int tensors_add(struct tensors *t, const struct tensor *one, struct err *e) {
    size_t len = strlen(one->name);
    uint32_t there;
    if (strmap_get(&t->index, one->name, len, &there))
        return err_set(e, ERR_FORMAT, "tensor %s: there twice; names are unique in a model", one->name);
    if (t->count == LIMIT_TENSORS) return err_set(e, ERR_LIMIT, "more than %d tensors", LIMIT_TENSORS);
    if (t->count == t->cap && grow(t)) return err_set(e, ERR_NOMEM, "no memory for the list of tensors");
    char *name = strdup(one->name);
    if (!name) return err_set(e, ERR_NOMEM, "no memory for the name of a tensor");
    int rc = strmap_put(&t->index, name, len, t->count);
    if (rc) {
        free(name);
        return err_set(e, rc, "no room for the name of tensor %s", one->name);
    }
    t->list[t->count] = *one;
    t->list[t->count].name = name;
    t->count++;
    return ERR_OK;
}

void tensors_put_data(struct tensors *t, const char *name, const uint8_t *data) {
    uint32_t i;
    bool there = strmap_get(&t->index, name, strlen(name), &i);
    ASSERT(there && !t->list[i].data, "%s", name);
    t->list[i].data = data;
}

int tensors_alias(struct tensors *t, const char *name, const struct tensor *base, uint64_t row, uint64_t n_rows,
                  struct err *e) {
    ASSERT(base->n_dims >= 1 && row <= base->dim[0] && n_rows <= base->dim[0] - row);
    ASSERT(base->n_dims > 1 || dtype_info(base->type)->block_values == 1, "%s", base->name);
    struct tensor one = *base; // the list may move when it grows
    const uint64_t row_bytes = one.dim[0] ? one.bytes / one.dim[0] : 0;
    one.name = name;
    one.dim[0] = n_rows;
    one.data += row * row_bytes;
    one.bytes = n_rows * row_bytes;
    return tensors_add(t, &one, e);
}

int tensors_map_file(struct tensors *t, const char *path, const struct file_map **map, struct err *e) {
    if (t->n_maps == LIMIT_SHARDS)
        return err_set(e, ERR_LIMIT, "%s: a model has more than %d files", path, LIMIT_SHARDS);
    if (!t->maps) t->maps = calloc(LIMIT_SHARDS, sizeof *t->maps);
    if (!t->fds) t->fds = calloc(LIMIT_SHARDS, sizeof *t->fds);
    if (!t->maps || !t->fds) return err_set(e, ERR_NOMEM, "%s: no memory", path);
    struct file_map *m = &t->maps[t->n_maps];
    int rc = file_map_open(m, path, e);
    if (rc) return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        file_map_close(m);
        return err_set(e, ERR_IO, "%s: open: %s", path, strerror(errno));
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL); // loads go from the front to the back
    t->fds[t->n_maps++] = fd;
    *map = m;
    return ERR_OK;
}

int tensors_add_file(struct tensors *t, const char *path, struct err *e) {
    const struct file_map *m;
    int rc = tensors_map_file(t, path, &m, e);
    if (rc) return rc;
    rc = safetensors_read(t, m->data, m->len_bytes, e);
    return rc ? err_prefix(e, "%s", path) : ERR_OK;
}

// By what it begins with: a safetensors file of that beginning would have a header of terabytes.
static bool is_gguf(const uint8_t *data, uint64_t bytes) { return bytes >= 4 && memcmp(data, "GGUF", 4) == 0; }

static int open_file(struct tensors *t, const char *path, struct err *e) {
    const struct file_map *m;
    int rc = tensors_map_file(t, path, &m, e);
    if (rc) return rc;
    if (text_ends(path, ".gguf") || is_gguf(m->data, m->len_bytes)) return gguf_open_file(t, path, m, e);
    if (!text_ends(path, ".safetensors"))
        return err_set(e, ERR_UNSUPPORTED, "%s: neither a GGUF file nor a safetensors file", path);
    rc = safetensors_read(t, m->data, m->len_bytes, e);
    return rc ? err_prefix(e, "%s", path) : ERR_OK;
}

static int open_folder(struct tensors *t, const char *folder, struct err *e) {
    char path[LIMIT_PATH];
    int rc = file_join(path, sizeof path, folder, "model.safetensors", e);
    if (rc) return rc;
    if (file_exists(path)) return tensors_add_file(t, path, e);
    rc = file_join(path, sizeof path, folder, "model.safetensors.index.json", e);
    if (rc) return rc;
    if (file_exists(path)) return index_open(t, folder, path, e);
    return err_set(e, ERR_NOT_FOUND, "%s: neither model.safetensors nor model.safetensors.index.json is there", folder);
}

int tensors_open(const char *path, struct tensors **t, struct err *e) {
    if (!file_exists(path)) return err_set(e, ERR_NOT_FOUND, "%s: no such file or folder", path);
    struct tensors *n;
    if (tensors_new(&n)) return err_set(e, ERR_NOMEM, "%s: no memory", path);
    int rc = file_is_dir(path) ? open_folder(n, path, e) : open_file(n, path, e);
    if (rc) {
        tensors_free(n);
        return rc;
    }
    *t = n;
    return ERR_OK;
}

int tensors_open_memory(const uint8_t *data, uint64_t bytes, struct tensors **t, struct err *e) {
    struct tensors *n;
    if (tensors_new(&n)) return err_set(e, ERR_NOMEM, "no memory for a list of tensors");
    int rc = is_gguf(data, bytes) ? gguf_open_memory(n, data, bytes, e) : safetensors_read(n, data, bytes, e);
    if (rc) {
        tensors_free(n);
        return rc;
    }
    *t = n;
    return ERR_OK;
}

// The kernel maps what is around a page that is touched, too, as its cache has it: parts of the pieces before and
// behind this one.
static void drop(const struct tensor *one, uint64_t offset, uint64_t n) {
    enum { AROUND_BYTES = 2 << 20 };
    uint64_t end = offset + n + AROUND_BYTES < one->bytes ? offset + n + AROUND_BYTES : one->bytes;
    uint64_t begin = offset > AROUND_BYTES ? offset - AROUND_BYTES : 0;
    file_map_drop(one->data + begin, end - begin);
}

int tensors_read(const struct tensors *t, const struct tensor *one, uint64_t offset, void *dst, size_t n,
                 struct err *e) {
    ASSERT(offset <= one->bytes && n <= one->bytes - offset);
    const uint8_t *from = one->data + offset;
    uint32_t i = 0;
    while (i < t->n_maps && !(from >= t->maps[i].data && from < t->maps[i].data + t->maps[i].len_bytes)) i++;
    if (i == t->n_maps) { // not of a file of ours
        if (n) memcpy(dst, from, n);
        if (one->is_mapped) drop(one, offset, n);
        return ERR_OK;
    }
    off_t at = from - t->maps[i].data;
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(t->fds[i], (uint8_t *)dst + done, n - done, at + (off_t)done);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return err_set(e, ERR_IO, "tensor %s: its file cannot be read any more: %s", one->name,
                           k ? strerror(errno) : "it became shorter");
        done += (size_t)k;
    }
    return ERR_OK;
}

const struct gguf *tensors_gguf(const struct tensors *t) { return t->gguf; }

uint32_t tensors_count(const struct tensors *t) { return t->count; }

const struct tensor *tensors_at(const struct tensors *t, uint32_t i) {
    ASSERT(i < t->count);
    return &t->list[i];
}

const struct tensor *tensors_find(const struct tensors *t, const char *name) {
    uint32_t i;
    return strmap_get(&t->index, name, strlen(name), &i) ? &t->list[i] : NULL;
}

const char *tensors_file_tensor(const struct tensors *t, const char *name, char out[LIMIT_TENSOR_NAME]) {
    struct gguf_string arch = {"", 0};
    char text[64];
    uint32_t expert;
    if (!t->gguf || gguf_get_string(t->gguf, "general.architecture", &arch, NULL)) return name;
    snprintf(text, sizeof text, "%.*s", arch.len_bytes < 64 ? (int)arch.len_bytes : 0, arch.text);
    return gguf_names_from_hf(text, name, out, &expert) ? out : name;
}
