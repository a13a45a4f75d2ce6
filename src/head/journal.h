// The head's memory of what it promised: a write-ahead log in the state folder. A head that is started again with the
// same folder and the same model goes on with the answers that were being made.
//
//   <state>/journal/0000000001.log, ...: segments of records, each record with its length and CRC-32C. A segment begins
//   with everything that is still alive, so that the older ones can go; a torn end is where reading stops.
//
// What holds when: a thread of its own writes each record within microseconds, so that a disk that is slow, hangs or is
// full never holds up an answer; it calls fdatasync once a second. What a process that is killed had not yet written,
// or a machine that lost its power not yet on its disk, are tokens of the last moment: they are drawn again, and are
// the same. That the request itself is written before its first token is told, journal_settle sees to. Where the disk
// refuses, the head goes on without a journal and tries anew every second.
//
// Only requests with gen_request.keep are followed. journal_open and journal_close: one thread; the rest: the loop's.
#pragma once
#include "base/gen.h"
#include <stddef.h>

struct journal;

struct journal_config {
    const char *state_dir;
    uint64_t model[2]; // digest of what tokens depend on; requests of another model are forgotten
    uint32_t n_vocab;
};

// Reads what is there and begins a segment. ERR_UNAVAILABLE: another head has this state_dir; ERR_IO: the folder cannot
// be made or read; ERR_NOMEM.
int journal_open(const struct journal_config *c, struct journal **j, struct err *e) MUST_CHECK;
void journal_close(struct journal *j); // what is alive stays on disk

// Of the process before: names the weights that nodes keep. Drawn anew with another model.
uint64_t journal_boot(const struct journal *j);
uint32_t journal_last_epoch(const struct journal *j); // 0: none was used
uint64_t journal_next_id(const struct journal *j);    // above every id in the journal

// Copies of all that is alive, in the order of their ids: one allocation, the caller's to free(). ERR_NOMEM.
int journal_list(const struct journal *j, struct gen_restored **list, uint32_t *n) MUST_CHECK;

void journal_epoch(struct journal *j, uint32_t epoch); // before it is used
// A step computes on it; only the first one in this process counts. A request that several processes tried, and that
// got no token, is forgotten: it may be what ended them. Unknown is fine.
void journal_tried(struct journal *j, uint64_t id);
void journal_request(struct journal *j, uint64_t id,
                     const struct gen_request *r);                 // before its first event; not restored
void journal_event(struct journal *j, const struct gen_event *ev); // with a token; others change nothing
void journal_drop(struct journal *j, uint64_t id);                 // nobody will come for it; unknown is fine
// Hands all the above to the writer, as one write; to be called before events are handed on.
void journal_flush(struct journal *j);
// The same, and waits until it is written; 200 ms at most. For the first event of a request.
void journal_settle(struct journal *j);

struct journal_counts {
    uint64_t n_writes, write_us, max_write_us, n_segments, n_failures;
};
// Any thread.
void journal_counts(struct journal *j, struct journal_counts *c);
