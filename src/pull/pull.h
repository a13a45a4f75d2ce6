// `loom pull`: a model from a hub into a folder. Everything runs in the calling thread, but for hashing and fsync,
// which have two threads of their own while pull_run runs.
//
//   hub (listing) -> choice (which files) -> fetch (connections, ranges, resume) -> disk (hash, put in place)
//
// In the folder, .loom-pull/ holds the lock, a record of what is complete, and for each file that is not, PATH.part and
// PATH.state. A file stands under its own name only when its size and hash are what the hub announced.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

enum pull_hub { PULL_HUGGINGFACE, PULL_MODELSCOPE };

struct pull_progress {
    uint64_t done_bytes, total_bytes; // done: those that lay there before, too
    uint32_t files_done, files;
    bool hashing; // all bytes are here; the hashes are being computed
};

// All strings are the caller's, and outlive pull_run. The functions are called from its thread.
struct pull_config {
    enum pull_hub hub;
    const char *endpoint; // "https://huggingface.co"
    const char *token;    // NULL: none. Goes to the endpoint's host and to no other
    const char *repo;     // "owner/name", or "name"
    const char *file;     // NULL: what Loom needs (pull/choice.h)
    const char *revision; // NULL: the hub's default
    const char *out;      // the folder, made if missing
    uint32_t connections; // 1 .. LIMIT_PULL_CONNECTIONS at once
    uint32_t retries;     // how often in a row a connection may break without having brought anything new
    void (*progress)(void *arg, const struct pull_progress *p); // a few times a second
    void (*note)(void *arg, const char *text);                  // something that a person may want to know
    bool (*stop)(void *arg);                                    // true: give up, leave a state to go on from
    void *arg;
};

struct pull_result {
    char path[4096];       // what loom opens: the folder or the GGUF file in it; of other files the folder
    uint32_t files;        // that were asked for
    uint32_t fetched;      // of them: those that were not there yet; 0: nothing was to do
    uint64_t bytes;        // of all of them
    uint32_t not_verified; // for which the hub named no hash
};

// ERR_USAGE: the configuration, or several GGUF models and none named. ERR_NOT_FOUND, ERR_AUTH: what the hub says.
// ERR_NET: it cannot be reached, or breaks off too often. ERR_FORMAT: it sends nonsense, or bytes other than announced.
// ERR_LIMIT: no room on the disk. ERR_CANCELLED: stop. Whatever it is, the next pull goes on from where this one was.
int pull_run(const struct pull_config *c, struct pull_result *r, struct err *e) MUST_CHECK;
