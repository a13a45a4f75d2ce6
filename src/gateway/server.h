// What the files of the HTTP server share: gateway, its connections, and the exchange (one request and its response).
#pragma once
#include "base/map.h"
#include "gateway/reader.h"
#include "os/queue.h"
#include "os/thread.h"
#include <microhttpd.h>

enum { SERVER_PREPARERS_MAX = 8 };

// One socket. Everything but id and fd is under the gateway's lock.
struct conn {
    uint64_t id;
    int fd;
    uint64_t deadline_ms;  // when it is shut down; 0: the reader at work looks after itself
    struct reader *reader; // at work; the exchange holds the reference
    bool watched;          // its fd is in the watcher's epoll set
};

struct exchange {
    struct gateway *gateway;
    struct conn *conn;
    const struct route *route; // NULL: unknown path
    bool is_get, is_plain_get; // the former for HEAD too
    bool refused;              // error is set; the body is read and thrown away
    bool queued;               // a response is on its way
    bool streaming;
    int status;
    uint64_t declared_bytes, seen_bytes; // of the body
    struct buf body;
    struct reader *reader;
    struct resume *resume; // where the client was, until a reader has it; NULL: it begins
    struct api_error error;
    char request_id[32];
};

struct gateway {
    struct gateway_config config;
    struct answer_shared shared;
    struct MHD_Daemon *daemon;
    uint32_t port;
    pthread_mutex_t lock; // conns and what is in them, stopping
    struct map conns;     // id -> struct conn
    uint64_t next_conn_id;
    bool stopping;
    struct queue jobs; // answers to prepare
    struct thread preparers[SERVER_PREPARERS_MAX];
    uint32_t n_preparers;
    struct thread watcher;
    bool watching;
    int epoll_fd, stop_fd;
};

// exchange.c: the callbacks of libmicrohttpd.
enum MHD_Result exchange_handle(void *gateway, struct MHD_Connection *connection, const char *url, const char *method,
                                const char *version, const char *data, size_t *data_bytes, void **state);
void exchange_completed(void *gateway, struct MHD_Connection *connection, void **state,
                        enum MHD_RequestTerminationCode why);

// watch.c: a thread that sees clients go away while their connection is suspended, and enforces deadlines.
int watch_start(struct gateway *g, struct err *e) MUST_CHECK;
void watch_stop(struct gateway *g);
// A connection opens or closes; MHD_NotifyConnectionCallback.
void watch_connection(void *gateway, struct MHD_Connection *connection, void **context,
                      enum MHD_ConnectionNotificationCode code);
// What the connection is about to do, and how long it may take.
enum watch_phase { WATCH_HEADER, WATCH_BODY, WATCH_REPLY, WATCH_IDLE };
void watch_phase(struct gateway *g, struct conn *c, enum watch_phase phase, size_t reply_bytes);
// From now on r is told when the client goes away. False: the server is stopping.
bool watch_reader(struct gateway *g, struct conn *c, struct reader *r);
void watch_no_reader(struct gateway *g, struct conn *c);
