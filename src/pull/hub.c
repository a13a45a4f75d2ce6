#include "pull/hub.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPO_BYTES = 200, MAX_NEAR_BYTES = 256 << 10 };

// owner/name or name, of the letters that hubs allow.
static bool is_repo(const char *s) {
    int slashes = 0;
    if (strlen(s) > MAX_REPO_BYTES || strstr(s, "..")) return false;
    for (const char *p = s; *p; p++) {
        bool starts = p == s || p[-1] == '/';
        if (*p == '/' ? starts || !p[1] || ++slashes > 1
                      : !isalnum((unsigned char)*p) && (starts || !strchr("-._", *p)))
            return false;
    }
    return s[0] != 0;
}

static bool is_plain(const char *s, size_t max_bytes) {
    if (!s[0] || strlen(s) > max_bytes) return false;
    for (; *s; s++)
        if ((unsigned char)*s <= 0x20 || (unsigned char)*s >= 0x7f) return false;
    return true;
}

static const char *token_name(const struct pull_config *c) {
    return c->hub == PULL_HUGGINGFACE ? "HF_TOKEN" : "MODELSCOPE_API_TOKEN";
}

int hub_init(struct hub *h, const struct pull_config *c, struct err *e) {
    const char *revision = c->revision ? c->revision : c->hub == PULL_HUGGINGFACE ? "main" : "master";
    *h = (struct hub){.config = c};
    if (!is_repo(c->repo))
        return err_set(e, ERR_USAGE, "'%.100s' is not a model of a hub, such as Qwen/Qwen3-8B", c->repo);
    if (!is_plain(revision, sizeof h->revision - 1))
        return err_set(e, ERR_USAGE, "--revision: '%.100s' is not a branch, tag or commit", revision);
    if ((strncmp(c->endpoint, "http://", 7) != 0 && strncmp(c->endpoint, "https://", 8) != 0) ||
        !is_plain(c->endpoint, 500))
        return err_set(e, ERR_USAGE, "the endpoint '%.100s' is not a URL such as https://huggingface.co", c->endpoint);
    if (c->token && !is_plain(c->token, 1000)) return err_set(e, ERR_USAGE, "%s: is not a token", token_name(c));
    snprintf(h->revision, sizeof h->revision, "%s", revision);
    return ERR_OK;
}

// Text as a part of a URL; slashes stay if they may.
static int add_escaped(struct buf *b, const char *s, bool keep_slash) {
    int rc = ERR_OK;
    for (; *s && !rc; s++) {
        if (isalnum((unsigned char)*s) || strchr("-._~", *s) || (*s == '/' && keep_slash))
            rc = buf_add(b, s, 1);
        else
            rc = buf_addf(b, "%%%02X", (unsigned char)*s);
    }
    return rc;
}

static int add_endpoint(struct buf *b, const struct hub *h) {
    size_t n = strlen(h->config->endpoint);
    while (n && h->config->endpoint[n - 1] == '/') n--;
    return buf_add(b, h->config->endpoint, n);
}

// Endpoint, before, repo, between, revision as one part, behind.
static int make_url(const struct hub *h, const char *before, const char *between, const char *behind,
                    char out[LIMIT_PULL_URL], struct err *e) {
    struct buf b;
    buf_init(&b, LIMIT_PULL_URL);
    int rc = add_endpoint(&b, h);
    if (!rc) rc = buf_addf(&b, "%s%s%s", before, h->config->repo, between);
    if (!rc) rc = add_escaped(&b, h->revision, false);
    if (!rc) rc = buf_addf(&b, "%s", behind);
    const char *text = rc ? NULL : buf_cstr(&b);
    rc = text ? ERR_OK : err_set(e, ERR_LIMIT, "%s: the URL is too long", h->config->repo);
    if (!rc) memcpy(out, text, b.len_bytes + 1);
    buf_fini(&b);
    return rc;
}

int hub_file_url(const struct hub *h, const char *path, char out[LIMIT_PULL_URL], struct err *e) {
    struct buf b;
    bool hf = h->config->hub == PULL_HUGGINGFACE;
    buf_init(&b, LIMIT_PULL_URL / 2);
    const char *behind = add_escaped(&b, path, hf) ? NULL : buf_cstr(&b);
    char tail[LIMIT_PULL_URL / 2 + 16];
    int rc = behind ? ERR_OK : err_set(e, ERR_LIMIT, "%s: %.200s: the URL is too long", h->config->repo, path);
    if (!rc) {
        snprintf(tail, sizeof tail, "%s%s", hf ? "/" : "&FilePath=", behind);
        rc = hf ? make_url(h, "/", "/resolve/", tail, out, e)
                : make_url(h, "/api/v1/models/", "/repo?Revision=", tail, out, e);
    }
    buf_fini(&b);
    return rc;
}

// Models whose names are like this one's: a courtesy, so nothing is said if it fails.
static void near_names(const struct hub *h, char *out, size_t out_bytes) {
    const char *name = strrchr(h->config->repo, '/');
    struct pull_config once = *h->config;
    struct answer a;
    struct buf b, url;
    struct err unused;
    long status;
    out[0] = 0;
    if (h->config->hub != PULL_HUGGINGFACE) return;
    once.retries = 0;
    buf_init(&url, LIMIT_PULL_URL);
    buf_init(&b, MAX_NEAR_BYTES);
    int rc = add_endpoint(&url, h);
    if (!rc) rc = buf_addf(&url, "/api/models?limit=5&search=");
    if (!rc) rc = add_escaped(&url, name ? name + 1 : h->config->repo, false);
    const char *text = rc ? NULL : buf_cstr(&url);
    if (text && !request_get(&once, text, &b, &a, &status, &unused) && status == 200)
        listing_ids((const char *)b.data, b.len_bytes, out, out_bytes);
    buf_fini(&b);
    buf_fini(&url);
}

static int not_there(const struct hub *h, const char *path, const struct answer *a, struct err *e) {
    char near[200];
    if (!strcmp(a->error_code, "RevisionNotFound"))
        return err_set(e, ERR_NOT_FOUND, "%s: has no revision '%.100s'", h->config->repo, h->revision);
    if (path)
        return err_set(e, ERR_NOT_FOUND, "%s: %.200s: is in the listing, but cannot be had (HTTP 404)", h->config->repo,
                       path);
    near_names(h, near, sizeof near);
    return err_set(e, ERR_NOT_FOUND, "%s: no such model at %.100s, or no revision '%.60s' of it%s%s", h->config->repo,
                   h->config->endpoint, h->revision, near[0] ? "; it has " : "", near);
}

int hub_refused(const struct hub *h, const char *path, long status, const struct answer *a, struct err *e) {
    const struct pull_config *c = h->config;
    const char *models = c->hub == PULL_HUGGINGFACE ? "" : "models/", *token = token_name(c);
    if (status == 404) return not_there(h, path, a, e);
    if ((status == 401 || status == 403) && !c->token)
        return err_set(e, ERR_AUTH,
                       "%s: the hub does not give it to strangers (HTTP %ld)%s: ask for access at %.100s/%s%s, make a "
                       "token there, and set %s",
                       c->repo, status, status == 401 ? ", or has no such model" : "", c->endpoint, models, c->repo,
                       token);
    if (status == 401 || status == 403)
        return err_set(e, ERR_AUTH, "%s: %s does not open it (HTTP %ld%s%.100s): ask for access at %.100s/%s%s",
                       c->repo, token, status, a->error_message[0] ? ": " : "", a->error_message, c->endpoint, models,
                       c->repo);
    return err_set(e, ERR_NET, "%s: %.200s%sthe hub answers HTTP %ld%s%.100s", c->repo, path ? path : "",
                   path ? ": " : "", status, a->error_message[0] ? ": " : "", a->error_message);
}

// A page of JSON. Any status but 200 is an error.
static int get_page(const struct hub *h, const char *url, struct buf *b, struct answer *a, struct err *e) {
    long status;
    int rc = request_get(h->config, url, b, a, &status, e);
    if (rc || status == 200) return rc;
    // ModelScope explains itself in the body.
    if (!a->error_message[0] && h->config->hub == PULL_MODELSCOPE)
        listing_string((const char *)b->data, b->len_bytes, "Message", a->error_message, sizeof a->error_message);
    return hub_refused(h, NULL, status, a, e);
}

// The commit that a branch or tag stands for, so that all pages and files are of one.
static int pin_revision(struct hub *h, struct buf *b, struct err *e) {
    char url[LIMIT_PULL_URL], sha[sizeof h->revision];
    struct answer a;
    int rc = make_url(h, "/api/models/", "/revision/", "", url, e);
    if (!rc) rc = get_page(h, url, b, &a, e);
    if (rc) return rc;
    listing_string((const char *)b->data, b->len_bytes, "sha", sha, sizeof sha);
    size_t n = strlen(sha);
    if ((n != 40 && n != 64) || strspn(sha, "0123456789abcdef") != n)
        return err_set(e, ERR_FORMAT, "the hub does not say which commit '%.100s' is (its sha is no commit's)",
                       h->revision);
    memcpy(h->revision, sha, n + 1);
    return ERR_OK;
}

bool hub_next_page(const char *link, char *out, size_t out_bytes) {
    static const char rel[] = "rel=\"next\"", api[] = "/api/models/";
    while ((link = strchr(link, '<'))) {
        const char *end = strchr(link, '>');
        if (!end) return false;
        const char *stop = strchr(end, '<'), *next = strstr(end, rel), *path = strstr(link, api);
        if (next && (!stop || next < stop) && path && path < end) {
            path += sizeof api - 1;
            size_t n = (size_t)(end - path);
            if (!n || n >= out_bytes) return false;
            memcpy(out, path, n);
            out[n] = 0;
            return is_plain(out, n);
        }
        link = end;
    }
    return false;
}

// The URL of the page that a Link header names; *more false: that was the last.
static int follow(const struct hub *h, const char *link, char url[LIMIT_PULL_URL], bool *more, struct err *e) {
    char rest[2048], want[MAX_REPO_BYTES + 8];
    struct buf b;
    *more = hub_next_page(link, rest, sizeof rest);
    if (!*more) return ERR_OK;
    snprintf(want, sizeof want, "%s/tree/", h->config->repo);
    if (strncmp(rest, want, strlen(want)) != 0 || strstr(rest, "/.."))
        return err_set(e, ERR_FORMAT, "the listing: its next page is not one of %s", h->config->repo);
    buf_init(&b, LIMIT_PULL_URL);
    int rc = add_endpoint(&b, h);
    if (!rc) rc = buf_addf(&b, "/api/models/%s", rest);
    const char *text = rc ? NULL : buf_cstr(&b);
    rc = text ? ERR_OK : err_set(e, ERR_LIMIT, "the listing: the URL of a page is too long");
    if (!rc) memcpy(url, text, b.len_bytes + 1);
    buf_fini(&b);
    return rc;
}

static int list_huggingface(struct hub *h, struct listing *l, struct buf *b, struct err *e) {
    char url[LIMIT_PULL_URL];
    struct answer a;
    bool more = true;
    int rc = pin_revision(h, b, e);
    if (!rc) rc = make_url(h, "/api/models/", "/tree/", "?recursive=true", url, e);
    for (int page = 0; !rc && more; page++) {
        if (page == LIMIT_PULL_PAGES) return err_set(e, ERR_LIMIT, "the listing: more than %d pages", LIMIT_PULL_PAGES);
        rc = get_page(h, url, b, &a, e);
        if (!rc) rc = listing_add_hf(l, (const char *)b->data, b->len_bytes, e);
        if (!rc) rc = follow(h, a.link, url, &more, e);
    }
    return rc;
}

static int list_modelscope(struct hub *h, struct listing *l, struct buf *b, struct err *e) {
    char url[LIMIT_PULL_URL];
    struct answer a;
    int rc = make_url(h, "/api/v1/models/", "/repo/files?Revision=", "&Recursive=true", url, e);
    if (!rc) rc = get_page(h, url, b, &a, e);
    return rc ? rc : listing_add_modelscope(l, (const char *)b->data, b->len_bytes, e);
}

int hub_list(struct hub *h, struct listing *l, struct err *e) {
    struct buf b;
    *l = (struct listing){0};
    buf_init(&b, LIMIT_PULL_PAGE_BYTES);
    int rc = h->config->hub == PULL_HUGGINGFACE ? list_huggingface(h, l, &b, e) : list_modelscope(h, l, &b, e);
    buf_fini(&b);
    if (!rc) rc = listing_finish(l, e);
    if (!rc && !l->n) rc = err_set(e, ERR_NOT_FOUND, "%s: has no files", h->config->repo);
    // Only what came over the network needs to be told whose fault it is.
    return rc == ERR_FORMAT ? err_prefix(e, "%s", h->config->repo) : rc;
}
