// Whether this machine may work for the cluster just now: its owner can pause it (node/local_ctl.h), and a command of
// his can say that he needs it himself (--busy-when). It leaves for either reason, and is back when there is none.
//
//              pause, or exit code 0
//     SERVING -----------------------> LEAVING --- away() ---> AWAY
//        ^                                |                      |
//        +--------------------------------+----------------------+
//             resume, and two other exit codes in a row
//
// All on the loop's thread; nothing here blocks it.
#pragma once
#include "base/err.h"
#include "net/loop.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct node;

enum {
    PRESENCE_EVERY_MS = 5000,  // from the end of one run of the command to the next
    PRESENCE_LIMIT_MS = 10000, // a command that takes longer is killed: not busy
    PRESENCE_FREE_ANSWERS = 2, // so many in a row bring the node back
    PRESENCE_TEXT_BYTES = 128
};

struct presence_config {
    const char *busy_when;       // for /bin/sh; exit code 0: the owner is busy. NULL: nothing is run. The caller's
    uint32_t every_ms, limit_ms; // 0: PRESENCE_EVERY_MS, PRESENCE_LIMIT_MS
    // leave(): ask the head to do without us; why lives as long as the program. back(): we may be used again.
    // away(): nothing depends on this node any more.
    void (*leave)(struct node *n, const char *why);
    void (*back)(struct node *n);
    bool (*away)(const struct node *n);
    struct node *node;
};

struct presence {
    struct presence_config config;
    struct loop *loop;
    bool paused, busy, has_left;
    bool complained;          // of a command that cannot be run
    uint32_t n_free;          // answers "free" in a row
    pid_t pid;                // of the command that runs; 0: none does
    int pidfd;                // of it
    struct loop_watch *watch; // of pidfd
    struct loop_timer *timer; // for the next run, or for the end of the present one's time
};

// The first run of the command is at once. Before the loop runs.
int presence_init(struct presence *p, struct loop *l, const struct presence_config *c, struct err *e) MUST_CHECK;
// Kills a command that runs. Also after a failed init, and of a struct of zeros.
void presence_fini(struct presence *p);

void presence_pause(struct presence *p);
void presence_resume(struct presence *p);
bool presence_is_away(const struct presence *p); // it has left, and nothing depends on it
// "serving", "leaving: paused by its owner", "away: its owner is busy".
void presence_describe(const struct presence *p, char out[PRESENCE_TEXT_BYTES]);
