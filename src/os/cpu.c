#include "os/cpu.h"

#include <ctype.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

static struct cpu_features features;
static char model_name[64] = "unknown";
static pthread_once_t probe_once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__) || defined(__i386__)
static bool has(unsigned reg, int bit) { return reg >> bit & 1; }

// Which register files the kernel saves at a switch of threads; without that bit the instructions would fault.
static uint64_t xcr0(void) {
    unsigned lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static void probe_name(void) {
    unsigned r[12], max;
    if (!__get_cpuid(0x80000000u, &max, &r[1], &r[2], &r[3]) || max < 0x80000004u) return;
    for (unsigned i = 0; i < 3; i++) __cpuid(0x80000002u + i, r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
    char raw[sizeof r + 1] = {0};
    memcpy(raw, r, sizeof r);
    size_t start = 0, end = strlen(raw);
    while (isspace((unsigned char)raw[start])) start++;
    while (end > start && isspace((unsigned char)raw[end - 1])) end--;
    if (end > start) snprintf(model_name, sizeof model_name, "%.*s", (int)(end - start), raw + start);
}

static void probe(void) {
    unsigned a, b, c, d, b7, c7;
    probe_name();
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    bool osxsave = has(c, 27), fma = has(c, 12), f16c = has(c, 29), avx = has(c, 28);
    if (!osxsave || !avx || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d)) return;
    uint64_t saved = xcr0();
    features.avx2 = fma && f16c && has(b7, 5) && (saved & 0x6) == 0x6;
    bool f = has(b7, 16), dq = has(b7, 17), bw = has(b7, 30), vl = has(b7, 31), vnni = has(c7, 11);
    features.avx512 = features.avx2 && f && dq && bw && vl && vnni && (saved & 0xE6) == 0xE6;
}
#else
static void probe(void) {}
#endif

const struct cpu_features *cpu_features(void) {
    pthread_once(&probe_once, probe);
    return &features;
}

const char *cpu_model_name(void) {
    pthread_once(&probe_once, probe);
    return model_name;
}

// The kernel's small text files. False if there is no such file.
static bool read_text(const char *path, char *out, size_t out_bytes) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t n = fread(out, 1, out_bytes - 1, f);
    out[n] = 0;
    fclose(f);
    return n > 0;
}

uint32_t cpu_count_online(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

uint32_t cpu_count_physical(void) {
    uint32_t cores = 0;
    long n = sysconf(_SC_NPROCESSORS_CONF);
    for (long i = 0; i < n; i++) {
        char path[128], text[256];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/topology/thread_siblings_list", i);
        // "3,11" or "6-7": the first number stands for the core, and each core is counted at that sibling.
        if (read_text(path, text, sizeof text) && strtol(text, NULL, 10) == i) cores++;
    }
    return cores ? cores : cpu_count_online();
}

// Reads a file of the process's own cgroup (version 2), of it and of those above it, and calls see on each.
static void each_cgroup(const char *file, void (*see)(const char *text, void *arg), void *arg) {
    char text[4096], path[4096 + 128];
    if (!read_text("/proc/self/cgroup", text, sizeof text)) return;
    char *own = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");
    if (!own) return;
    own = strchr(own, '/');
    own[strcspn(own, "\n")] = 0;
    for (;;) {
        char value[128];
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", own, file);
        if (read_text(path, value, sizeof value)) see(value, arg);
        char *slash = strrchr(own, '/');
        if (!slash) return;
        *slash = 0;
    }
}

static void see_cpu_max(const char *text, void *arg) {
    uint32_t *n = arg;
    char *end;
    unsigned long quota = strtoul(text, &end, 10), period = strtoul(end, NULL, 10);
    if (end == text || period == 0) return; // "max 100000": no quota
    unsigned long cpus = (quota + period - 1) / period;
    if (cpus >= 1 && cpus < *n) *n = (uint32_t)cpus;
}

uint32_t cpu_count_usable(void) {
    uint32_t n = cpu_count_online();
    // A mask of fixed size is too small for very large machines, so it grows until the kernel takes it.
    for (int max = 1024; max <= 1 << 16; max *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)max);
        if (!set) break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)max);
        int rc = sched_getaffinity(0, bytes, set);
        if (rc == 0) n = (uint32_t)CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (rc == 0) break;
    }
    each_cgroup("cpu.max", see_cpu_max, &n);
    return n ? n : 1;
}

// A line "Name:   123 kB" of /proc/meminfo, in bytes; 0 if there is none.
static uint64_t meminfo_bytes(const char *name) {
    char text[8192];
    if (!read_text("/proc/meminfo", text, sizeof text)) return 0;
    size_t len = strlen(name);
    for (char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, name, len) == 0 && line[len] == ':') return strtoull(line + len + 1, NULL, 10) * 1024;
    }
    return 0;
}

uint64_t cpu_memory_total_bytes(void) { return meminfo_bytes("MemTotal"); }

static void see_memory_max(const char *text, void *arg) {
    uint64_t *limit = arg;
    if (!isdigit((unsigned char)text[0])) return; // "max"
    uint64_t bytes = strtoull(text, NULL, 10);
    if (*limit == 0 || bytes < *limit) *limit = bytes;
}

uint64_t cpu_memory_cgroup_limit_bytes(void) {
    uint64_t limit = 0;
    each_cgroup("memory.max", see_memory_max, &limit);
    return limit;
}

static void see_memory_current(const char *text, void *arg) {
    uint64_t *used = arg;
    if (*used == 0) *used = strtoull(text, NULL, 10);
}

uint64_t cpu_memory_available_bytes(void) {
    uint64_t available = meminfo_bytes("MemAvailable"), limit = cpu_memory_cgroup_limit_bytes(), used = 0;
    if (!limit) return available;
    each_cgroup("memory.current", see_memory_current, &used);
    uint64_t left = limit > used ? limit - used : 0;
    return left < available ? left : available;
}

uint64_t cpu_memory_own_bytes(void) {
    char text[256], *rest;
    if (!read_text("/proc/self/statm", text, sizeof text)) return 0;
    strtoull(text, &rest, 10); // the address space
    return strtoull(rest, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}
