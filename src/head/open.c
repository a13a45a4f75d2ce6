#include "head/open.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "model/gguf_config.h"
#include "os/file.h"

// "-00001-of-00001"
static bool is_split_number(const char *s) {
    static const char DIGITS[] = "0123456789";
    enum { N_DIGITS = 5, OF = 1 + N_DIGITS, COUNT = OF + 4 };
    return s[0] == '-' && strspn(s + 1, DIGITS) == N_DIGITS && strncmp(s + OF, "-of-", 4) == 0 &&
           strspn(s + COUNT, DIGITS) == N_DIGITS && s[COUNT + N_DIGITS] == 0;
}

// Of a GGUF file without ".gguf" and the number of a split.
static char *last_part(const char *path, bool is_file) {
    char *copy = realpath(path, NULL);
    if (!copy) return NULL;
    char *slash = strrchr(copy, '/');
    char *name = strdup(slash && slash[1] ? slash + 1 : copy);
    free(copy);
    size_t len = name && is_file ? strlen(name) : 0, split = sizeof "-00001-of-00001" - 1;
    if (len <= 5 || strcmp(name + len - 5, ".gguf") != 0) return name;
    len -= 5;
    name[len] = 0;
    if (len > split && is_split_number(name + len - split)) name[len - split] = 0;
    return name;
}

static int read_generation(struct opened_model *m, const char *text, size_t bytes, struct err *e) {
    int rc = model_parse_generation(text, bytes, &m->hparams, &m->defaults, e);
    return rc ? err_prefix(e, "%s", m->path) : ERR_OK;
}

// The GGUF files of a folder that are models: the first by name, and how many. Of a split model the first file counts;
// "mmproj" is what sees pictures, beside a model.
static int scan(const char *folder, char first[NAME_MAX + 1], uint32_t *n, struct err *e) {
    enum { ENDING = sizeof ".gguf" - 1, SPLIT = sizeof "-00001-of-00001" - 1 };
    DIR *d = opendir(folder);
    if (!d) return err_set(e, ERR_IO, "%s: %s", folder, strerror(errno));
    first[0] = 0;
    *n = 0;
    for (struct dirent *one; (one = readdir(d));) {
        char name[NAME_MAX + 1];
        snprintf(name, sizeof name, "%s", one->d_name);
        const size_t len = strlen(name);
        if (len <= ENDING || strcmp(name + len - ENDING, ".gguf") != 0 || strncmp(name, "mmproj", 6) == 0) continue;
        name[len - ENDING] = 0;
        const char *number = len - ENDING > SPLIT ? name + len - ENDING - SPLIT : "";
        if (is_split_number(number) && strncmp(number, "-00001", 6) != 0) continue;
        if (!first[0] || strcmp(one->d_name, first) < 0) snprintf(first, NAME_MAX + 1, "%s", one->d_name);
        ++*n;
    }
    closedir(d);
    return ERR_OK;
}

// "Qwen/Qwen3-4B": as hubs call their models.
static bool is_hub_name(const char *path) {
    const char *slash = strchr(path, '/');
    const size_t len = strlen(path);
    return slash && slash != path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' && path[0] != '~' &&
           slash[1] != '.' && !(len > 5 && strcmp(path + len - 5, ".gguf") == 0);
}

static int not_there(const char *path, struct err *e) {
    return err_set(e, ERR_NOT_FOUND, "%s: no such model file or folder%s", path,
                   is_hub_name(path) ? "; `loom pull` with this name fetches one" : "");
}

int open_model_path(const char *path, char out[LIMIT_PATH], struct err *e) {
    char file[LIMIT_PATH], first[NAME_MAX + 1];
    uint32_t n;
    const int len = snprintf(out, LIMIT_PATH, "%s", path);
    if (len < 0 || len >= LIMIT_PATH) return err_set(e, ERR_LIMIT, "%.64s...: the path is too long", path);
    if (!file_exists(path)) return not_there(path, e);
    if (!file_is_dir(path)) return ERR_OK;
    int rc = file_join(file, sizeof file, path, "config.json", e);
    if (rc || file_exists(file)) return rc;
    rc = scan(path, first, &n, e);
    if (rc) return rc;
    if (n == 1) return file_join(out, LIMIT_PATH, path, first, e);
    if (n)
        return err_set(e, ERR_NOT_FOUND, "%s: a folder without config.json; give the GGUF file itself: %s/%s", path,
                       path, first);
    return err_set(e, ERR_NOT_FOUND,
                   "%s: neither config.json nor a .gguf file is there; a model is a GGUF file, or a folder with "
                   "config.json, *.safetensors and tokenizer.json",
                   path);
}

static int read_configs(struct opened_model *m, struct err *e) {
    char path[LIMIT_PATH];
    int rc = file_join(path, sizeof path, m->path, "config.json", e);
    if (!rc) rc = file_read(path, LIMIT_CONFIG_BYTES, &m->config_json, &m->config_bytes, e);
    if (rc) return rc;
    rc = model_parse_config(m->config_json, m->config_bytes, &m->hparams, e);
    if (rc) return err_prefix(e, "%s", m->path);
    char *generation = NULL;
    size_t generation_bytes = 0;
    rc = file_join(path, sizeof path, m->path, "generation_config.json", e);
    if (!rc && file_exists(path)) rc = file_read(path, LIMIT_CONFIG_BYTES, &generation, &generation_bytes, e);
    if (!rc) rc = read_generation(m, generation, generation_bytes, e);
    free(generation);
    return rc;
}

// The settings of a GGUF file are in its metadata.
static int make_configs(struct opened_model *m, struct err *e) {
    char *generation = NULL;
    size_t generation_bytes = 0;
    if (!tensors_gguf(m->tensors))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: not a GGUF file; a model is one, or a folder with config.json, *.safetensors and "
                       "tokenizer.json",
                       m->path);
    int rc = gguf_config_make(m->tensors, &m->config_json, &m->config_bytes, &generation, &generation_bytes, e);
    if (!rc) rc = model_parse_config(m->config_json, m->config_bytes, &m->hparams, e);
    if (rc) err_prefix(e, "%s", m->path);
    if (!rc) rc = read_generation(m, generation, generation_bytes, e);
    free(generation);
    return rc;
}

static int extra_layer(const struct opened_model *m, const char *name, const char *number, size_t digits,
                       struct err *e) {
    const bool is_gguf = tensors_gguf(m->tensors) != NULL;
    char own[LIMIT_TENSOR_NAME];
    return err_set(e, ERR_FORMAT, "%s: %s is %u, but there is a layer %.*s (%.100s)", m->path,
                   is_gguf ? "block_count" : "config.json: num_hidden_layers",
                   m->hparams.n_layers + (is_gguf ? m->hparams.n_ignored_layers : 0), digits < 20 ? (int)digits : 20,
                   number, tensors_file_tensor(m->tensors, name, own));
}

// Layers that config.json knows nothing of mean that one of the two is not this model's.
static int check_layers(const struct opened_model *m, struct err *e) {
    static const char prefix[] = "model.layers.";
    const uint64_t n_layers = (uint64_t)m->hparams.n_layers + m->hparams.n_ignored_layers;
    for (uint32_t i = 0; i < tensors_count(m->tensors); i++) {
        const char *name = tensors_at(m->tensors, i)->name, *number = name + sizeof prefix - 1;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0) continue;
        size_t digits = strspn(number, "0123456789");
        if (digits > 0 && number[digits] == '.' && strtoul(number, NULL, 10) >= n_layers)
            return extra_layer(m, name, number, digits, e);
    }
    return ERR_OK;
}

int open_model(const char *given, struct opened_model *m, struct err *e) {
    char path[LIMIT_PATH];
    *m = (struct opened_model){0};
    int rc = open_model_path(given, path, e);
    if (rc) return rc;
    const bool is_file = !file_is_dir(path);
    m->path = strdup(path);
    m->name = last_part(path, is_file);
    if (!m->path || !m->name) rc = err_set(e, ERR_NOMEM, "%s: no memory", path);
    if (!rc && !is_file) rc = read_configs(m, e);
    if (!rc) rc = tensors_open(path, &m->tensors, e);
    if (!rc && is_file) rc = make_configs(m, e);
    if (!rc && model_fit_tensors(&m->hparams, m->tensors, e)) rc = err_prefix(e, "%s", path);
    if (!rc) rc = check_layers(m, e);
    if (rc) open_model_close(m);
    return rc;
}

void open_model_close(struct opened_model *m) {
    if (m->tensors) tensors_free(m->tensors);
    free(m->path);
    free(m->name);
    free(m->config_json);
    *m = (struct opened_model){0};
}
