// sim_sim [first_seed [count]]: by default 300 seeds from 1, and then planted faults, each of which must be found.
#include "world.h"

#include <stdio.h>
#include <stdlib.h>

enum { FAULT_SEEDS = 60 };

static const char *fault_name[TOY_FAULTS] = {
    [TOY_SOUND] = "none",
    [TOY_KEEP_SLOT] = "a release is not obeyed",
    [TOY_IGNORE_EPOCH] = "steps of another epoch are run",
    [TOY_RUN_TWICE] = "a step that comes twice is run twice",
    [TOY_TABLE_AT_ZERO] = "block ids go to the front of the table",
    [TOY_RELEASE_LATE] = "releases are obeyed after the rows",
    [TOY_POSITION] = "positions are off by one",
    [TOY_KEEP_EPOCH] = "slots live on in the next epoch",
    [TOY_LOSE_EVENT] = "the head loses token events",
    [TOY_REPEAT_EVENT] = "the head repeats token events",
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

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, count = argc > 2 ? strtoull(argv[2], NULL, 10) : 300;
    struct world_stats s = {0};
    char why[400];
    for (uint64_t seed = first; seed < first + count; seed++) {
        if (world_run(seed, TOY_SOUND, &s, why, sizeof why, stdout)) continue;
        printf("FAILED %s\nrun again: sim_sim %llu 1\n", why, (unsigned long long)seed);
        return 1;
    }
    printf(
        "%llu seeds, %.0f simulated s: %llu requests (%llu finished, %llu cancelled, %llu faults, %llu unavailable, "
        "%llu refused), %llu tokens, %llu steps, %llu preemptions, %llu routes, %llu nodes lost, %llu stale frames\n",
        (unsigned long long)count, 1e-6 * (double)s.simulated_us, (unsigned long long)s.n_requests,
        (unsigned long long)s.n_finished, (unsigned long long)s.n_cancelled, (unsigned long long)s.n_faults,
        (unsigned long long)s.n_unavailable, (unsigned long long)s.n_refused, (unsigned long long)s.n_tokens,
        (unsigned long long)s.n_steps, (unsigned long long)s.n_preemptions, (unsigned long long)s.n_route_changes,
        (unsigned long long)s.n_nodes_lost, (unsigned long long)s.n_stale_frames);
    // A run that met none of these has not tested what it is for.
    if (count >= 100 && !(s.n_preemptions && s.n_cancelled && s.n_faults && s.n_unavailable && s.n_stale_frames)) {
        printf("FAILED: something was never met\n");
        return 1;
    }
    bool ok = true;
    if (argc <= 1)
        for (enum toy_fault f = TOY_SOUND + 1; f < TOY_FAULTS; f++) ok &= finds(f);
    return ok ? 0 : 1;
}
