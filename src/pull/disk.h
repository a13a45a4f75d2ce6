// The slow half of the disk's work, in threads of its own so that connections do not wait for it: making bytes last,
// hashing, putting a file in its place.
#pragma once
#include "os/queue.h"
#include "os/thread.h"
#include "pull/listing.h"
#include "pull/state.h"
#include <curl/curl.h>

// Names of a file's three places below the folder.
struct disk_paths {
    char whole[LIMIT_PATH], part[LIMIT_PATH], state[LIMIT_PATH];
};
// ERR_LIMIT: one is too long.
int disk_paths(struct disk_paths *p, const char *folder, const char *path, struct err *e) MUST_CHECK;
// The folder that a file lies in, with those above it.
int disk_make_folder_of(const char *path, struct err *e) MUST_CHECK;

enum disk_task {
    DISK_SYNC,  // what the part holds is made to last, then the state is written
    DISK_CHECK, // does the file that stands in its place have the digest that is wanted?
    DISK_PLACE  // the part has all its bytes: hash it, put it in its place. A wrong one is removed
};

struct disk_job {
    enum disk_task task;
    uint32_t file; // the caller's number of it
    struct disk_paths paths;
    const struct listing_file *want;
    struct state *state; // of DISK_SYNC: the job owns this copy
    // The outcome:
    int rc;
    bool equal; // of DISK_CHECK
    int64_t mtime_ns;
    struct err e;
};

struct disk {
    struct queue syncs, hashes, done; // done: jobs that are over; the caller frees them
    struct thread sync_thread, hash_thread;
    atomic_bool stop;
    CURLM *wake; // woken when a job is over
};

// n_files: how many files may have jobs at once. disk_stop after ERR_OK only.
int disk_start(struct disk *d, uint32_t n_files, CURLM *wake, struct err *e) MUST_CHECK;
// ERR_NOMEM. The file has no other job of this kind under way.
int disk_post(struct disk *d, enum disk_task task, uint32_t file, const struct disk_paths *paths,
              const struct listing_file *want, const struct state *state, struct err *e) MUST_CHECK;
struct disk_job *disk_result(struct disk *d); // NULL: none is over
void disk_job_free(struct disk_job *j);
// Hashing is given up, syncs are finished. Afterwards disk_result still hands out what is over; then disk_fini.
void disk_stop(struct disk *d);
void disk_fini(struct disk *d);

// ERR_LIMIT: the folder's file system has less room than need_bytes.
int disk_check_room(const char *folder, uint64_t need_bytes, struct err *e) MUST_CHECK;
// Opens a part, as long as it will be; what it holds is lost if it had another length. ERR_LIMIT: no room.
int disk_open_part(const char *path, uint64_t size_bytes, int *fd, struct err *e) MUST_CHECK;
// Bytes that a part takes up already.
uint64_t disk_allocated(const char *path);
// Writes all of it at an offset. ERR_IO, ERR_LIMIT: no room.
int disk_write(int fd, const char *path, const void *data, size_t len_bytes, uint64_t at, struct err *e) MUST_CHECK;
// Makes last what the part holds, then writes the state that speaks of it.
int disk_sync(const struct disk_paths *p, const struct state *s, struct err *e) MUST_CHECK;
// The state that an earlier run left. false: none, or of another content, or the bytes that it speaks of are not there.
bool disk_load_state(const struct disk_paths *p, const struct listing_file *want, struct state *s);
// Size and time of a regular file; false: there is none.
bool disk_look(const char *path, uint64_t *size_bytes, int64_t *mtime_ns);
// Removes part and state, and the folders that held them if they are empty now.
void disk_forget(const char *folder, const struct disk_paths *p);
