#include "node/cache.h"

#include "base/log.h"
#include "os/random.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEX_BYTES = 2 * CONTROL_SHA_BYTES, HASH_PIECE = 4 << 20, DIR_FILES_MAX = 1 << 20 };

struct file_age {
    char name[HEX_BYTES + 1];
    uint64_t bytes;
    int64_t used_s;
};

static void hex_of(const uint8_t sha[CONTROL_SHA_BYTES], char out[HEX_BYTES + 1]) {
    for (int i = 0; i < CONTROL_SHA_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", sha[i]);
}

static bool is_cache_name(const char *name) {
    return strlen(name) == HEX_BYTES && strspn(name, "0123456789abcdef") == HEX_BYTES;
}

// Visits the folder: sums up the sizes, and with out not NULL lists the files. What a killed process left half-written
// is removed on the way.
static uint64_t scan(const char *dir, struct file_age *out, size_t max, size_t *n) {
    uint64_t total = 0;
    DIR *d = opendir(dir);
    if (!d) return 0;
    for (struct dirent *x = readdir(d); x; x = readdir(d)) {
        struct stat st;
        if (!is_cache_name(x->d_name)) {
            if (strncmp(x->d_name, "temp-", 5) == 0 && !out) unlinkat(dirfd(d), x->d_name, 0);
            continue;
        }
        if (fstatat(dirfd(d), x->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
        total += (uint64_t)st.st_size;
        if (!out || *n == max) continue;
        struct file_age *f = &out[(*n)++];
        memcpy(f->name, x->d_name, sizeof f->name);
        f->bytes = (uint64_t)st.st_size;
        f->used_s = st.st_mtim.tv_sec;
    }
    closedir(d);
    return total;
}

int cache_init(struct cache *c, const char *dir, uint64_t max_bytes, const char *model_dir, _Atomic uint64_t *progress,
               const atomic_bool *quit, struct err *e) {
    *c = (struct cache){.max_bytes = max_bytes, .progress = progress, .quit = quit};
    strmap_init(&c->verified, LIMIT_TENSORS, (size_t)LIMIT_TENSORS * HEX_BYTES, random_u64());
    int rc = file_mkdir_all(dir, 0700, e);
    if (!rc && snprintf(c->dir, sizeof c->dir, "%s", dir) >= (int)sizeof c->dir)
        rc = err_set(e, ERR_LIMIT, "%s: the path is too long", dir);
    if (!rc && model_dir) rc = tensors_open(model_dir, &c->model, e);
    if (!rc) c->total_bytes = scan(c->dir, NULL, 0, NULL);
    if (rc) cache_fini(c);
    return rc;
}

void cache_fini(struct cache *c) {
    tensors_free(c->model);
    c->model = NULL;
    strmap_fini(&c->verified);
}

static int by_age(const void *a, const void *b) {
    const struct file_age *x = a, *y = b;
    return (x->used_s > y->used_s) - (x->used_s < y->used_s);
}

// Removes the files not used for the longest time until `room` more bytes fit. Maps of removed files stay whole.
static void trim(struct cache *c, uint64_t room) {
    if (c->total_bytes + room <= c->max_bytes) return;
    size_t n = 0;
    struct file_age *list = malloc(DIR_FILES_MAX / 16 * sizeof *list);
    if (!list) return;
    c->total_bytes = scan(c->dir, list, DIR_FILES_MAX / 16, &n);
    qsort(list, n, sizeof *list, by_age);
    for (size_t i = 0; i < n && c->total_bytes + room > c->max_bytes; i++) {
        char path[LIMIT_PATH];
        if (file_join(path, sizeof path, c->dir, list[i].name, NULL) || unlink(path)) continue;
        c->total_bytes -= list[i].bytes < c->total_bytes ? list[i].bytes : c->total_bytes;
    }
    free(list);
}

static int hash_matches(struct cache *c, const uint8_t *data, uint64_t bytes, const uint8_t want[CONTROL_SHA_BYTES],
                        struct err *e) {
    uint8_t got[CONTROL_SHA_BYTES];
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    int ok = sha && EVP_DigestInit_ex(sha, EVP_sha256(), NULL);
    for (uint64_t at = 0; ok && at < bytes;) {
        size_t n = bytes - at < HASH_PIECE ? (size_t)(bytes - at) : HASH_PIECE;
        ok = EVP_DigestUpdate(sha, data + at, n) && !atomic_load(c->quit);
        at += n;
        atomic_fetch_add(c->progress, n);
    }
    ok = ok && EVP_DigestFinal_ex(sha, got, NULL);
    EVP_MD_CTX_free(sha);
    if (!ok) return err_set(e, ERR_CANCELLED, "weight cache: hashing was given up");
    return memcmp(got, want, sizeof got) == 0 ? ERR_OK : ERR_NOT_FOUND;
}

static bool is_verified(const struct cache *c, const char *key) {
    uint32_t unused;
    return strmap_get(&c->verified, key, strlen(key), &unused);
}

static int remember(struct cache *c, const char *key, struct err *e) {
    int rc = strmap_put(&c->verified, key, strlen(key), 1);
    return rc ? err_set(e, rc, "weight cache: no memory for a name") : ERR_OK;
}

static bool same_shape(const struct tensor *a, const struct control_tensor *b) {
    if ((uint32_t)a->type != b->dtype || a->n_dims != b->n_dims || a->bytes != b->bytes) return false;
    return memcmp(a->dim, b->dim, a->n_dims * sizeof a->dim[0]) == 0;
}

static int find_in_model(struct cache *c, const char *name, const struct control_tensor *t, const char *hex,
                         const uint8_t **data, struct err *e) {
    const struct tensor *x = c->model ? tensors_find(c->model, name) : NULL;
    if (!x || !same_shape(x, t)) return ERR_NOT_FOUND;
    char key[HEX_BYTES + LIMIT_TENSOR_NAME + 2];
    snprintf(key, sizeof key, "%s %s", hex, name);
    if (!is_verified(c, key)) {
        int rc = hash_matches(c, x->data, x->bytes, t->sha256, e);
        if (rc == ERR_NOT_FOUND) LOG_W("weights", "%s: the model folder here holds other bytes than the head's", name);
        if (!rc) rc = remember(c, key, e);
        if (rc) return rc;
    }
    *data = x->data;
    return ERR_OK;
}

int cache_find(struct cache *c, const char *name, const struct control_tensor *t, struct file_map *map,
               const uint8_t **data, struct err *e) {
    char hex[HEX_BYTES + 1], path[LIMIT_PATH];
    *map = (struct file_map){0};
    hex_of(t->sha256, hex);
    int rc = file_join(path, sizeof path, c->dir, hex, e);
    if (rc) return rc;
    if (!file_exists(path)) return find_in_model(c, name, t, hex, data, e);
    rc = file_map_open(map, path, e);
    if (rc) return rc;
    if (!is_verified(c, hex)) {
        rc = map->len_bytes == t->bytes ? hash_matches(c, map->data, map->len_bytes, t->sha256, e) : ERR_NOT_FOUND;
        if (!rc) rc = remember(c, hex, e);
    }
    if (rc) {
        c->total_bytes -= map->len_bytes < c->total_bytes ? map->len_bytes : c->total_bytes;
        file_map_close(map);
        if (rc != ERR_NOT_FOUND) return rc;
        LOG_W("weights", "%s: damaged, removed", path);
        unlink(path);
        return find_in_model(c, name, t, hex, data, e);
    }
    utimensat(AT_FDCWD, path, NULL, 0); // used now
    *data = map->data;
    return ERR_OK;
}

int cache_put_begin(struct cache *c, const struct control_tensor *t, struct cache_put *p, struct err *e) {
    *p = (struct cache_put){.fd = -1};
    trim(c, t->bytes);
    int rc = file_join(p->temp, sizeof p->temp, c->dir, "temp-XXXXXX", e);
    if (rc) return rc;
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    if (!sha || !EVP_DigestInit_ex(sha, EVP_sha256(), NULL)) {
        EVP_MD_CTX_free(sha);
        return err_set(e, ERR_NOMEM, "weight cache: no memory");
    }
    p->sha = sha;
    p->fd = mkostemp(p->temp, O_CLOEXEC);
    if (p->fd >= 0) return ERR_OK;
    rc = err_set(e, ERR_IO, "%s: open: %s", p->temp, strerror(errno));
    cache_put_abort(p);
    return rc;
}

int cache_put_add(struct cache *c, struct cache_put *p, const void *data, size_t len, struct err *e) {
    const uint8_t *from = data;
    EVP_DigestUpdate(p->sha, data, len);
    for (size_t at = 0; at < len;) {
        ssize_t n = write(p->fd, from + at, len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_set(e, ERR_IO, "%s: write: %s", p->temp, strerror(errno));
        at += (size_t)n;
    }
    p->bytes += len;
    atomic_fetch_add(c->progress, len);
    return ERR_OK;
}

void cache_put_abort(struct cache_put *p) {
    EVP_MD_CTX_free(p->sha);
    p->sha = NULL;
    if (p->fd < 0) return;
    close(p->fd);
    unlink(p->temp);
    p->fd = -1;
}

int cache_put_end(struct cache *c, struct cache_put *p, const struct control_tensor *t, struct err *e) {
    uint8_t got[CONTROL_SHA_BYTES];
    char hex[HEX_BYTES + 1], path[LIMIT_PATH];
    EVP_DigestFinal_ex(p->sha, got, NULL);
    hex_of(t->sha256, hex);
    int rc = file_join(path, sizeof path, c->dir, hex, e);
    if (!rc && (p->bytes != t->bytes || memcmp(got, t->sha256, sizeof got) != 0))
        rc = err_set(e, ERR_FORMAT, "a tensor came with other bytes than the manifest's SHA-256 says");
    if (!rc && rename(p->temp, path)) rc = err_set(e, ERR_IO, "%s: rename: %s", path, strerror(errno));
    if (!rc) rc = remember(c, hex, e);
    if (rc) {
        cache_put_abort(p);
        return rc;
    }
    c->total_bytes += p->bytes;
    close(p->fd);
    EVP_MD_CTX_free(p->sha);
    *p = (struct cache_put){.fd = -1};
    return ERR_OK;
}
