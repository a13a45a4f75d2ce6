// loom pull: a model from Hugging Face, ModelScope, or what speaks like them.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"
#include "cmd/cmd.h"
#include "os/clock.h"
#include "pull/choice.h"
#include "pull/page.h"
#include "pull/pull.h"

// What is shown on stderr, and the signals that end it.
struct show {
    bool quiet, terminal;
    bool drawn; // a line of progress stands there, without its end
    sigset_t signals;
    bool stopped;
    uint64_t first_ms, first_bytes, last_ms, last_bytes;
    double bytes_per_s; // smoothed
};

static bool stop(void *arg) {
    struct show *s = arg;
    struct timespec now = {0};
    if (!s->stopped) s->stopped = sigtimedwait(&s->signals, NULL, &now) > 0;
    return s->stopped;
}

static void clear_line(struct show *s) {
    if (s->drawn) fprintf(stderr, "\r\033[K");
    s->drawn = false;
}

static void note(void *arg, const char *text) {
    struct show *s = arg;
    if (s->quiet) return;
    clear_line(s);
    // Names and reasons come from the hub: they must not move the cursor.
    fputs("loom pull: ", stderr);
    for (; *text; text++) fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, stderr);
    fputc('\n', stderr);
}

static void duration_text(double seconds, char *out, size_t out_bytes) {
    unsigned s = seconds < 359999 ? (unsigned)(seconds + 0.5) : 359999;
    if (s >= 3600)
        snprintf(out, out_bytes, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, out_bytes, "%u:%02u", s / 60, s % 60);
}

static void progress(void *arg, const struct pull_progress *p) {
    struct show *s = arg;
    char done[24], total[24], rate[24], left[24] = "-";
    uint64_t now_ms = clock_now_ms();
    if (s->quiet || !s->terminal) return;
    if (!s->last_ms) {
        s->last_ms = now_ms;
        s->last_bytes = p->done_bytes;
    } else if (now_ms - s->last_ms >= 500) {
        double came = p->done_bytes > s->last_bytes ? (double)(p->done_bytes - s->last_bytes) : 0;
        double now = came * 1000 / (double)(now_ms - s->last_ms);
        s->bytes_per_s = s->bytes_per_s > 0 ? 0.8 * s->bytes_per_s + 0.2 * now : now;
        s->last_ms = now_ms;
        s->last_bytes = p->done_bytes;
    }
    choice_size_text(p->done_bytes, done, sizeof done);
    choice_size_text(p->total_bytes, total, sizeof total);
    choice_size_text((uint64_t)s->bytes_per_s, rate, sizeof rate);
    if (s->bytes_per_s >= 1)
        duration_text((double)(p->total_bytes - p->done_bytes) / s->bytes_per_s, left, sizeof left);
    fprintf(stderr, "\r\033[K%3.0f%% %s / %s, ",
            p->total_bytes ? 100.0 * (double)p->done_bytes / (double)p->total_bytes : 100.0, done, total);
    if (p->hashing)
        fprintf(stderr, flags_text("checking the hashes (%u of %u files)", "正在校验哈希（%u / %u 个文件）"),
                p->files_done, p->files);
    else
        fprintf(stderr, flags_text("%s/s, %s left", "%s/s，剩余 %s"), rate, left);
    s->drawn = true;
}

static void tell_result(struct show *s, const struct pull_result *r) {
    char bytes[24];
    if (s->quiet) return;
    choice_size_text(r->bytes, bytes, sizeof bytes);
    if (!r->fetched)
        fprintf(stderr, flags_text("already complete: %u files, %s\n", "已是完整的：%u 个文件，%s\n"), r->files, bytes);
    else
        fprintf(
            stderr,
            flags_text("complete: %u files, %s; %u of them fetched now\n", "已完成：%u 个文件，%s；本次下载 %u 个\n"),
            r->files, bytes, r->fetched);
    if (r->not_verified)
        fprintf(stderr,
                flags_text("the hub named no hash for %u of them: only their sizes are checked\n",
                           "其中 %u 个文件站点未给出哈希，只核对了大小\n"),
                r->not_verified);
}

static const char *environment(const char *name) {
    const char *v = getenv(name);
    return v && v[0] ? v : NULL;
}

// Which hub: as --from says, or the page that was given; else ModelScope, where only its endpoint is set.
static int choose_hub(const char *from, const struct page *page, struct pull_config *c, struct err *e) {
    const char *hf = environment("HF_ENDPOINT"), *ms = environment("MODELSCOPE_ENDPOINT");
    if (from && strcmp(from, "huggingface") != 0 && strcmp(from, "modelscope") != 0)
        return err_set(e, ERR_USAGE, "--from: '%s' is neither huggingface nor modelscope", from);
    const char *page_hub = page->hub == PULL_MODELSCOPE ? "modelscope" : "huggingface";
    if (page->model[0] && from && strcmp(from, page_hub) != 0)
        return err_set(e, ERR_USAGE, "--from: %s, but the page is at %s", from, page_hub);
    if (page->model[0]) from = page_hub;
    bool modelscope = from ? !strcmp(from, "modelscope") : ms && !hf;
    c->hub = modelscope ? PULL_MODELSCOPE : PULL_HUGGINGFACE;
    if (modelscope) {
        c->endpoint = ms ? ms : "https://modelscope.cn";
        c->token = environment("MODELSCOPE_API_TOKEN");
    } else {
        c->endpoint = hf ? hf : "https://huggingface.co";
        c->token = environment("HF_TOKEN");
    }
    return ERR_OK;
}

// "owner/name:FILE" -> repo and file; the folder is named after the model unless out is given.
static int take_argument(const char *text, char repo[512], char out[512], struct pull_config *c, struct err *e) {
    const char *colon = strchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : strlen(text);
    if (!n || n >= 500) return err_set(e, ERR_USAGE, "'%.100s': the model is missing, such as Qwen/Qwen3-8B", text);
    if (colon && !colon[1]) return err_set(e, ERR_USAGE, "'%.100s': nothing follows the colon", text);
    snprintf(repo, 512, "%.*s", (int)n, text);
    c->repo = repo;
    c->file = colon ? colon + 1 : NULL;
    const char *slash = strrchr(repo, '/');
    snprintf(out, 512, "./%s", slash ? slash + 1 : repo);
    if (!c->out) c->out = out;
    return c->out[0] ? ERR_OK : err_set(e, ERR_USAGE, "--out: the name of a folder is missing");
}

// A page's address instead of REPO[:FILE]: *what becomes the model there.
static int take_page(const char **what, struct page *page, struct pull_config *c, struct err *e) {
    *page = (struct page){0};
    if (!page_is_one(*what)) return ERR_OK;
    int rc = page_parse(*what, page, e);
    if (rc) return rc;
    *what = page->model;
    if (page->revision[0] && !c->revision) c->revision = page->revision;
    return ERR_OK;
}

static int pull(struct show *s, struct pull_config *c, struct err *e) {
    struct pull_result r;
    sigemptyset(&s->signals);
    sigaddset(&s->signals, SIGINT);
    sigaddset(&s->signals, SIGTERM);
    sigaddset(&s->signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &s->signals, NULL);
    int rc = pull_run(c, &r, e);
    clear_line(s);
    // Cancelled is what --help is; this is a failure, though one that was asked for.
    if (rc == ERR_CANCELLED)
        return err_set(e, ERR_UNAVAILABLE, "%s: stopped; what came is kept, the same command goes on", c->repo);
    if (rc) return rc;
    tell_result(s, &r);
    printf("%s\n", r.path);
    return ERR_OK;
}

static int run(const struct command *c, int argc, char **argv) {
    struct show s = {.terminal = isatty(STDERR_FILENO) == 1};
    struct pull_config p = {
        .connections = 4, .retries = 10, .progress = progress, .note = note, .stop = stop, .arg = &s};
    const char *what, *from = NULL;
    char repo[512], out[512];
    struct page page;
    const struct flag own[] = {
        {"--from", FLAG_STRING, &from, 0, 0, "HUB", "huggingface (default) or modelscope",
         "huggingface（默认）或 modelscope"},
        {"--revision", FLAG_STRING, &p.revision, 0, 0, "REV", "a branch, tag or commit", "分支、标签或提交"},
        {"--out", FLAG_STRING, &p.out, 0, 0, "DIR", "where to (default: a folder with the model's name)",
         "目标目录（默认与模型同名）"},
        {"--connections", FLAG_U32, &p.connections, 1, LIMIT_PULL_CONNECTIONS, "N", "at once (default 4)",
         "同时的连接数（默认 4）"},
        {"--retries", FLAG_U32, &p.retries, 0, 1000, "N",
         "how often in a row a connection may fail without bringing anything (default 10)",
         "连接连续无进展时的重试次数（默认 10）"},
        {"--quiet", FLAG_BOOL, &s.quiet, 0, 0, "", "errors only", "只显示错误"},
        {0}};
    const struct flag *tables[] = {own, NULL};
    int n_rest;
    struct err e;
    int rc = flags_parse(c, tables, argc, argv, &what, 1, &n_rest, &e);
    if (!rc && n_rest != 1) rc = err_set(&e, ERR_USAGE, "REPO is missing, such as Qwen/Qwen3-8B");
    if (!rc) rc = take_page(&what, &page, &p, &e);
    if (!rc) rc = choose_hub(from, &page, &p, &e);
    if (!rc) rc = take_argument(what, repo, out, &p, &e);
    if (!rc && page.file[0]) p.file = page.file;
    if (!rc) rc = pull(&s, &p, &e);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_pull = {.name = "pull",
                                 .args = "REPO[:FILE] [--out DIR] [--revision REV] [--from modelscope]",
                                 .en = "fetch a model from Hugging Face or ModelScope",
                                 .zh = "从 Hugging Face 或 ModelScope 下载模型",
                                 .run = run};
