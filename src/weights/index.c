// model.safetensors.index.json: {"weight_map": {tensor: file}}. The files lie in the same folder.
#include "weights/collection.h"

#include "base/limits.h"
#include "os/random.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

// A name that stays in the folder: no separator, no "..", no hidden file.
static int check_shard_name(const char *tensor, const char *file, struct err *e) {
    size_t len = file ? strlen(file) : 0, tail = strlen(".safetensors");
    bool good = len > tail && len < 256 && file[0] != '.' && !strpbrk(file, "/\\") &&
                strcmp(file + len - tail, ".safetensors") == 0;
    for (size_t i = 0; good && i < len; i++) good = (unsigned char)file[i] >= 0x20 && file[i] != 0x7f;
    if (!good)
        return err_set(e, ERR_FORMAT, "weight_map: the file of tensor %.200s is not a plain *.safetensors name",
                       tensor);
    return ERR_OK;
}

// shards: file -> its number; first[i]: the first tensor of file i.
static int open_shards(struct tensors *t, const char *folder, json_t *map, struct strmap *shards, uint32_t *first,
                       struct err *e) {
    const char *name;
    json_t *v;
    json_object_foreach(map, name, v) {
        const char *file = json_string_value(v);
        uint32_t n;
        int rc = check_shard_name(name, file, e);
        if (rc) return rc;
        if (strmap_get(shards, file, strlen(file), &n)) continue;
        if (shards->count == LIMIT_SHARDS) return err_set(e, ERR_LIMIT, "weight_map: more than %d files", LIMIT_SHARDS);
        n = (uint32_t)shards->count;
        if ((rc = strmap_put(shards, file, strlen(file), n))) return err_set(e, rc, "weight_map: no memory");
        char path[LIMIT_PATH];
        if ((rc = file_join(path, sizeof path, folder, file, e))) return rc;
        first[n] = tensors_count(t);
        if ((rc = tensors_add_file(t, path, e))) return rc;
        first[n + 1] = tensors_count(t);
    }
    return ERR_OK;
}

static int check_places(const struct tensors *t, json_t *map, const struct strmap *shards, const uint32_t *first,
                        struct err *e) {
    const char *name;
    json_t *v;
    json_object_foreach(map, name, v) {
        const char *file = json_string_value(v);
        uint32_t at, n;
        bool found = strmap_get(&t->index, name, strlen(name), &at) && strmap_get(shards, file, strlen(file), &n) &&
                     at >= first[n] && at < first[n + 1];
        if (!found) return err_set(e, ERR_FORMAT, "weight_map: tensor %.200s is not in %s", name, file);
    }
    return ERR_OK;
}

static int read_map(struct tensors *t, const char *folder, json_t *map, struct err *e) {
    if (!json_is_object(map) || json_object_size(map) == 0)
        return err_set(e, ERR_FORMAT, "weight_map is not an object with at least one tensor");
    uint32_t *first = calloc(LIMIT_SHARDS + 1, sizeof *first);
    if (!first) return err_set(e, ERR_NOMEM, "no memory");
    struct strmap shards;
    strmap_init(&shards, LIMIT_SHARDS, LIMIT_SHARDS * 256, random_u64());
    int rc = open_shards(t, folder, map, &shards, first, e);
    if (!rc) rc = check_places(t, map, &shards, first, e);
    strmap_fini(&shards);
    free(first);
    return rc;
}

int index_open(struct tensors *t, const char *folder, const char *path, struct err *e) {
    char *text;
    size_t len;
    int rc = file_read(path, LIMIT_SAFETENSORS_HEADER, &text, &len, e);
    if (rc) return rc;
    json_error_t why;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!root) return err_set(e, ERR_FORMAT, "%s: %s at byte %d", path, why.text, why.position);
    rc = read_map(t, folder, json_object_get(root, "weight_map"), e);
    json_decref(root);
    return rc ? err_prefix(e, "%s", path) : ERR_OK;
}
