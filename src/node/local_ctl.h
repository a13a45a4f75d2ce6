// The door for the owner of this machine: <state>/node.sock, a unix socket that answers the same user and root only.
// A connection carries one line, "pause", "pause wait", "resume" or "show", and one line as the answer: "ok TEXT" or
// "error TEXT". The answer to "pause wait" comes when nothing depends on the node any more.
#pragma once
#include "base/err.h"
#include "node/presence.h"
#include <stddef.h>

enum {
    LOCAL_CTL_LINE_BYTES = 256, // of an answer, with the newline; requests are shorter
    LOCAL_CTL_CLIENTS = 16,     // connections at once; further ones are closed
    LOCAL_CTL_IDLE_MS = 5000    // until the line has to be there
};

struct local_ctl;

// A node that cannot make the socket serves all the same: it logs the reason, and *out is NULL. Called with node.lock
// held: what lies at the socket's path is a leftover. p outlives it. Loop's thread, as all but local_ctl_ask.
void local_ctl_init(struct local_ctl **out, struct loop *l, const char *state_dir, struct presence *p);
// Ends the connections, removes the socket. NULL is fine.
void local_ctl_fini(struct local_ctl *c);

enum local_ctl_word { LOCAL_CTL_NONE, LOCAL_CTL_PAUSE, LOCAL_CTL_PAUSE_WAIT, LOCAL_CTL_RESUME, LOCAL_CTL_SHOW };
// What a request asks for; LOCAL_CTL_NONE: nothing that we know. Any bytes.
enum local_ctl_word local_ctl_parse(const char *line, size_t len_bytes);

// For another process: asks the node with this state folder and waits for the answer, without limit for "pause wait".
// answer: the text behind "ok". ERR_NOT_FOUND: no node runs there. ERR_UNAVAILABLE: it said "error".
int local_ctl_ask(const char *state_dir, const char *request, char answer[LOCAL_CTL_LINE_BYTES],
                  struct err *e) MUST_CHECK;
