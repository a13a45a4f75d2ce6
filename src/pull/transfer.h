// One connection's work: a range of one file, checked against what was asked for and written where it belongs.
// Not thread-safe.
#pragma once
#include "pull/disk.h"
#include "pull/hub.h"

enum transfer_phase { TRANSFER_IDLE, TRANSFER_RUNS, TRANSFER_WAITS };

// What is wrong with an answer although the connection is fine.
enum transfer_fault {
    TRANSFER_FINE,
    TRANSFER_NO_RANGES, // the server sends whole files only
    TRANSFER_CHANGED,   // it has another content than the one that was begun
    TRANSFER_LIES,      // other sizes than the listing's; e says which
    TRANSFER_DISK       // the bytes could not be written; e says why
};

// What a transfer needs to know of its file; lives as long as the file is open.
struct transfer_file {
    const struct listing_file *want;
    struct disk_paths paths;
    struct state state;
    int fd;
    bool whole; // no ranges: the one transfer brings everything, or begins anew
};

struct transfer {
    enum transfer_phase phase;
    uint32_t index;             // of the file, for the owner
    struct transfer_file *file; // NULL while idle
    uint64_t begin, at, end;    // bytes of the file: [begin, at) are written since the last commit
    uint64_t best;              // how far any try came: only bytes past it are progress
    uint32_t tries;             // in a row that brought nothing new
    uint64_t again_ms;          // while it waits
    struct request request;
    bool accepted; // the head of the answer is right
    enum transfer_fault fault;
    struct err e;
};

// Prepares the request for [begin, end); the caller adds request.easy to its multi handle.
int transfer_start(struct transfer *t, const struct hub *h, struct err *e) MUST_CHECK;
// Looks at the head of an answer that had no bytes.
void transfer_accept(struct transfer *t);
// What has come so far counts as done in the file's state, unless the file comes as a whole and is not complete.
void transfer_commit(struct transfer *t);
