#include "node/cache.h"

#include "base/log.h"
#include "base/size.h"
#include "os/cpu.h"
#include "os/random.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

static uint64_t ns_of(struct timespec t) { return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec; }

static struct cache_stamp stamp_of(const struct stat *st) {
    return (struct cache_stamp){.dev = st->st_dev,
                                .inode = st->st_ino,
                                .bytes = (uint64_t)st->st_size,
                                .mtime_ns = ns_of(st->st_mtim),
                                .ctime_ns = ns_of(st->st_ctim)};
}

static bool same_stamp(const struct cache_stamp *a, const struct cache_stamp *b) {
    return a->dev == b->dev && a->inode == b->inode && a->bytes == b->bytes && a->mtime_ns == b->mtime_ns &&
           a->ctime_ns == b->ctime_ns;
}

// The same for a model that is a file, or several of a split one.
static uint64_t digest_files(const char *path) {
    uint64_t digest = 0;
    char file[LIMIT_PATH];
    for (uint32_t i = 0; tensors_file_name(path, i, file); i++) {
        struct stat st;
        if (stat(file, &st)) return 0;
        struct cache_stamp one = stamp_of(&st);
        digest += map_hash_bytes(&one, sizeof one, i);
    }
    return digest;
}

// One number that changes with any file of the model's folder. 0: it cannot be read.
static uint64_t digest_model(const char *path) {
    uint64_t digest = 1;
    struct stat st;
    DIR *d = opendir(path);
    if (!d) return digest_files(path);
    for (struct dirent *x = readdir(d); x; x = readdir(d)) {
        if (!strstr(x->d_name, ".safetensors") || fstatat(dirfd(d), x->d_name, &st, 0)) continue; // shards, index
        struct cache_stamp one = stamp_of(&st);
        digest += map_hash_bytes(&one, sizeof one, map_hash_bytes(x->d_name, strlen(x->d_name), 0)); // in any order
    }
    closedir(d);
    return digest;
}

static int open_model(struct cache *c, struct err *e) {
    tensors_free(c->model);
    c->model = NULL;
    strmap_fini(&c->model_verified);
    strmap_init(&c->model_verified, LIMIT_TENSORS, (size_t)LIMIT_TENSORS * HEX_BYTES, random_u64());
    c->model_digest = digest_model(c->model_dir);
    return tensors_open(c->model_dir, &c->model, e);
}

int cache_init(struct cache *c, const char *dir, uint64_t max_bytes, const char *model_dir, _Atomic uint64_t *progress,
               const atomic_bool *quit, struct err *e) {
    *c = (struct cache){.max_bytes = max_bytes, .model_dir = model_dir, .progress = progress, .quit = quit};
    strmap_init(&c->verified, LIMIT_TENSORS, (size_t)LIMIT_TENSORS * HEX_BYTES, random_u64());
    strmap_init(&c->model_verified, LIMIT_TENSORS, (size_t)LIMIT_TENSORS * HEX_BYTES, random_u64());
    int rc = ERR_OK;
    struct err why;
    if (snprintf(c->dir, sizeof c->dir, "%s", dir) >= (int)sizeof c->dir)
        rc = err_set(e, ERR_LIMIT, "%s: the path is too long", dir);
    if (!rc && file_mkdir_all(dir, 0700, &why)) LOG_W("weights", "no cache on disk: %s", why.text);
    if (!rc && model_dir) rc = open_model(c, e);
    if (!rc) c->total_bytes = scan(c->dir, NULL, 0, NULL);
    if (rc) cache_fini(c);
    return rc;
}

void cache_fini(struct cache *c) {
    tensors_free(c->model);
    c->model = NULL;
    strmap_fini(&c->verified);
    strmap_fini(&c->model_verified);
    free(c->stamps);
    c->stamps = NULL;
}

void cache_begin(struct cache *c) {
    struct err e;
    c->warned = false;
    if (!c->model_dir || (c->model && digest_model(c->model_dir) == c->model_digest)) return;
    if (open_model(c, &e)) LOG_W("weights", "the model folder is not used: %s", e.text);
}

static int by_age(const void *a, const void *b) {
    const struct file_age *x = a, *y = b;
    return (x->used_s > y->used_s) - (x->used_s < y->used_s);
}

// Removes the files not used for the longest time until the folder holds at most keep_bytes. Maps of removed files stay
// whole.
static void shrink(struct cache *c, uint64_t keep_bytes) {
    size_t n = 0;
    struct file_age *list = malloc(DIR_FILES_MAX / 16 * sizeof *list);
    if (!list) return;
    c->total_bytes = scan(c->dir, list, DIR_FILES_MAX / 16, &n);
    qsort(list, n, sizeof *list, by_age);
    for (size_t i = 0; i < n && c->total_bytes > keep_bytes; i++) {
        char path[LIMIT_PATH];
        if (file_join(path, sizeof path, c->dir, list[i].name, NULL) || unlink(path)) continue;
        c->total_bytes -= list[i].bytes < c->total_bytes ? list[i].bytes : c->total_bytes;
    }
    free(list);
}

static void trim(struct cache *c, uint64_t room) {
    if (c->total_bytes + room > c->max_bytes) shrink(c, c->max_bytes > room ? c->max_bytes - room : 0);
}

static int hash_matches(struct cache *c, const uint8_t *data, uint64_t bytes, const uint8_t want[CONTROL_SHA_BYTES],
                        struct err *e) {
    uint8_t got[CONTROL_SHA_BYTES];
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    int ok = sha && EVP_DigestInit_ex(sha, EVP_sha256(), NULL);
    for (uint64_t at = 0; ok && at < bytes;) {
        size_t n = bytes - at < HASH_PIECE ? (size_t)(bytes - at) : HASH_PIECE;
        ok = EVP_DigestUpdate(sha, data + at, n) && !atomic_load(c->quit);
        file_map_drop(data + at, n);
        at += n;
        atomic_fetch_add(c->progress, n);
    }
    ok = ok && EVP_DigestFinal_ex(sha, got, NULL);
    EVP_MD_CTX_free(sha);
    if (!ok) return err_set(e, ERR_CANCELLED, "weight cache: hashing was given up");
    return memcmp(got, want, sizeof got) == 0 ? ERR_OK : ERR_NOT_FOUND;
}

static bool is_verified(const struct cache *c, const char *hex, const struct cache_stamp *now) {
    uint32_t at;
    return strmap_get(&c->verified, hex, HEX_BYTES, &at) && same_stamp(&c->stamps[at], now);
}

static int remember(struct cache *c, const char *hex, const struct cache_stamp *now, struct err *e) {
    uint32_t at;
    if (strmap_get(&c->verified, hex, HEX_BYTES, &at)) {
        c->stamps[at] = *now;
        return ERR_OK;
    }
    if (c->n_stamps == c->stamps_cap) {
        uint32_t cap = c->stamps_cap ? c->stamps_cap * 2 : 256;
        void *p = cap <= LIMIT_TENSORS ? realloc(c->stamps, cap * sizeof *c->stamps) : NULL;
        if (!p) return err_set(e, ERR_NOMEM, "weight cache: no memory for a name");
        c->stamps = p;
        c->stamps_cap = cap;
    }
    int rc = strmap_put(&c->verified, hex, HEX_BYTES, c->n_stamps);
    if (rc) return err_set(e, rc, "weight cache: no memory for a name");
    c->stamps[c->n_stamps++] = *now;
    return ERR_OK;
}

static bool same_shape(const struct tensor *a, const struct control_tensor *b) {
    if ((uint32_t)a->type != b->dtype || a->n_dims != b->n_dims || a->bytes != b->bytes) return false;
    return memcmp(a->dim, b->dim, a->n_dims * sizeof a->dim[0]) == 0;
}

static int find_in_model(struct cache *c, const char *name, const struct control_tensor *t, const char *hex,
                         const uint8_t **data, struct err *e) {
    const struct tensor *x = c->model ? tensors_find(c->model, name) : NULL;
    if (!x || !same_shape(x, t)) return ERR_NOT_FOUND;
    // What was opened at the beginning of the load must still be there as it was: a shorter file would take pages away.
    if (digest_model(c->model_dir) != c->model_digest) return ERR_NOT_FOUND;
    char key[HEX_BYTES + LIMIT_TENSOR_NAME + 2];
    uint32_t unused;
    snprintf(key, sizeof key, "%s %s", hex, name);
    if (!strmap_get(&c->model_verified, key, strlen(key), &unused)) {
        int rc = hash_matches(c, x->data, x->bytes, t->sha256, e);
        if (rc == ERR_NOT_FOUND) LOG_W("weights", "%s: the model folder here holds other bytes than the head's", name);
        if (!rc && strmap_put(&c->model_verified, key, strlen(key), 1))
            rc = err_set(e, ERR_NOMEM, "weight cache: no memory for a name");
        if (rc) return rc;
    }
    *data = x->data;
    return ERR_OK;
}

// Maps what fd has, which must be all of the tensor.
static int map_fd(int fd, uint64_t bytes, struct file_map *map, struct cache_stamp *stamp, struct err *e) {
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes || !bytes) return ERR_NOT_FOUND;
    *stamp = stamp_of(&st);
    void *p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) return err_set(e, ERR_NOMEM, "weight cache: mmap: %s", strerror(errno));
    *map = (struct file_map){.data = p, .len_bytes = bytes};
    return ERR_OK;
}

// The file's bytes, hashed now or unchanged since they were. ERR_NOT_FOUND: damaged.
static int open_checked(struct cache *c, int fd, const char *hex, const struct control_tensor *t, struct file_map *map,
                        struct err *e) {
    struct cache_stamp before, after = {0};
    struct stat st;
    int rc = map_fd(fd, t->bytes, map, &before, e);
    if (!rc && !is_verified(c, hex, &before)) rc = hash_matches(c, map->data, map->len_bytes, t->sha256, e);
    if (!rc && fstat(fd, &st) == 0) after = stamp_of(&st);
    if (!rc && !same_stamp(&before, &after)) rc = ERR_NOT_FOUND; // somebody writes to it
    // Its time says when it was used last. This is our own change, so the stamp is the one after it.
    if (!rc && futimens(fd, NULL) == 0 && fstat(fd, &st) == 0) after = stamp_of(&st);
    if (!rc) rc = remember(c, hex, &after, e);
    if (rc) file_map_close(map);
    return rc;
}

int cache_find(struct cache *c, const char *name, const struct control_tensor *t, struct file_map *map,
               const uint8_t **data, struct err *e) {
    char hex[HEX_BYTES + 1], path[LIMIT_PATH];
    *map = (struct file_map){0};
    hex_of(t->sha256, hex);
    int rc = file_join(path, sizeof path, c->dir, hex, e);
    if (rc) return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return find_in_model(c, name, t, hex, data, e);
    rc = open_checked(c, fd, hex, t, map, e);
    close(fd);
    if (rc == ERR_NOT_FOUND) {
        LOG_W("weights", "%s: damaged, removed", path);
        if (unlink(path) == 0) c->total_bytes = scan(c->dir, NULL, 0, NULL);
        return find_in_model(c, name, t, hex, data, e);
    }
    *data = map->data;
    return rc;
}

// The disk took no more: what came so far goes on in memory, if there is plenty of it.
static int go_to_memory(struct cache *c, struct cache_put *p, uint64_t want_bytes, int why, struct err *e) {
    if (!c->warned) LOG_W("weights", "%s: %s: weights are kept in memory while loading", c->dir, strerror(why));
    c->warned = true;
    char want[SIZE_TEXT_BYTES];
    if (want_bytes > cpu_memory_available_bytes() / 2)
        return err_set(e, ERR_IO, "%s: %s, and no memory for %s instead", c->dir, strerror(why),
                       size_text(want_bytes, want));
    int fd = memfd_create("loom-weights", MFD_CLOEXEC);
    if (fd < 0) return err_set(e, ERR_IO, "%s: %s, and no memory instead: %s", c->dir, strerror(why), strerror(errno));
    for (uint64_t at = 0; at < p->bytes;) {
        uint8_t piece[65536];
        size_t n = p->bytes - at < sizeof piece ? (size_t)(p->bytes - at) : sizeof piece;
        ssize_t got = pread(p->fd, piece, n, (off_t)at);
        if (got <= 0 || write(fd, piece, (size_t)got) != got) {
            close(fd);
            return err_set(e, ERR_IO, "%s: what was written cannot be read back", p->temp);
        }
        at += (uint64_t)got;
    }
    if (p->fd >= 0) {
        close(p->fd);
        unlink(p->temp);
    }
    p->temp[0] = 0;
    p->fd = fd;
    return ERR_OK;
}

static int open_temp(struct cache *c, struct cache_put *p, struct err *e) {
    int rc = file_join(p->temp, sizeof p->temp, c->dir, "temp-XXXXXX", e);
    if (rc) return rc;
    p->fd = mkostemp(p->temp, O_CLOEXEC);
    if (p->fd < 0) p->temp[0] = 0;
    return ERR_OK;
}

int cache_put_begin(struct cache *c, const struct control_tensor *t, struct cache_put *p, struct err *e) {
    *p = (struct cache_put){.fd = -1};
    trim(c, t->bytes);
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    if (!sha || !EVP_DigestInit_ex(sha, EVP_sha256(), NULL)) {
        EVP_MD_CTX_free(sha);
        return err_set(e, ERR_NOMEM, "weight cache: no memory");
    }
    p->sha = sha;
    int rc = open_temp(c, p, e);
    if (!rc && p->fd < 0 && errno == ENOENT && !file_mkdir_all(c->dir, 0700, NULL)) { // somebody removed the folder
        c->total_bytes = 0;
        rc = open_temp(c, p, e);
    }
    if (!rc && p->fd < 0) rc = go_to_memory(c, p, t->bytes, errno, e);
    if (rc) cache_put_abort(p);
    return rc;
}

// Returns how much of it was written; errno says why not all.
static size_t write_some(int fd, const uint8_t *from, size_t len) {
    size_t at = 0;
    while (at < len) {
        ssize_t n = write(fd, from + at, len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        at += (size_t)n;
    }
    return at;
}

int cache_put_add(struct cache *c, struct cache_put *p, const void *data, size_t len, struct err *e) {
    const uint8_t *from = data;
    bool shrunk = false;
    EVP_DigestUpdate(p->sha, data, len);
    atomic_fetch_add(c->progress, len);
    while (len) {
        size_t n = write_some(p->fd, from, len);
        p->bytes += n;
        from += n;
        len -= n;
        if (!len) break;
        int why = errno;
        if (!p->temp[0]) return err_set(e, ERR_NOMEM, "weight cache: memory: %s", strerror(why));
        if ((why == ENOSPC || why == EDQUOT) && !shrunk && c->total_bytes) {
            // The disk is smaller than the bound: the oldest quarter goes, and at least what is to be written.
            uint64_t quarter = c->total_bytes / 4, room = quarter > len ? quarter : len;
            shrink(c, c->total_bytes > room ? c->total_bytes - room : 0);
            shrunk = true;
            continue;
        }
        int rc = go_to_memory(c, p, p->bytes + len, why, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

void cache_put_abort(struct cache_put *p) {
    EVP_MD_CTX_free(p->sha);
    p->sha = NULL;
    if (p->fd < 0) return;
    close(p->fd);
    if (p->temp[0]) unlink(p->temp);
    p->fd = -1;
}

// Gives the file its name. If that fails the bytes are good all the same; they are just not kept.
static int keep(struct cache *c, const struct cache_put *p, const char *hex, struct err *e) {
    char path[LIMIT_PATH];
    struct stat st;
    int rc = file_join(path, sizeof path, c->dir, hex, e);
    if (rc) return rc;
    if (rename(p->temp, path)) {
        if (!c->warned) LOG_W("weights", "%s: rename: %s", path, strerror(errno));
        c->warned = true;
        unlink(p->temp);
        return ERR_OK;
    }
    c->total_bytes += p->bytes;
    if (fstat(p->fd, &st)) return ERR_OK;
    struct cache_stamp now = stamp_of(&st);
    return remember(c, hex, &now, e);
}

int cache_put_end(struct cache *c, struct cache_put *p, const struct control_tensor *t, struct file_map *map,
                  struct err *e) {
    uint8_t got[CONTROL_SHA_BYTES];
    char hex[HEX_BYTES + 1];
    struct cache_stamp unused;
    *map = (struct file_map){0};
    EVP_DigestFinal_ex(p->sha, got, NULL);
    hex_of(t->sha256, hex);
    int rc = ERR_OK;
    if (p->bytes != t->bytes || memcmp(got, t->sha256, sizeof got) != 0)
        rc = err_set(e, ERR_FORMAT, "a tensor came with other bytes than the manifest's SHA-256 says");
    if (!rc) rc = map_fd(p->fd, t->bytes, map, &unused, e);
    if (rc == ERR_NOT_FOUND) rc = err_set(e, ERR_IO, "%s: somebody changed it while it was written", c->dir);
    if (!rc && p->temp[0]) rc = keep(c, p, hex, e);
    if (rc) {
        file_map_close(map);
        cache_put_abort(p);
        return rc;
    }
    close(p->fd);
    EVP_MD_CTX_free(p->sha);
    *p = (struct cache_put){.fd = -1};
    return ERR_OK;
}
