#include "net/address.h"

#include "os/hostport.h"
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int address_parse(const char *text, struct sockaddr_storage *ss, socklen_t *len, struct err *e) {
    struct hostport hp;
    char port[8];
    int rc = hostport_parse(text, &hp, e);
    if (rc) return err_prefix(e, "address");
    if (!hp.host[0]) return err_set(e, ERR_USAGE, "address '%.200s' is not HOST:PORT: the host is missing", text);
    snprintf(port, sizeof port, "%u", hp.port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    rc = getaddrinfo(hp.host, port, &hints, &found);
    if (rc || !found) return err_set(e, ERR_NET, "address '%.200s': %s", text, gai_strerror(rc));
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
