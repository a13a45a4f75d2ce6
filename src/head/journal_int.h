// What the files of the journal share: its records, and what they add up to.
//
// A record: u32 length of the body, u32 CRC-32C of type and body, u8 type, body. Little-endian throughout.
#pragma once
#include "base/buf.h"
#include "base/list.h"
#include "base/map.h"
#include "head/journal.h"

enum {
    JOURNAL_START = 1,   // of a segment: magic, version, boot, model, highest epoch, next id
    JOURNAL_REQUEST = 2, // all of a request with the tokens so far; replaces what was known of its id
    JOURNAL_LISTED = 3,  // what the segment did not name by now is gone
    JOURNAL_EPOCH = 4,
    JOURNAL_TOKENS = 5, // of one step: id, index, token, finish for each
    JOURNAL_DROP = 6,
    JOURNAL_TRIED = 7, // a process computes on it
    JOURNAL_HEAD_BYTES = 9,
    JOURNAL_TOKEN_BYTES = 17,
    JOURNAL_MAGIC = 0x4A4D4F4C,
    JOURNAL_VERSION = 1
};

struct journal_entry {
    struct list all; // in journal_state.entries, in the order of their ids
    uint64_t id;
    struct gen_request request; // prompt and keep lie behind this struct; known is tokens
    enum gen_finish finish;
    uint32_t n_idle_boots; // processes that tried it since its last token: one that ends them must not do so for ever
    bool tried;            // by this process
    uint32_t listed;       // number of the segment that named it last
    int32_t *tokens;       // [cap]
    uint32_t cap;
};

struct journal_state {
    uint64_t model[2]; // wanted
    uint32_t n_vocab;
    uint64_t boot; // 0: none for this model
    uint32_t epoch;
    uint64_t next_id;
    struct list entries;
    struct map index;    // id -> struct journal_entry
    uint64_t live_bytes; // of the records that tell all entries
    uint32_t n_segments; // read
};

// journal_read.c
void journal_read_init(struct journal_state *s, const uint64_t model[2], uint32_t n_vocab);
void journal_read_fini(struct journal_state *s);
// Takes one segment; returns how many of its bytes were good. Bytes may be anything.
size_t journal_read_segment(struct journal_state *s, const uint8_t *data, size_t len_bytes);
// Changes of the state, whether read or just happening. NULL, false: no memory, or nothing that could be.
struct journal_entry *journal_read_add(struct journal_state *s, uint64_t id, const struct gen_request *r);
bool journal_read_token(struct journal_state *s, uint64_t id, uint32_t index, int32_t token, enum gen_finish finish);
void journal_read_drop(struct journal_state *s, uint64_t id);
void journal_read_tried(struct journal_state *s, uint64_t id);

// journal_put.c: adds one record to out. ERR_NOMEM: out is as before.
int journal_put_start(const struct journal_state *s, struct buf *out) MUST_CHECK;
int journal_put_request(const struct journal_entry *q, struct buf *out) MUST_CHECK;
int journal_put_listed(struct buf *out) MUST_CHECK;
int journal_put_epoch(uint32_t epoch, struct buf *out) MUST_CHECK;
int journal_put_tried(uint64_t id, struct buf *out) MUST_CHECK;
int journal_put_drop(uint64_t id, struct buf *out) MUST_CHECK;
// Several tokens in one record: begin says where, each adds, end closes it.
int journal_put_tokens_begin(struct buf *out, size_t *at) MUST_CHECK;
int journal_put_token(const struct gen_event *ev, struct buf *out) MUST_CHECK;
void journal_put_tokens_end(struct buf *out, size_t at);
uint64_t journal_put_request_bytes(const struct journal_entry *q);

// journal_files.c: the segments in a folder, named by their numbers.
enum { JOURNAL_PATH_BYTES = LIMIT_PATH + 20 };
void journal_files_path(const char *folder, uint32_t n, char path[JOURNAL_PATH_BYTES]);
// Numbers of those that are there, in order. The caller frees *list.
int journal_files_list(const char *folder, uint32_t **list, uint32_t *n, struct err *e) MUST_CHECK;
void journal_files_remove_older(const char *folder, uint32_t than);
void journal_files_sync(const char *folder); // names that came and went are on the disk then
