#include "cmd/flags.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "os/file.h"

bool flags_chinese(void) {
    static const char *const names[] = {"LC_ALL", "LC_MESSAGES", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *v = getenv(names[i]);
        if (v && v[0]) return strncmp(v, "zh", 2) == 0;
    }
    return false;
}

static int parse_number(const struct flag *f, const char *text, double least, double most, bool whole, double *out,
                        struct err *e) {
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (f->min != 0 || f->max != 0) {
        least = f->min;
        most = f->max;
    }
    if (end == text || *end || errno || !isfinite(v) || (whole && v != floor(v)) || v < least || v > most)
        return err_set(e, ERR_USAGE, "%s: '%s' is not a%s number from %.15g to %.15g", f->name, text,
                       whole ? " whole" : "", least, most);
    *out = v;
    return ERR_OK;
}

static int parse_i64(const struct flag *f, const char *text, struct err *e) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno) return err_set(e, ERR_USAGE, "%s: '%s' is not a whole number", f->name, text);
    if ((f->min != 0 || f->max != 0) && ((double)v < f->min || (double)v > f->max))
        return err_set(e, ERR_USAGE, "%s: %lld is not from %.0f to %.0f", f->name, v, f->min, f->max);
    *(int64_t *)f->value = v;
    return ERR_OK;
}

static int parse_bytes(const struct flag *f, const char *text, struct err *e) {
    char *end;
    double v = strtod(text, &end);
    int shift = 0;
    if (end != text && *end) {
        static const char units[] = "KMGT";
        const char *u = strchr(units, *end >= 'a' ? *end - 32 : *end);
        if (u) {
            shift = 10 * (int)(u - units + 1);
            end++;
            if (*end == 'i') end++;
            if (*end == 'B' || *end == 'b') end++;
        }
    }
    v = ldexp(v, shift);
    if (end == text || *end || !(v >= 0) || v > 0x1p50)
        return err_set(e, ERR_USAGE, "%s: '%s' is not a size such as 512M or 8G, up to 1024T", f->name, text);
    if (v < f->min)
        return err_set(e, ERR_USAGE, "%s: '%s' is too little: at least %.0fK are needed", f->name, text, f->min / 1024);
    *(uint64_t *)f->value = (uint64_t)v;
    return ERR_OK;
}

static int parse_list(const struct flag *f, const char *text, struct err *e) {
    struct flag_u32s *list = f->value;
    list->n = 0;
    for (const char *p = text;; p++) {
        char *end;
        unsigned long v = strtoul(p, &end, 10);
        if (end == p || (*end && *end != ',') || v > UINT32_MAX || *p == '-' || list->n == FLAG_LIST_MAX)
            return err_set(e, ERR_USAGE, "%s: '%s' is not a list of up to %d whole numbers such as 4,4,4", f->name,
                           text, FLAG_LIST_MAX);
        list->value[list->n++] = (uint32_t)v;
        if (!*end) return ERR_OK;
        p = end;
    }
}

static int set_value(const struct flag *f, const char *text, struct err *e) {
    double v = 0;
    int rc = ERR_OK;
    switch (f->kind) {
    case FLAG_STRING:
        *(const char **)f->value = text;
        break;
    case FLAG_U32:
        rc = parse_number(f, text, 0, UINT32_MAX, true, &v, e);
        if (!rc) *(uint32_t *)f->value = (uint32_t)v;
        break;
    case FLAG_F64:
        rc = parse_number(f, text, -HUGE_VAL, HUGE_VAL, false, f->value, e);
        break;
    case FLAG_I64:
        rc = parse_i64(f, text, e);
        break;
    case FLAG_BYTES:
        rc = parse_bytes(f, text, e);
        break;
    case FLAG_U32S:
        rc = parse_list(f, text, e);
        break;
    case FLAG_STRINGS: {
        struct flag_strings *list = f->value;
        if (list->n == FLAG_LIST_MAX)
            return err_set(e, ERR_USAGE, "%s: given more than %d times", f->name, FLAG_LIST_MAX);
        list->value[list->n++] = text;
        break;
    }
    case FLAG_BOOL:
    case FLAG_END:
        ASSERT(false, "%s takes no value", f->name);
    }
    return rc;
}

static const struct flag *find(const struct flag *const *tables, const char *name, size_t len) {
    for (; *tables; tables++)
        for (const struct flag *f = *tables; f->kind != FLAG_END; f++)
            if (strlen(f->name) == len && !memcmp(f->name, name, len)) return f;
    return NULL;
}

static void print_flag(const struct flag *f) {
    char left[64];
    snprintf(left, sizeof left, "%s %s", f->name, f->kind == FLAG_BOOL ? "" : f->arg);
    printf("  %-26s %s\n", left, flags_text(f->en, f->zh));
}

static void print_help(const struct command *c, const struct flag *const *tables) {
    printf("%s: loom %s %s\n%s\n\n", flags_text("usage", "用法"), c->name, c->args, flags_text(c->en, c->zh));
    for (; *tables; tables++)
        for (const struct flag *f = *tables; f->kind != FLAG_END; f++) print_flag(f);
}

// One flag at argv[*i], with its value perhaps in argv[*i + 1].
static int parse_one(const struct flag *const *tables, int argc, char **argv, int *i, struct err *e) {
    const char *arg = argv[*i], *eq = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;
    size_t len = eq ? (size_t)(eq - arg) : strlen(arg);
    const struct flag *f = find(tables, arg, len);
    if (!f) return err_set(e, ERR_USAGE, "%.*s: no such flag", (int)len, arg);
    if (f->kind == FLAG_BOOL) {
        if (eq) return err_set(e, ERR_USAGE, "%s: takes no value", f->name);
        *(bool *)f->value = true;
        return ERR_OK;
    }
    if (eq) return set_value(f, eq + 1, e);
    if (*i + 1 >= argc) return err_set(e, ERR_USAGE, "%s: a value is missing: %s %s", f->name, f->name, f->arg);
    return set_value(f, argv[++*i], e);
}

int flags_parse(const struct command *c, const struct flag *const *tables, int argc, char **argv, const char **rest,
                int max_rest, int *n_rest, struct err *e) {
    bool only_rest = false;
    *n_rest = 0;
    for (int i = 0; i < argc; i++) {
        if (!only_rest && !strcmp(argv[i], "--")) {
            only_rest = true;
        } else if (!only_rest && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            print_help(c, tables);
            return err_set(e, ERR_CANCELLED, "help");
        } else if (!only_rest && argv[i][0] == '-' && argv[i][1]) {
            int rc = parse_one(tables, argc, argv, &i, e);
            if (rc) return rc;
        } else {
            if (*n_rest == max_rest) return err_set(e, ERR_USAGE, "'%s': one argument too many", argv[i]);
            rest[(*n_rest)++] = argv[i];
        }
    }
    return ERR_OK;
}

static char *trim(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    size_t n = strlen(s);
    while (n && strchr(" \t\r\n", s[n - 1])) s[--n] = 0;
    return s;
}

static int parse_line(char *line, const struct flag *const *tables, struct err *e) {
    char *hash = line[0] == '#' ? line : strstr(line, " #");
    if (hash) *hash = 0;
    char *text = trim(line);
    if (!*text) return ERR_OK;
    char *eq = strchr(text, '=');
    if (eq) *eq = 0;
    char name[64];
    snprintf(name, sizeof name, "--%s", trim(text));
    const struct flag *f = find(tables, name, strlen(name));
    if (!f) return err_set(e, ERR_USAGE, "'%s': no such setting", name + 2);
    char *value = eq ? trim(eq + 1) : NULL;
    if (f->kind == FLAG_BOOL) {
        if (value && strcmp(value, "true") && strcmp(value, "false"))
            return err_set(e, ERR_USAGE, "%s: '%s' is neither true nor false", name + 2, value);
        *(bool *)f->value = !value || !strcmp(value, "true");
        return ERR_OK;
    }
    if (!value) return err_set(e, ERR_USAGE, "%s: a value is missing: %s = %s", name + 2, name + 2, f->arg);
    return set_value(f, value, e);
}

int flags_parse_file(const char *path, const struct flag *const *tables, char **text, struct err *e) {
    char *next = NULL;
    size_t len;
    *text = NULL;
    int rc = file_read(path, LIMIT_CONFIG_BYTES, text, &len, e);
    if (rc) return rc;
    int number = 0;
    for (char *line = *text; line && !rc; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        number++;
        rc = parse_line(line, tables, e);
    }
    return rc ? err_prefix(e, "%s:%d", path, number) : ERR_OK;
}

int flags_fail(const struct command *c, const struct err *e) {
    char text[sizeof e->text];
    if (e->code == ERR_CANCELLED) return EXIT_FINE;
    // A name out of somebody's file must not move the cursor or colour the terminal, and one error is one line.
    memcpy(text, e->text, sizeof text);
    for (char *s = text; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
    if (e->code == ERR_USAGE) {
        fprintf(stderr, "loom %s: %s (loom %s --help)\n", c->name, text, c->name);
        return EXIT_USAGE;
    }
    fprintf(stderr, "loom %s: %s\n", c->name, text);
    return EXIT_FAILED;
}

int flags_check_stdout(struct err *e) {
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout)) return ERR_OK;
    return err_set(e, ERR_IO, "stdout: %s", errno ? strerror(errno) : "what was to be printed could not be written");
}
