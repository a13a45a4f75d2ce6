#include "net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int address_parse(const char *text, struct sockaddr_storage *ss, socklen_t *len, struct err *e) {
    char host[256];
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    const char *start = text;
    if (n > 2 && text[0] == '[' && text[n - 1] == ']') {
        start++;
        n -= 2;
    }
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    if (n == 0 || n >= sizeof host || digits == 0 || digits > 5 || colon[1 + digits])
        return err_set(e, ERR_USAGE, "address \"%.200s\" is not HOST:PORT", text);
    memcpy(host, start, n);
    host[n] = 0;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(host, colon + 1, &hints, &found);
    if (rc || !found) return err_set(e, ERR_NET, "address \"%.200s\": %s", text, gai_strerror(rc));
    memcpy(ss, found->ai_addr, found->ai_addrlen);
    *len = found->ai_addrlen;
    freeaddrinfo(found);
    return ERR_OK;
}

void address_join(const char *host, unsigned port, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
}

void address_format(const struct sockaddr *sa, int with_port, char *out, size_t out_bytes) {
    char host[INET6_ADDRSTRLEN] = "?";
    unsigned port = 0;
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof in);
        inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
        port = ntohs(in.sin_port);
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in;
        memcpy(&in, sa, sizeof in);
        port = ntohs(in.sin6_port);
        if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) // an IPv4 peer of a socket that takes both
            inet_ntop(AF_INET, in.sin6_addr.s6_addr + 12, host, sizeof host);
        else
            inet_ntop(AF_INET6, &in.sin6_addr, host, sizeof host);
    }
    if (with_port)
        address_join(host, port, out, out_bytes);
    else
        snprintf(out, out_bytes, "%s", host);
}

int address_is_loopback(const char *host) { return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0; }
