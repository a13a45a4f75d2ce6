#include "os/hostport.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_alnum(char c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'); // in any locale the same
}

static bool is_name(const char *s, size_t n, const char *others) {
    for (size_t i = 0; i < n; i++)
        if (!is_alnum(s[i]) && !(s[i] && strchr(others, s[i]))) return false;
    return true;
}

// "::1", "fe80::1%eth0".
static bool is_v6(const char *host) {
    char number[INET6_ADDRSTRLEN];
    struct in6_addr a;
    size_t n = strcspn(host, "%");
    if (n >= sizeof number) return false;
    memcpy(number, host, n);
    number[n] = 0;
    if (inet_pton(AF_INET6, number, &a) != 1) return false;
    return !host[n] || (host[n + 1] && is_name(host + n + 1, strlen(host + n + 1), "-_."));
}

int hostport_parse(const char *text, struct hostport *out, struct err *e) {
    struct hostport hp;
    const char *colon = strrchr(text, ':'), *start = text;
    if (!colon) return err_set(e, ERR_USAGE, "'%.200s' is not HOST:PORT: the port is missing", text);
    size_t n = (size_t)(colon - text), digits = strspn(colon + 1, "0123456789");
    hp.port = digits >= 1 && digits <= 5 && !colon[1 + digits] ? (unsigned)strtoul(colon + 1, NULL, 10) : 65536;
    if (hp.port > 65535)
        return err_set(e, ERR_USAGE, "'%.200s' is not HOST:PORT: the port is no number from 0 to 65535", text);
    bool bracketed = n >= 2 && text[0] == '[' && text[n - 1] == ']';
    if (bracketed) {
        start++;
        n -= 2;
    }
    if (n >= sizeof hp.host)
        return err_set(e, ERR_USAGE, "'%.200s' is not HOST:PORT: the host is longer than %zu bytes", text,
                       sizeof hp.host - 1);
    memcpy(hp.host, start, n);
    hp.host[n] = 0;
    if (bracketed ? !is_v6(hp.host) : !is_name(hp.host, n, ".-_"))
        return err_set(e, ERR_USAGE, "'%.200s' is not HOST:PORT: the host is a name, 192.168.1.10 or [::1]", text);
    *out = hp;
    return ERR_OK;
}
