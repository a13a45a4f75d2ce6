// sim_sim [first_seed [count]]: by default 300 seeds from 1, and then planted faults, each of which must be found.
#include "world.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { FAULT_SEEDS = 60 };

static const char *fault_name[TOY_FAULTS] = {
    [TOY_SOUND] = "none",
    [TOY_KEEP_SLOT] = "a release is not obeyed",
    [TOY_RUN_TWICE] = "a step that comes twice is run twice",
    [TOY_TABLE_AT_ZERO] = "block ids go to the front of the table",
    [TOY_RELEASE_LATE] = "releases are obeyed after the rows",
    [TOY_POSITION] = "positions are off by one",
    [TOY_KEEP_EPOCH] = "slots live on in the next epoch",
    [TOY_LOSE_EVENT] = "the head loses token events",
    [TOY_REPEAT_EVENT] = "the head repeats token events",
    [TOY_SHADOW_MISSES] = "a shadow leaves chunks out",
    [TOY_STABLE_HIGH] = "nodes hold a step for stable that is not",
    [TOY_REPLAY_FORGETS] = "a replay leaves out a sequence",
    [TOY_CHUNK_ORDER] = "rows of a chunk change places",
    [TOY_CHUNK_RELEASE] = "the releases of a chunk are lost",
    [TOY_HOT_SILENT] = "a promoted shadow does not send its first step",
};

static bool finds(enum toy_fault fault) {
    char why[400];
    struct world_stats stats = {0};
    for (uint64_t seed = 1; seed <= FAULT_SEEDS; seed++) {
        if (world_run(seed, fault, &stats, why, sizeof why, NULL)) continue;
        printf("planted fault (%s) found: %s\n", fault_name[fault], why);
        return true;
    }
    printf("planted fault (%s) NOT found in %d seeds\n", fault_name[fault], FAULT_SEEDS);
    return false;
}

struct figure {
    const char *name;
    size_t at; // in struct world_stats
    bool must; // be met in a run of some length
};

#define FIGURE(name, must)                                                                                             \
    { #name, offsetof(struct world_stats, n_##name), must }
static const struct figure figures[] = {
    FIGURE(requests, true),    FIGURE(finished, true),      FIGURE(cancelled, true),     FIGURE(faults, true),
    FIGURE(unavailable, true), FIGURE(refused, false),      FIGURE(tokens, true),        FIGURE(steps, true),
    FIGURE(preemptions, true), FIGURE(route_changes, true), FIGURE(nodes_lost, true),    FIGURE(stale_frames, true),
    FIGURE(promotions, true),  FIGURE(suspicions, true),    FIGURE(false_alarms, true),  FIGURE(drained, true),
    FIGURE(replays, true),     FIGURE(chunks, true),        FIGURE(lost_cursors, false), FIGURE(log_full, false),
    FIGURE(no_replay, false),  FIGURE(gaps, true),          FIGURE(watched, true),
};

static uint64_t value(const struct world_stats *s, const struct figure *f) {
    return *(const uint64_t *)(const void *)((const char *)s + f->at);
}

static void print_stats(const struct world_stats *s, uint64_t n_seeds) {
    printf("%llu seeds, %.0f simulated s", (unsigned long long)n_seeds, 1e-6 * (double)s->simulated_us);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        printf(", %llu %s", (unsigned long long)value(s, &figures[i]), figures[i].name);
    printf("\n");
}

static bool has_met_all(const struct world_stats *s) {
    bool all = true;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (figures[i].must) all &= value(s, &figures[i]) > 0;
    return all;
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, count = argc > 2 ? strtoull(argv[2], NULL, 10) : 300;
    struct world_stats s = {0};
    char why[400];
    for (uint64_t seed = first; seed < first + count; seed++) {
        if (world_run(seed, TOY_SOUND, &s, why, sizeof why, stdout)) continue;
        printf("FAILED %s\nrun again: sim_sim %llu 1\n", why, (unsigned long long)seed);
        return 1;
    }
    print_stats(&s, count);
    // A run that met none of these has not tested what it is for.
    if (count >= 100 && !has_met_all(&s)) {
        printf("FAILED: something was never met\n");
        return 1;
    }
    bool ok = true;
    if (argc <= 1)
        for (enum toy_fault f = TOY_SOUND + 1; f < TOY_FAULTS; f++) ok &= finds(f);
    return ok ? 0 : 1;
}
