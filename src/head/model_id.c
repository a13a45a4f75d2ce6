#include "head/model_id.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/map.h"

// Each thing that counts is hashed alone and added, so that the order in which a folder is listed does not matter.
static void add(uint64_t digest[2], const void *data, size_t n, uint64_t salt) {
    digest[0] += map_hash_bytes(data, n, salt);
    digest[1] += map_hash_bytes(data, n, ~salt);
}

static void add_file(uint64_t digest[2], const char *name, const struct stat *st) {
    const uint64_t what[4] = {map_hash_bytes(name, strlen(name), 1), (uint64_t)st->st_size,
                              (uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec};
    add(digest, what, sizeof what, 2);
}

static void add_folder(uint64_t digest[2], const char *path) {
    struct stat st;
    DIR *d = opendir(path);
    if (!d) {
        char file[LIMIT_PATH];
        for (uint32_t i = 0; tensors_file_name(path, i, file); i++)
            if (stat(file, &st) == 0) add_file(digest, strrchr(file, '/') ? strrchr(file, '/') : file, &st);
        return;
    }
    for (const struct dirent *it; (it = readdir(d));)
        if (fstatat(dirfd(d), it->d_name, &st, 0) == 0 && S_ISREG(st.st_mode)) add_file(digest, it->d_name, &st);
    closedir(d);
}

void model_id_digest(const struct opened_model *m, const struct run_mode *mode, uint64_t digest[2]) {
    const uint64_t plan = model_plan_hash(&m->hparams, mode);
    digest[0] = digest[1] = 0;
    add(digest, &plan, sizeof plan, 3);
    add(digest, m->config_json, m->config_bytes, 4);
    for (uint32_t i = 0; i < tensors_count(m->tensors); i++) {
        const struct tensor *t = tensors_at(m->tensors, i);
        uint64_t what[4 + TENSOR_DIMS] = {map_hash_bytes(t->name, strlen(t->name), 5), t->type, t->n_dims, t->bytes};
        for (uint32_t k = 0; k < t->n_dims && k < TENSOR_DIMS; k++) what[4 + k] = t->dim[k];
        add(digest, what, sizeof what, 6);
    }
    add_folder(digest, m->path);
}
