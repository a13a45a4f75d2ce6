#include "text/template_source.h"
#include "os/file.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_MAX_BYTES = LIMIT_CONFIG_BYTES, CONFIG_MAX_BYTES = LIMIT_CONFIG_BYTES * 16 };

void template_source_fini(struct template_source *s) {
    json_decref(s->templates);
    json_decref(s->files);
    json_decref(s->variables);
    *s = (struct template_source){0};
}

static int init(struct template_source *s, struct err *e) {
    *s = (struct template_source){json_object(), json_object(), json_object()};
    return s->templates && s->files && s->variables ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a chat template");
}

// file: where it stands, for errors.
static int add(struct template_source *s, const char *file, const char *name, size_t name_bytes, const char *text,
               size_t len_bytes, struct err *e) {
    int shown = (int)(name_bytes > 64 ? 64 : name_bytes);
    if (len_bytes > TEMPLATE_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "%s: chat template \"%.*s\": %zu bytes, at most %d", file, shown, name, len_bytes,
                       TEMPLATE_MAX_BYTES);
    if (json_object_size(s->templates) >= TEMPLATE_NAMES)
        return err_set(e, ERR_LIMIT, "%s: more than %d chat templates", file, TEMPLATE_NAMES);
    json_t *value = json_stringn(text, len_bytes), *key = json_stringn(name, name_bytes);
    bool bad = !value || !key || strlen(json_string_value(key)) != name_bytes;
    if (!bad) bad = json_object_set(s->templates, json_string_value(key), value) != 0;
    if (!bad) bad = json_object_set_new(s->files, json_string_value(key), json_string(file)) != 0;
    json_decref(value);
    json_decref(key);
    return bad ? err_set(e, ERR_FORMAT, "%s: chat template \"%.*s\" is not UTF-8", file, shown, name) : ERR_OK;
}

// ---- tokenizer_config.json -----------------------------------------------------------------------------------------

#define CONFIG "tokenizer_config.json"

// "chat_template": a string, or [{"name", "template"}].
static int add_configured(struct template_source *s, const json_t *v, struct err *e) {
    if (json_is_string(v)) return add(s, CONFIG, "default", 7, json_string_value(v), json_string_length(v), e);
    size_t i;
    json_t *entry;
    json_array_foreach(v, i, entry) {
        const json_t *text = json_object_get(entry, "template"), *name = json_object_get(entry, "name");
        if (!json_is_string(name) || !json_is_string(text)) continue;
        int rc = add(s, CONFIG, json_string_value(name), json_string_length(name), json_string_value(text),
                     json_string_length(text), e);
        if (rc) return rc;
    }
    return ERR_OK;
}

// A string, or an object with "content".
static void add_variables(struct template_source *s, const json_t *config) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                        "pad_token", "cls_token", "mask_token", "additional_special_tokens"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = json_object_get(config, names[i]);
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (json_is_string(v) || json_is_array(v)) json_object_set(s->variables, names[i], v);
    }
}

// folder: where the file is, for errors; NULL: nobody says.
static int add_config(struct template_source *s, const char *text, bool with_templates, const char *folder,
                      struct err *e) {
    json_error_t je;
    if (!text) return ERR_OK;
    json_t *config = json_loads(text, JSON_ALLOW_NUL, &je);
    int rc = ERR_OK;
    if (!json_is_object(config))
        rc = err_set(e, ERR_FORMAT, "tokenizer_config.json: %s", config ? "must be an object" : je.text);
    if (!rc && with_templates) rc = add_configured(s, json_object_get(config, "chat_template"), e);
    if (!rc) add_variables(s, config);
    json_decref(config);
    if (rc && folder && e) err_prefix(e, "%s", folder);
    return rc;
}

int template_source_texts(const char *template_text, const char *tokenizer_config, struct template_source *s,
                          struct err *e) {
    int rc = init(s, e);
    if (!rc) rc = add_config(s, tokenizer_config, !template_text, NULL, e);
    if (!rc && template_text) rc = add(s, "chat template", "default", 7, template_text, strlen(template_text), e);
    return rc;
}

// ---- a folder ------------------------------------------------------------------------------------------------------

static int read_text(const char *path, size_t max_bytes, char **text, struct err *e) {
    size_t n;
    int rc = file_read(path, max_bytes, text, &n, e);
    if (rc || strlen(*text) == n) return rc;
    rc = err_set(e, ERR_FORMAT, "%s: a NUL at byte %zu: this is no text", path, strlen(*text));
    free(*text);
    *text = NULL;
    return rc;
}

// *text stays NULL where there is no such file.
static int read_from(const char *folder, const char *name, size_t max_bytes, char **text, struct err *e) {
    char path[LIMIT_PATH];
    int rc = file_join(path, sizeof path, folder, name, e);
    if (!rc) rc = read_text(path, max_bytes, text, e);
    return rc == ERR_NOT_FOUND ? ERR_OK : rc;
}

static int add_file(struct template_source *s, const char *name, size_t name_bytes, const char *path, struct err *e) {
    char *text = NULL;
    int rc = read_text(path, TEMPLATE_MAX_BYTES, &text, e);
    if (!rc) rc = add(s, path, name, name_bytes, text, strlen(text), e);
    free(text);
    return rc;
}

// additional_chat_templates/NAME.jinja
static int add_named_files(struct template_source *s, const char *folder, struct err *e) {
    static const char suffix[] = ".jinja";
    char dir[LIMIT_PATH], path[LIMIT_PATH];
    int rc = file_join(dir, sizeof dir, folder, "additional_chat_templates", e);
    if (rc) return rc;
    DIR *d = opendir(dir);
    if (!d) return errno == ENOENT ? ERR_OK : err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
    for (const struct dirent *it; !rc && (it = readdir(d)) != NULL;) {
        size_t n = strlen(it->d_name);
        if (n < sizeof suffix || strcmp(it->d_name + n - (sizeof suffix - 1), suffix) != 0) continue;
        rc = file_join(path, sizeof path, dir, it->d_name, e);
        if (!rc) rc = add_file(s, it->d_name, n - (sizeof suffix - 1), path, e);
    }
    closedir(d);
    return rc;
}

int template_source_folder(const char *folder, const char *override_path, struct template_source *s, struct err *e) {
    char *config = NULL, *text = NULL;
    int rc = init(s, e);
    if (!rc) rc = read_from(folder, "tokenizer_config.json", CONFIG_MAX_BYTES, &config, e);
    if (!rc && !override_path) rc = read_from(folder, "chat_template.jinja", TEMPLATE_MAX_BYTES, &text, e);
    if (!rc) rc = add_config(s, config, !override_path && !text, folder, e);
    if (!rc && override_path) rc = add_file(s, "default", 7, override_path, e);
    if (!rc && text) {
        rc = add(s, "chat_template.jinja", "default", 7, text, strlen(text), e);
        if (rc && e) err_prefix(e, "%s", folder);
    }
    if (!rc && !override_path) rc = add_named_files(s, folder, e);
    free(text);
    free(config);
    return rc;
}

// ---- GGUF ----------------------------------------------------------------------------------------------------------

static int add_token(struct template_source *s, const struct gguf *g, const struct tokenizer *t, const char *key,
                     const char *name, struct err *e) {
    int32_t id = -1;
    size_t n = 0;
    int rc = gguf_get_id(g, key, &id, e);
    const uint8_t *content = rc ? NULL : tokenizer_token_bytes(t, id, &n);
    json_t *v = content ? json_stringn((const char *)content, n) : NULL;
    if (v) json_object_set_new(s->variables, name, v);
    return rc;
}

static int add_tokens(struct template_source *s, const struct gguf *g, const struct tokenizer *t, struct err *e) {
    static const char *const keys[][2] = {
        {"tokenizer.ggml.bos_token_id", "bos_token"},     {"tokenizer.ggml.eos_token_id", "eos_token"},
        {"tokenizer.ggml.unknown_token_id", "unk_token"}, {"tokenizer.ggml.seperator_token_id", "sep_token"},
        {"tokenizer.ggml.padding_token_id", "pad_token"}, {"tokenizer.ggml.mask_token_id", "mask_token"}};
    int rc = ERR_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !rc; i++) rc = add_token(s, g, t, keys[i][0], keys[i][1], e);
    return rc;
}

// tokenizer.chat_template, and tokenizer.chat_template.NAME
static int add_values(struct template_source *s, const struct gguf *g, struct err *e) {
    static const char prefix[] = "tokenizer.chat_template";
    size_t n = sizeof prefix - 1;
    for (uint64_t i = 0; i < gguf_n_values(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        const uint8_t *at = v->data;
        struct gguf_string text;
        if (v->key.len_bytes < n || memcmp(v->key.text, prefix, n) != 0 || v->type != GGUF_STRING) continue;
        bool named = v->key.len_bytes > n + 1 && v->key.text[n] == '.';
        if ((!named && v->key.len_bytes != n) || !gguf_next_string(v, &at, &text)) continue;
        int rc = add(s, prefix, named ? v->key.text + n + 1 : "default", named ? v->key.len_bytes - n - 1 : 7,
                     text.text, text.len_bytes, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

int template_source_gguf(const struct gguf *g, const struct tokenizer *t, const char *override_path,
                         struct template_source *s, struct err *e) {
    int rc = init(s, e);
    if (!rc) rc = add_tokens(s, g, t, e);
    if (!rc) rc = override_path ? add_file(s, "default", 7, override_path, e) : add_values(s, g, e);
    return rc;
}
