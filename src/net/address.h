// HOST:PORT and [V6]:PORT <-> socket addresses.
#pragma once
#include "base/err.h"
#include <sys/socket.h>

// A name is resolved, which may take seconds.
int address_parse(const char *text, struct sockaddr_storage *ss, socklen_t *len, struct err *e) MUST_CHECK;
// without with_port: the number alone, without brackets.
void address_format(const struct sockaddr *sa, int with_port, char *out, size_t out_bytes);
// Puts host and port together, with brackets where the host is a v6 number.
void address_join(const char *host, unsigned port, char *out, size_t out_bytes);
int address_is_loopback(const char *host);
