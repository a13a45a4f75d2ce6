#include "pull/page.h"

#include "base/text.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *host;
    enum pull_hub hub;
} hubs[] = {
    {"huggingface.co", PULL_HUGGINGFACE},  {"www.huggingface.co", PULL_HUGGINGFACE}, {"hf.co", PULL_HUGGINGFACE},
    {"modelscope.cn", PULL_MODELSCOPE},    {"www.modelscope.cn", PULL_MODELSCOPE},   {"modelscope.ai", PULL_MODELSCOPE},
    {"www.modelscope.ai", PULL_MODELSCOPE}};

static const char *without_scheme(const char *text) {
    if (!strncasecmp(text, "https://", 8)) return text + 8;
    return strncasecmp(text, "http://", 7) ? text : text + 7;
}

// What follows the host of a known hub and its slash; NULL: it is none.
static const char *behind_host(const char *text, enum pull_hub *hub) {
    const char *host = without_scheme(text);
    const size_t n = strcspn(host, "/");
    for (size_t i = 0; i < sizeof hubs / sizeof hubs[0]; i++) {
        if (strlen(hubs[i].host) != n || strncasecmp(hubs[i].host, host, n) != 0) continue;
        *hub = hubs[i].hub;
        return host[n] ? host + n + 1 : host + n;
    }
    return NULL;
}

bool page_is_one(const char *text) {
    enum pull_hub hub;
    return without_scheme(text) != text || behind_host(text, &hub);
}

// The next part of a path into out; false: there is none, or it is too long.
static bool take_part(const char **path, char *out, size_t out_bytes) {
    const size_t n = strcspn(*path, "/");
    if (!n || n >= out_bytes) return false;
    memcpy(out, *path, n);
    out[n] = 0;
    *path += n + ((*path)[n] == '/');
    return true;
}

// "/tree/REV", "/blob/REV/FILE", "/resolve/REV/FILE"; ModelScope's "/file/view/REV/FILE". Other pages of a model are
// the model.
static bool take_rest(const char *path, struct page *p) {
    char what[16];
    if (!take_part(&path, what, sizeof what)) return true;
    const bool tree = !strcmp(what, "tree"), view = !strcmp(what, "file") && text_begins(path, "view/");
    if (view) path += strlen("view/");
    if (!tree && !view && strcmp(what, "blob") != 0 && strcmp(what, "resolve") != 0) return true;
    if (!take_part(&path, p->revision, sizeof p->revision)) return !*path;
    if (strlen(path) >= sizeof p->file) return false;
    if (!tree) snprintf(p->file, sizeof p->file, "%s", path);
    return true;
}

int page_parse(const char *text, struct page *out, struct err *e) {
    char path[1024], owner[250], name[250];
    *out = (struct page){0};
    const char *at = behind_host(text, &out->hub);
    if (!at)
        return err_set(e, ERR_USAGE,
                       "'%.200s' is not at Hugging Face or ModelScope; give OWNER/NAME, such as Qwen/Qwen3-8B", text);
    snprintf(path, sizeof path, "%.*s", (int)strcspn(at, "?#"), at);
    at = path;
    bool good = strlen(path) + 1 < sizeof path;
    if (text_begins(at, "models/")) at += strlen("models/");
    good = good && take_part(&at, owner, sizeof owner) && take_part(&at, name, sizeof name);
    if (good && (!strcmp(owner, "datasets") || !strcmp(owner, "spaces"))) good = false;
    if (good) snprintf(out->model, sizeof out->model, "%s/%s", owner, name);
    if (good) good = take_rest(at, out);
    return good ? ERR_OK
                : err_set(e, ERR_USAGE, "'%.200s' is no model's page; give OWNER/NAME, such as Qwen/Qwen3-8B", text);
}
