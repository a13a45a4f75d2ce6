// HOST:PORT as people write it: "192.168.1.10:7701", "head.lan:7701", "[::1]:8080", ":8080".
#pragma once
#include "base/err.h"

enum { HOSTPORT_HOST_BYTES = 256 };

struct hostport {
    char host[HOSTPORT_HOST_BYTES]; // a name, or a number of IPv4 or IPv6 without brackets; "": not said
    unsigned port;                  // 0 .. 65535
};

// Looks at the text only: nothing is resolved. A v6 number needs its brackets, as its last part could be a port. Any
// thread. ERR_USAGE quotes the text and says what is wrong with it; *out is then unchanged.
int hostport_parse(const char *text, struct hostport *out, struct err *e) MUST_CHECK;
